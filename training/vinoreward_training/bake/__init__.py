"""Makes the scene's files; not part of the wheel."""
