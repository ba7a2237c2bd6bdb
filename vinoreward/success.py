"""Claimed and true success, read from an environment's ``info``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from vinoreward.errors import ConfigError

TRUTH_KEYS = ("true_success", "original_is_success", "is_success", "success", "succeed")
"""Where environments say whether the task is done; the first that is there counts. A learned
reward moves an environment's own ``is_success`` to ``original_is_success``."""


def claim_of(info: Mapping[str, Any]) -> bool | None:
    """Return what a classifier (or our oracle) claims; None where nobody judges.

    ``is_success`` alone is an environment's own word: the truth, and no claim about it.
    """
    judged = "reward_prob" in info or "true_success" in info
    return bool(info["is_success"]) if judged and "is_success" in info else None


class Truth:
    """Reads from ``info`` whether the task is truly done.

    Args:
        key: of ``info``; None takes the first of :data:`TRUTH_KEYS` that is there, and stays with
            it.
    """

    def __init__(self, key: str | None = None) -> None:
        self.key = key
        """The key in use; None until one is found."""
        self._named = key is not None

    def __call__(self, info: Mapping[str, Any], *, last: bool = True) -> bool | None:
        """Return the truth, None where ``info`` does not tell.

        Args:
            info: of a step; a reset's may hold other things.
            last: whether the step ended its episode; a key that was named must be there then.

        Raises:
            ConfigError: it is not, or the key in use holds no single number.
        """
        if self.key is None:
            claimed = claim_of(info) is not None
            keys = (key for key in TRUTH_KEYS if not (claimed and key == "is_success"))
            self.key = next((key for key in keys if key in info), None)
        if self.key is None or self.key not in info:
            if self._named and last:
                raise ConfigError(
                    f"the environment gave an info without {self.key!r} (it has {_keys(info)}). "
                    "Expected the truth about success there; name its key with --truth-key."
                )
            return None
        value = np.asarray(info[self.key])
        if value.size != 1 or value.dtype.kind not in "buif" or np.isnan(value).any():
            raise ConfigError(
                f"the environment gives {info[self.key]!r} as info[{self.key!r}]. Expected true or "
                "false, or a single number, for the truth about success; where a command takes "
                "--truth-key, it can name another key."
            )
        return bool(value.item())

    def missing(self, info: Mapping[str, Any]) -> str:
        """Say that nothing is known of the truth, and what to do."""
        return (
            f"true success is not known: the environment's info has none of {', '.join(TRUTH_KEYS)}"
            f" (it has {_keys(info)}). If it tells under another name, add --truth-key."
        )


def _keys(info: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, info))) or "nothing"
