"""The paired comparisons behind the figures, and where a step's time goes."""
