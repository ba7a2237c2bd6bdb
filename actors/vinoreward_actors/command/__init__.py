"""Actors and a learner: the command, its record and its report."""

from vinoreward_actors.command.config import ActorsConfig

COMMAND = ("vinoreward_actors.command.command", ActorsConfig)
"""The module and options of ``vinoreward actors``; an entry point of vinoreward.commands."""
