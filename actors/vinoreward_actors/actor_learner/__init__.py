"""Training with compressed actors, a full-precision learner, and shared memory between them."""

import lazy_loader

# Actors import this package without torch, so its names are imported on first use.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
