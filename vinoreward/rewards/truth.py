"""The truth about success in an environment's ``info``, beside what is claimed there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vinoreward.arrays import is_tensor
from vinoreward.errors import ConfigError

TRUTH_KEYS = ("true_success", "original_is_success", "is_success", "success", "succeed")
"""Where environments say whether the task is done; the first that is there counts. A learned
reward moves an environment's own ``is_success`` to ``original_is_success``."""


def claim_of(info: Mapping[str, Any]) -> bool | None:
    """Return what a classifier (or our oracle) claims; None where neither says.

    ``is_success`` alone is the environment's own: the truth, not a claim about it.
    """
    claims = "is_success" in info and ("reward_prob" in info or "true_success" in info)
    return bool(info["is_success"]) if claims else None


def as_truth(value: Any, said: str) -> bool:
    """Return a flag from what an environment gives for it: a flag, a number, an array or a tensor.

    ``said`` begins the sentence of the ConfigError for anything but a single true, false, 1 or 0.
    """
    array = np.asarray(value.tolist() if is_tensor(value) else value)
    if array.size != 1 or array.dtype.kind not in "buif" or array.item() not in (0, 1):
        raise ConfigError(
            f"{said} {value!r}. Expected true or false, or a single 1 or 0, for the truth about "
            "success; name another key, or a function of the environment, with `truth`."
        )
    return bool(array.item())


class Truth:
    """Reads from ``info`` whether the task is truly done.

    ``key`` names it; None takes the first of :data:`TRUTH_KEYS` that is there, and keeps it.
    ``is_success`` is the environment's own, also where a learned reward claims under that name.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key, self._named = key, key is not None

    def __call__(self, info: Mapping[str, Any], *, last: bool = True) -> bool | None:
        """Return the truth; None where a step's ``info`` does not tell.

        ConfigError: a named key is missing in an episode's ``last`` step, or is no single number.
        """
        if self.key is None:
            claimed = claim_of(info) is not None
            keys = (key for key in TRUTH_KEYS if not (claimed and key == "is_success"))
            self.key = next((key for key in keys if key in info), None)
        elif self.key == "is_success" and {"reward_prob", "original_is_success"} & set(info):
            self.key = "original_is_success"
        if self.key is None or self.key not in info:
            if self._named and last:
                raise ConfigError(
                    f"the environment gave an info without {self.key!r} (it has {_keys(info)}). "
                    "Expected the truth about success there; name one of these, or a function of "
                    "the environment, with `truth`."
                )
            return None
        return as_truth(info[self.key], f"the environment gives, as info[{self.key!r}],")

    def missing(self, info: Mapping[str, Any]) -> str:
        """Say that nothing is known of the truth, and what to do."""
        return (
            f"true success is not known: the environment's info has none of {', '.join(TRUTH_KEYS)}"
            f" (it has {_keys(info)}). Name the key that has it, or a function of "
            "the environment (file.py:function), with `truth`."
        )


def _keys(info: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, info))) or "nothing"
