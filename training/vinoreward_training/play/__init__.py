"""Plays policies: films and success rates."""
