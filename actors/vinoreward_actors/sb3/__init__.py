"""Stable-Baselines3's models with a compiled, compressed acting network."""
