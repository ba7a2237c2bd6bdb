"""Environments and tasks by name."""
