"""Where policies as files used to be; see :mod:`vinoreward.policies.files`."""

from __future__ import annotations

from vinoreward.policies.files import FORMAT, load_policy, save_policy

__all__ = ["FORMAT", "load_policy", "save_policy"]
