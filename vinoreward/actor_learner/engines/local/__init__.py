"""The engine of one machine: spawned processes and shared memory."""
