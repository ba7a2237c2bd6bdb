"""``vinoreward watch``: a reward beside a camera, and labels by keys."""
