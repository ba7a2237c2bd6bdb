"""Policies that learn with Stable-Baselines3 on a learned reward."""
