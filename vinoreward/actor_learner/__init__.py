"""Actors that act compressed, a learner that learns in full precision, shared memory between."""
