"""Actors: policies at work in environments, in training and after it."""
