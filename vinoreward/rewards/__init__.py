"""From pictures to probabilities, decisions and rewards."""
