"""From images to probabilities, decisions and rewards."""
