"""Actors and players: policies acting in environments, during training and after it."""
