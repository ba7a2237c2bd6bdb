"""Whether the task is truly done: read from ``info``, or by a function of the environment."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, SupportsFloat

import gymnasium as gym
import numpy as np

from vinoreward.arrays import is_tensor
from vinoreward.entry_points import named_function
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
            "success; name another key with --truth-key, or a function of the environment with "
            "--truth (both where the command has them)."
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
                    "Expected the truth about success there; name one of these with --truth-key, "
                    "or a function of the environment with --truth."
                )
            return None
        return as_truth(info[self.key], f"the environment gives, as info[{self.key!r}],")

    def missing(self, info: Mapping[str, Any]) -> str:
        """Return a message that true success is not known, and what to do."""
        return (
            f"true success is not known: the environment's info has none of {', '.join(TRUTH_KEYS)}"
            f" (it has {_keys(info)}). If it tells under another name, add --truth-key; if not, "
            "--truth file.py:function, a function of the environment."
        )


def _keys(info: Mapping[str, Any]) -> str:
    return ", ".join(sorted(map(str, info))) or "nothing"


class TrueSuccess(gym.Wrapper[Any, Any, Any, Any], gym.utils.RecordConstructorArgs):
    """Write into ``info["true_success"]`` what a function of the environment says.

    For an environment that does not tell in ``info`` whether its task is done. Commands put it
    around the environment for ``--truth``; in a vector environment it goes into each::

        # truth.py
        def at_target(env):
            bodies = env.get_body_com("fingertip") - env.get_body_com("target")
            return np.linalg.norm(bodies) < 0.02

        known = functools.partial(TrueSuccess, truth="truth.py:at_target")
        gym.make_vec("Reacher-v5", 4, wrappers=[known])

    An ``is_success`` of the environment's own moves to ``original_is_success``; that of a learned
    reward inside stays, as a claim.

    Args:
        env: the environment.
        truth: ``"package.module:function"``, ``"file.py:function"`` or a function, which only
            ``env.spec`` cannot record. It is called with ``env.unwrapped`` after each reset and
            step, and returns True or False (or a single 0 or 1).

    Raises:
        ConfigError: the function cannot be imported, fails or returns something else.
    """

    def __init__(self, env: gym.Env[Any, Any], truth: str | Callable[[Any], Any]) -> None:
        gym.utils.RecordConstructorArgs.__init__(self, truth=truth)
        gym.Wrapper.__init__(self, env)
        self._name = truth if isinstance(truth, str) else getattr(truth, "__qualname__", "truth")
        self._truth = named_function(truth, "truth") if isinstance(truth, str) else truth

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Start an episode; ``info["true_success"]`` is that of its first state."""
        observation, info = self.env.reset(seed=seed, options=options)
        return observation, self._with_truth(info)

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        """Step the environment; ``info["true_success"]`` is that of the state it ended in."""
        observation, reward, terminated, truncated, info = self.env.step(action)
        return observation, reward, terminated, truncated, self._with_truth(info)

    def _with_truth(self, info: dict[str, Any]) -> dict[str, Any]:
        try:
            value = self._truth(self.unwrapped)
        except (AttributeError, LookupError, TypeError, ValueError, ArithmeticError) as error:
            raise ConfigError(
                f"the truth {self._name} fails with {type(self.unwrapped).__name__}: "
                f"{type(error).__name__}: {error}. Expected a function of the environment "
                "(env.unwrapped) that returns True or False; correct it."
            ) from error
        success = as_truth(value, f"the truth {self._name} gives")
        info = dict(info)
        if "is_success" in info and "reward_prob" not in info:  # a learned reward's is a claim
            info["original_is_success"] = info.pop("is_success")
        info["true_success"] = success
        return info
