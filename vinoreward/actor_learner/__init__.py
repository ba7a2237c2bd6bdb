"""Actors that act compressed, a learner that learns in full precision, shared memory between."""

import lazy_loader

# Actors import this package and never torch, so its names are imported when they are first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
