"""Backends: one actor's network, at a fixed batch, on one thread, with cheap weight refresh."""
