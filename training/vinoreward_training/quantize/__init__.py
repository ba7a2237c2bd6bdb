"""INT8 networks for a bundle, and the gate they must pass."""
