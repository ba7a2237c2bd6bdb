"""Options of each command: one dataclass per command, without imports of this project."""
