"""Actors and a learner: the command, its record and its report."""
