"""Learned rewards and latent observations around any environment.

The same for Gymnasium's vector environments in :mod:`vinoreward.wrappers.vector`, and for those of
Stable-Baselines3 in :mod:`vinoreward.wrappers.sb3`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
