"""The hover scene: one arm, one object, one camera."""
