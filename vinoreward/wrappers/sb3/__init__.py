"""The wrappers for Stable-Baselines3's vector environments."""
