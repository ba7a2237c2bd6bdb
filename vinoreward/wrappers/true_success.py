"""Whether the task is truly done, by a function of the environment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, SupportsFloat

import gymnasium as gym

from vinoreward.entry_points import named_function
from vinoreward.errors import ConfigError
from vinoreward.rewards.truth import as_truth
from vinoreward.wrappers.env_adapter import Env


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

    def __init__(self, env: Env, truth: str | Callable[[Any], Any]) -> None:
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
