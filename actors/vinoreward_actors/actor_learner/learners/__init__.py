"""Learners: they train full-precision networks on trajectories, in one process.

Importing a module of this package imports torch; actors never do.
"""
