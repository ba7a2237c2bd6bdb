"""What a trained policy is for: actions, for observations."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.spaces import check_actions, in_space, observed
from vinoreward.closing import Closing
from vinoreward.policies.backends.registry import make_backend
from vinoreward.policies.distributions import Exploration, act
from vinoreward.policies.policy import Policy


class Player(Closing):
    """Gives a policy's best actions, without exploring. Not for use by several threads at a time.

    Nothing of training is needed: NumPy, and the library of the backend.

    Args:
        policy: of full precision or compressed, see
            :func:`~vinoreward.policies.files.load_policy`.
        space: of the actions, of one environment; continuous ones are scaled to its limits and
            discrete ones count from its start. None: they stay in [-1, 1], or count from 0.
        batch: observations of one call.
        backend: what runs it: ``"openvino"``, ``"onnxruntime"``, ``"numpy"``, ``"torch"``; None is
            the one that the policy was made for.

    Raises:
        ConfigError: an unknown backend, one that cannot run this network, actions that are not
            those of the space, or a batch below 1.
        InputError: weights that are not finite.
        MissingExtraError: the backend's library is not installed.
    """

    def __init__(
        self,
        policy: Policy,
        space: gym.Space[Any] | None = None,
        *,
        batch: int = 1,
        backend: str | None = None,
    ) -> None:
        if space is not None:
            check_actions(space, policy.spec)
        self.policy = policy
        self._space = space
        self._random = np.random.default_rng(0)  # asked for by act, which draws nothing from it
        self._backend = make_backend(policy.backend if backend is None else backend, batch)
        try:
            # The compiled form is for the actors' batch.
            self._backend.refresh(policy.replace(blob=None))
        except BaseException:
            self.close()
            raise

    def act(self, observations: npt.ArrayLike) -> Any:
        """Return the best action for each observation.

        Args:
            observations: (batch, \\*shape); or (\\*shape), one alone, where the batch is 1; of a
                type that :func:`~vinoreward.actor_learner.acting.spaces.observed` takes.

        Returns:
            (batch,) int64, or (batch, A) of the space's type (float32 without a space); for one
            observation alone an int, or (A,).

        Raises:
            InputError: observations of another shape or type, NaN or infinity.
            OutputError: NaN or infinity came out: the weights are broken.
            ConfigError: the player is closed.
        """
        spec = self.policy.spec
        seen = observed(observations, spec)
        alone = seen.shape == spec.observation_shape and self._backend.batch == 1
        outputs = self._backend.infer(seen[None] if alone else seen)
        actions: Any = act(spec, outputs, self._random, Exploration(greedy=True)).actions
        if self._space is not None:
            actions = in_space(actions, self._space)
        if not alone:
            return actions
        return int(actions[0]) if spec.discrete else actions[0]

    def close(self) -> None:
        """Let weights and backend go. Closing twice is fine."""
        self._backend.close()
