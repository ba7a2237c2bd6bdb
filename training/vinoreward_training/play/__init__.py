"""Policies at play: filmed and counted."""
