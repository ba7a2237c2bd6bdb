"""What each command can be told: one dataclass a command, and nothing else of ours imported."""
