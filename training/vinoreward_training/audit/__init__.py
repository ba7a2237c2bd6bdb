"""Tries to cheat a classifier: ``vinoreward audit``."""
