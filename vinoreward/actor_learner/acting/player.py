"""Runs a trained policy: observations in, actions out."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.spaces import check_actions, in_space, observed
from vinoreward.closing import Closing
from vinoreward.policies.backends.base import make_backend
from vinoreward.policies.distributions import Exploration, act
from vinoreward.policies.policy import Policy


class Player(Closing):
    """Gives a policy's best actions, without exploration. Not thread-safe.

    Needs only NumPy and the backend's library, nothing of training.

    Args:
        policy: in full precision or compressed, see
            :func:`~vinoreward.policies.files.load_policy`.
        space: action space of one environment; continuous actions are scaled to its limits,
            discrete ones count from its start. None: they stay in [-1, 1], or count from 0.
        batch: observations per call.
        backend: ``"openvino"``, ``"onnxruntime"``, ``"numpy"`` or ``"torch"``; None uses the
            policy's own.

    Raises:
        ConfigError: an unknown backend or one that cannot run this network, an action space that
            does not match, or a batch below 1.
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
        self._random = np.random.default_rng(0)  # required by act, unused for greedy actions
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
            observations: (batch, \\*shape); or one, (\\*shape), if the batch is 1; of a dtype that
                :func:`~vinoreward.actor_learner.acting.spaces.observed` accepts.

        Returns:
            (batch,) int64, or (batch, A) of the space's dtype (float32 without a space); for a
            single observation an int, or (A,).

        Raises:
            InputError: observations of another shape or dtype, NaN or infinity.
            OutputError: the outputs have NaN or infinity: the weights are broken.
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
        """Release weights and library objects. May be called twice."""
        self._backend.close()
