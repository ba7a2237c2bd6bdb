"""Environments that ship with vinoreward: a Franka Panda hovering over an object."""
