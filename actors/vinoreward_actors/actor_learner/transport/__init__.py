"""Transport of weights and experience: shared memory and its contents."""
