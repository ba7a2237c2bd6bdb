"""Learned rewards around any environment."""
