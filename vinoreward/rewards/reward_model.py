"""From images to rewards: a classifier, its OOD detector, the decision and what it pays."""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, ImageMismatchError, InputError, OutOfDistributionError
from vinoreward.rewards.classifier import Classifier, Prediction
from vinoreward.rewards.decision import (
    SHAPED,
    WITHHELD,
    RewardOptions,
    Scores,
    SuccessDetector,
    withhold,
)
from vinoreward.rewards.frozen import FrozenCheck
from vinoreward.rewards.judge import ABSTAINED, Judge


class RewardModel:
    """Scores the images of N environments and turns them into rewards.

    Arrays are NumPy's, or torch tensors on one device after :meth:`use`. On a device nothing waits
    for it: an image that cannot be scored earns no success, and :meth:`check` raises afterwards; on
    the host :meth:`score` raises.

    Example::

        model = RewardModel("panda-hover-classifier", RewardOptions(), num_envs=4)
        model.reset(np.ones(4, bool))
        scores = model.score(images)  # (4, H, W, 3) uint8
        scores.rewards, scores.claimed

    Args:
        bundle: a loaded classifier bundle, its folder, the name of an installed one, or a
            :class:`~vinoreward.Judge`, for which all from ``precision`` on means nothing.
        options: what is paid for, and when an image counts.
        num_envs: N.
        precision: as all that follow, for :class:`~vinoreward.Classifier`; but ``"auto"`` means
            FP32 where the reward is not sparse, as INT8 is checked for its decisions at the
            threshold only.

    Raises:
        ConfigError: arguments that cannot work, or progress asked of what was not trained for it.
        ModelNotFoundError: no such bundle.
    """

    def __init__(
        self,
        bundle: Bundle | str | Path | Judge,
        options: RewardOptions,
        num_envs: int = 1,
        *,
        precision: str = "auto",
        backend: str = "openvino",
        device: str = "CPU",
        threads: int = 1,
    ) -> None:
        guarded, sparse = options.on_ood != "ignore", options.reward_mode == "sparse"
        enter, leave = options.success_threshold, options.success_exit_threshold
        self.classifier: Classifier | Judge
        if isinstance(bundle, Judge):
            leave = bundle.exit_threshold if enter is None and leave is None else leave
            enter = bundle.threshold if enter is None else enter
            self.classifier = replace(bundle, threshold=enter, exit_threshold=leave)  # type: ignore[arg-type]
        else:
            self.classifier = Classifier(
                bundle,
                backend=backend,
                device=device,
                precision="fp32" if precision == "auto" and not sparse else precision,
                threads=threads,
                threshold=enter,
                exit_threshold=leave,
                guarded=guarded,
            )
        """What scores the images. It loads at the first one."""
        if options.reward_mode == "progress":
            _check_progress(self.classifier)
        self.options = options
        self.num_envs = num_envs
        self.needs_first_images = options.reward_mode in SHAPED
        """Whether :meth:`reset` scores the first images of episodes."""
        self.frozen: FrozenCheck | None = None
        """Finds images that are older than the environment's state; None: nothing looks for it."""
        self.paused = False
        """Whether every image counts as one that is out of distribution and withheld."""
        self._warned = False
        self.use(Arrays())

    def use(self, arrays: Arrays) -> None:
        """Take and return arrays of this library and device from now on; forget all state."""
        self.arrays = arrays
        self.detector = SuccessDetector(
            self.classifier.threshold,
            self.classifier.exit_threshold,
            self.options.success_hold_steps,
            self.options.success_filter,
            self.num_envs,
            arrays,
        )
        self._all_envs = arrays.full(self.num_envs, True, "bool")
        self._zeros = arrays.full(self.num_envs, 0.0, "float64")
        self._potential = self._returns = self._zeros
        self._lengths = arrays.full(self.num_envs, 0, "int64")
        self._began = self._zeros + time.perf_counter()

    def stays_on(self, images: object) -> bool:
        """Return whether images are tensors that can be scored without waiting for their device."""
        return not self.options.host_only and self.classifier.takes(images)

    def reset(self, mask: Array | None = None, images: Array | None = None) -> None:
        """Start episodes where ``mask``, ``(num_envs,)`` bool, is True; None: everywhere.

        ``images`` are their first ones, as for :meth:`score`; only a potential needs them.
        """
        mask = self._all_envs if mask is None else mask
        if self.frozen is not None:
            self.frozen.begin(np.asarray(mask))
        first = self._zeros
        if images is not None and self.needs_first_images:
            seen = self._predict(images, mask)
            first = self._potential_of(seen, self._ood_mask(mask, seen.probability, seen.ood_score))
        self.detector.reset(mask)
        where = self.arrays.xp.where
        self._potential = where(mask, first, self._potential)
        self._returns = where(mask, 0.0, self._returns)
        self._lengths = where(mask, 0, self._lengths)
        self._began = where(mask, time.perf_counter(), self._began)

    def score(
        self,
        images: Array,
        env_rewards: Array | None = None,
        terminated: Array | None = None,
        mask: Array | None = None,
        *,
        observations: Sequence[Any] | None = None,
        states: NDArray[np.float64] | None = None,
    ) -> Scores:
        """Score the images that transitions ended with.

        Args:
            images: ``(n, H, W, 3)`` uint8, of the environments where ``mask`` is True, in order;
                on a device ``(num_envs, H, W, 3)``.
            env_rewards: ``(num_envs,)`` the environment's own; ``terminated`` likewise; or None.
            mask: ``(num_envs,)`` bool, the environments that made a transition; None: all.
            observations: one per environment, for the success filter.
            states: ``(num_envs, D)`` the numbers of all observations, for the frozen-camera check.

        Raises:
            InputError: images of another shape or dtype, or a reward that is needed and not finite.
            OutputError: the network returned NaN or infinity; on a device see :meth:`check`.
            OutOfDistributionError: an image is out of distribution, with ``on_ood="raise"``.
        """
        mask = self._all_envs if mask is None else mask
        env_rewards = self._zeros if env_rewards is None else env_rewards
        terminated = self._zeros if terminated is None else terminated
        seen = self._predict(images, mask)
        probability, ood_score, age = seen.probability, seen.ood_score, None
        if self.frozen is not None and states is not None:
            age = np.zeros(self.num_envs, np.float32)
            if self.classifier.prepared is not None:
                claims = mask & (probability >= np.float32(self.classifier.exit_threshold))
                age = self.frozen.ood_score(
                    np.asarray(mask), self.classifier.prepared, states, claims
                )
            ood_score = age if ood_score is None else np.maximum(ood_score, age)
        ood_mask = self._ood_mask(mask, probability, ood_score, age)
        counted = withhold(probability, ood_mask, "probability")
        claimed = self.detector.update(counted, mask, observations, ood_mask)
        where, ended = self.arrays.xp.where, self.arrays.cast(terminated, "bool")
        if self.options.terminate_on_success:
            ended = ended | claimed
        if self.options.reward_mode == "log_odds":
            counted = withhold(seen.log_odds, ood_mask, "log_odds")
        elif self.options.reward_mode in SHAPED:
            counted = self._potential_of(seen, ood_mask)
        rewards = self._learned_rewards(counted, mask, claimed, ended)
        rewards = where(mask, rewards + self._own_rewards(env_rewards, mask, claimed), 0.0)
        self._returns = self._returns + rewards
        self._lengths = self._lengths + mask
        return Scores(
            rewards=rewards,
            claimed=claimed,
            terminated=ended & mask,
            probability=where(mask, self.arrays.cast(probability, "float32"), 0.0),
            returns=self._returns,
            lengths=self._lengths,
            seconds=time.perf_counter() - self._began,
            ood_score=None if ood_score is None else where(mask, ood_score, 0.0),
            progress=None if seen.progress is None else where(mask, seen.progress, 0.0),
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

        def spread(values: Array | None) -> Array | None:
            if values is None:
                return None
            row = np.zeros(self.num_envs, np.float32)
            row[mask] = values
            return row

        return Prediction(*map(spread, prediction))

    def _potential_of(self, seen: Prediction, ood_mask: Array | None) -> Array:
        """Return the potential of images, ``(num_envs,)`` float64; 0 where they do not count.

        Progress is paid in units of a success, so that reaching it earns as much as claiming it.
        """
        options = self.options
        if options.reward_mode == "potential":
            return self.arrays.cast(withhold(seen.probability, ood_mask, "probability"), "float64")
        progress = self.arrays.cast(withhold(seen.progress, ood_mask, "probability"), "float64")
        return options.success_reward * progress

    def _ood_mask(
        self, mask: Array, probability: Array, ood_score: Array | None, age: Array | None = None
    ) -> Array | None:
        """Return which images must not count, ``(num_envs,)`` bool; None: all may.

        ``age`` is the part of ``ood_score`` that images have which are older than their state.
        Warns once, or raises OutOfDistributionError, if the options say so.
        """
        on_ood, on_host = self.options.on_ood, self.arrays.on_host
        if self.paused:
            return self._all_envs
        broken = None if on_host else self.arrays.xp.isnan(probability)  # the host has raised
        if ood_score is None or on_ood == "ignore":
            return broken
        out = mask & (ood_score > 1.0)
        if broken is not None:
            return out | broken
        if not out.any():
            return None
        if on_ood == "withhold":
            return out
        found = (
            "an image shows less change than the observation: in whole or in part it is of an "
            "earlier step. Expected the camera's present one; look at the camera, or give "
            "frozen_check=False if observations change that no image shows"
            if age is not None and (age[out] > 1.0).all()
            else "the judge abstained from an image. Expected a score of each; correct the judge"
            if (ood_score[out] == ABSTAINED).all()
            else "an image is unlike those that the classifier was trained on: "
            f"{ood_score.max():.2g} times the limit of its OOD detector. Expected the camera, "
            "light and place of the training; look at it, and finetune again if it is right"
        )
        if on_ood == "raise":
            self.detector.reset(out)  # as an image that does not count
            raise OutOfDistributionError(f"{found}, or give on_ood='withhold'.")
        if not self._warned:
            self._warned = True
            warnings.warn(f"{found}. Its claims count all the same.", stacklevel=4)
        return None

    def _learned_rewards(self, counted: Array, mask: Array, claimed: Array, ended: Array) -> Array:
        """Return what images earn, ``(num_envs,)`` float64; ``counted`` is their probability, or
        the log-odds or potential that is paid."""
        options, where = self.options, self.arrays.xp.where
        counted = self.arrays.cast(counted, "float64")
        if options.reward_mode in WITHHELD:
            return counted
        rewards = where(claimed, options.success_reward, self._zeros + options.step_reward)
        if options.reward_mode in SHAPED:
            # An absorbing state has potential 0, else the optimal policy may change; a truncated
            # episode has not ended, its last state keeps its potential.
            following = where(ended, 0.0, counted)
            rewards = rewards + (options.gamma * following - self._potential)
            self._potential = where(mask, following, self._potential)
        return rewards

    def _own_rewards(self, env_rewards: Array, mask: Array, claimed: Array) -> Array:
        """Return what the environment's own rewards add, ``(num_envs,)`` float64."""
        weight, where = self.options.env_reward_weight, self.arrays.xp.where
        if not weight:  # else it may be anything, NaN too
            return 0.0
        own = weight * self.arrays.cast(env_rewards, "float64")
        if self.arrays.on_host and not np.isfinite(own[mask]).all():
            raise InputError(
                f"the environment gave the rewards {own[mask] / weight}. Expected finite numbers "
                f"(None is none), as env_reward_weight is {weight:g}; set that to 0, or fix the "
                "environment."
            )
        return where(claimed, 0.0, own) if self.options.success_replaces_env_reward else own


def _check_progress(classifier: Classifier | Judge) -> None:
    if isinstance(classifier, Judge) or classifier.bundle.spec.progress is None:
        whose = classifier if isinstance(classifier, Judge) else classifier.bundle.spec
        raise ConfigError(
            f"reward_mode='progress' was asked of {whose.name!r}, which says nothing of progress. "
            "Expected a bundle that was trained for it: vinoreward finetune --progress; or "
            "reward_mode='potential', whose potential is the probability of success."
        )


def warn_uncalibrated(bundle: Bundle) -> None:
    """Warn of a threshold that nobody chose for an error rate."""
    decision = bundle.spec.decision
    if not decision.chosen_for:
        warnings.warn(
            f"the bundle {bundle.spec.name!r} is not calibrated: its threshold of "
            f"{decision.threshold:g} was chosen for no false-positive rate. Choose one on labelled "
            "images with vinoreward calibrate, or give success_threshold.",
            stacklevel=4,
        )


def check_origin(bundle: Bundle) -> None:
    """Raise ImageMismatchError if a bundle does not say what drew its training images.

    Otherwise a policy could be claimed to succeed always and never do so.
    """
    if not bundle.spec.image.scene:
        raise ImageMismatchError(
            f"the bundle {bundle.spec.name!r} does not say what drew the images it was trained "
            "on. Expected one trained on this scene's (vinoreward capture, then finetune), or "
            "another environment (`env`); accept such a bundle with `accept_foreign_images=True`."
        )
