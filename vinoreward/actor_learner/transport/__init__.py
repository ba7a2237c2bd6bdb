"""How weights and experience travel: shared memory, and what is in it."""
