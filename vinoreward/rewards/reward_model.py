"""From images to rewards: a classifier, its OOD detector, the decision and what it pays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays
from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.decision import Decision, RewardOptions, Scores
from vinoreward.rewards.frozen import FrozenCheck
from vinoreward.rewards.prediction import Prediction


class RewardModel:
    """Scores the images of N environments and turns them into rewards.

    Arrays are NumPy's, or torch tensors on one device after :meth:`use`; results are of the same
    kind. On a device nothing waits for it: an image that cannot be scored earns no success, and
    :meth:`check` raises afterwards; on the host :meth:`score` raises.

    Example::

        model = RewardModel("panda-hover-classifier", RewardOptions(), num_envs=4)
        model.reset(np.ones(4, bool))
        scores = model.score(images, np.zeros(4), np.zeros(4, bool))  # images (4, H, W, 3) uint8
        scores.rewards, scores.claimed

    Args:
        bundle: a loaded classifier bundle, its folder, or the name of an installed one.
        options: what is paid for, and when an image counts.
        num_envs: N.
        backend: and ``device``, ``precision``, ``threads``: as for
            :class:`~vinoreward.Classifier`; but ``precision="auto"`` means FP32 where the reward
            is not sparse, as INT8 is checked for its decisions at the threshold only.
        threshold: probability from which an image counts; None is the bundle's.
        exit_threshold: probability that keeps counting it (hysteresis); None is ``threshold``.

    Raises:
        ConfigError: arguments that cannot work.
        ModelNotFoundError: no such bundle.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path,
        options: RewardOptions,
        num_envs: int = 1,
        *,
        backend: str = "openvino",
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
        threshold: float | None = None,
        exit_threshold: float | None = None,
    ) -> None:
        sparse = options.reward_mode == "sparse"
        self.classifier = Classifier(
            bundle,
            backend=backend,
            device=device,
            precision="fp32" if precision == "auto" and not sparse else precision,
            threads=threads,
            threshold=threshold,
            exit_threshold=exit_threshold,
            guarded=options.on_ood != "ignore",
        )
        """What scores the images. It loads at the first one."""
        self.options = options
        self.num_envs = num_envs
        self.frozen: FrozenCheck | None = None
        """Finds images that are older than the environment's state; None: nothing looks for it."""
        self.use(Arrays())

    def use(self, arrays: Arrays) -> None:
        """Take and return arrays of this library and device from now on; forget all state."""
        self.arrays = arrays
        self.decision = Decision(
            self.options,
            self.classifier.threshold,
            self.num_envs,
            self.classifier.exit_threshold,
            arrays,
        )
        self._all = arrays.full(self.num_envs, True, "bool")

    def stays_on(self, images: object) -> bool:
        """Return whether images are tensors that can be scored without waiting for their device."""
        return not self.options.host_only and self.classifier.takes(images)

    @property
    def hold_counter(self) -> Array:
        """``(num_envs,)`` int64: counting images in a row, at most ``success_hold_steps``."""
        return self.decision.detector.counter

    @property
    def needs_first_images(self) -> bool:
        """Whether :meth:`reset` scores the first images of episodes."""
        return self.decision.needs_first_images

    def reset(self, mask: Array | None = None, images: Array | None = None) -> None:
        """Start episodes where ``mask``, ``(num_envs,)`` bool, is True; None: everywhere.

        ``images`` are their first ones, as for :meth:`score`; in potential mode only, which is 0
        without them.
        """
        begun: Any = self._all if mask is None else mask
        if self.frozen is not None:
            self.frozen.begin(begun)
        first = None
        if images is not None and self.needs_first_images:
            probability, _, ood_score = self._predict(images, begun)
            ood_mask = self.decision.ood_mask(begun, ood_score)
            first = probability
            if ood_mask is not None:
                first = self.arrays.xp.where(ood_mask, 0.0, first)
            if not self.arrays.on_host:
                first = self.arrays.xp.nan_to_num(first)
        self.decision.reset(begun, first)

    def forget(self, ended: Array, begun: Array) -> None:
        """After an error: end the holds of ``ended`` environments, start episodes of ``begun``."""
        self.decision.detector.reset(ended)
        self.reset(begun)

    def score(
        self,
        images: Array,
        env_rewards: Array,
        terminated: Array,
        mask: Array | None = None,
        *,
        observations: Sequence[Any] | None = None,
        states: NDArray[np.float64] | None = None,
    ) -> Scores:
        """Score the images that transitions ended with.

        Args:
            images: ``(n, H, W, 3)`` uint8, of the environments where ``mask`` is True, in order;
                on a device ``(num_envs, H, W, 3)``.
            env_rewards: ``(num_envs,)`` the environment's own; ``terminated`` likewise.
            mask: ``(num_envs,)`` bool, the environments that made a transition; None: all.
            observations: one per environment, for the success filter.
            states: ``(num_envs, D)`` the numbers of all observations, for the frozen-camera check.

        Raises:
            InputError: images of another shape or dtype, or a reward that is needed and not finite.
            OutputError: the network returned NaN or infinity; on a device see :meth:`check`.
            OutOfDistributionError: an image is out of distribution, with ``on_ood="raise"``.
        """
        made: Any = self._all if mask is None else mask
        probability, log_odds, ood_score = self._predict(images, made)
        stale = False
        prepared = self.classifier.prepared
        if self.frozen is not None and states is not None:
            age = np.zeros(self.num_envs, np.float32)
            if prepared is not None:
                claims = made & (probability >= np.float32(self.decision.detector.exit))
                age = self.frozen.ood_score(made, prepared, states, claims)
            stale = bool((age > 1.0).any())
            ood_score = age if ood_score is None else np.maximum(ood_score, age)
        return self.decision.decide(
            made,
            probability,
            log_odds,
            env_rewards,
            terminated,
            ood_score=ood_score,
            stale=stale,
            observations=observations,
        )

    def check(self) -> None:
        """Raise OutputError, once, if a network gave NaN or infinity on a device."""
        self.classifier.check()

    def close(self) -> None:
        """Free the network."""
        self.classifier.close()

    def _predict(self, images: Array, mask: Array) -> Prediction:
        """Return the prediction, ``(num_envs,)``, zero where ``mask`` is False."""
        prediction = self.classifier.predict(images)
        if len(images) == self.num_envs:
            return prediction

        def spread(values: NDArray[np.float32]) -> NDArray[np.float32]:
            result = np.zeros(self.num_envs, np.float32)
            result[mask] = values
            return result

        probability, log_odds, ood_score = prediction
        spread_ood = None if ood_score is None else spread(ood_score)
        return Prediction(spread(probability), spread(log_odds), spread_ood)
