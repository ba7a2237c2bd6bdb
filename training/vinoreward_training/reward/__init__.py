"""The command that makes a reward in one go."""
