"""From images to the probability of success."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, is_tensor
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.runner import Runner
from vinoreward.errors import ConfigError, ImageMismatchError, InputError
from vinoreward.images import in_color, layout_of
from vinoreward.rewards.ood import OodDetector, guard_of
from vinoreward.rewards.prediction import (
    Prediction,
    log_odds,
    logit,
    scores_of,
    shifts_of,
    sigmoid,
    unsure,
)

if TYPE_CHECKING:
    from vinoreward.rewards.on_device import DeviceClassifier

RewardKind = Literal["claim", "probability", "log_odds"]

PARALLEL = 16
"""Images for each thread from which a batch is scored in several."""


class Classifier(Runner):
    """A bundle on a backend: calibrated probabilities of success for batches of images.

    It can be pickled: each process builds its own network at the first image, and runs the
    bundle's golden images then.

    With INT8 the bundle's FP32 network scores images close to the threshold again
    (``decision.int8_band``), and its answer counts. :attr:`scored` and :attr:`second_looks` count
    both in this process. Closer still (``decision.translation_band``) scores are means over the
    image and its one-pixel translations: test-time augmentation.

    Args:
        bundle: a loaded bundle, the folder of one, or the name of an installed one.
        backend: ``"openvino"``, ``"torch"``, ``"onnxruntime"`` or another registered name.
        device: device name of that backend, e.g. ``"CPU"``.
        precision: ``"auto"`` (INT8 where the bundle's gate passed it), ``"fp32"``, ``"int8"``, …
            INT8 is checked for its decisions: if you use the numbers themselves, ask for
            ``"fp32"``.
        threads: threads that one call may use: of one inference, or in a large batch each with a
            network of its own.
        threshold: probability from which success is claimed; ``None`` is the bundle's. Second
            looks are around it, so give it here rather than compare with another number.
        exit_threshold: probability below which a claim ends, for hysteresis; second looks are
            around it too. ``None`` is the threshold.
        guarded: whether the bundle's OOD detector, if it has one, sees the images too.

    Raises:
        ConfigError: the bundle is an encoder's, the backend cannot do what is asked, or a
            threshold is no probability, or the exit's is above the other.
        ModelNotFoundError: there is no such bundle.
    """

    kind = "classifier"

    def __init__(
        self,
        bundle: Bundle | str | Path,
        *,
        backend: str = "openvino",
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
        threshold: float | None = None,
        exit_threshold: float | None = None,
        guarded: bool = True,
    ) -> None:
        self.guarded = guarded
        """Whether the OOD detector sees the images too."""
        self._auto = precision == "auto"
        super().__init__(
            bundle, backend=backend, device=device, precision=precision, threads=threads
        )
        decision = self.bundle.spec.decision
        if threshold is not None and not 0.0 <= threshold <= 1.0:
            raise ConfigError(
                f"the threshold is {threshold}. Expected a probability from 0 to 1, or None for the"
                " bundle's."
            )
        self.threshold: float = decision.threshold if threshold is None else float(threshold)
        """Success is claimed where the probability is at least this (compared in float32)."""
        if exit_threshold is not None and not 0.0 <= exit_threshold <= self.threshold:
            raise ConfigError(
                f"the exit threshold is {exit_threshold}. Expected 0 to {self.threshold:g}, the "
                "threshold: success cannot be harder to keep than to enter."
            )
        self.exit_threshold = self.threshold if exit_threshold is None else float(exit_threshold)
        """Success that is claimed goes on while the probability is at least this."""
        self.prepared: NDArray[np.uint8] | None = None
        """Images of the last :meth:`predict`, as the network got them; None if there were none."""
        self.scored = 0
        """Images scored in this process."""
        self.second_looks = 0
        """Those of them that the FP32 network scored again."""
        self.busy_cores = 0
        """Cores that someone else computes on: so many threads fewer are used in a batch."""
        self._clones: list[Classifier] = []
        self._on_device: DeviceClassifier | None = None

    @cached_property
    def guard(self) -> OodDetector | None:
        """The bundle's OOD detector; None if it has none, or is not used. BundleError if
        damaged."""
        return guard_of(self.bundle) if self.guarded else None

    def predict(self, images: Array) -> Prediction:
        """Return what network and OOD detector say of ``(N, H, W, 3)`` uint8 images.

        Tensors that :meth:`takes` are scored on their device, without waiting for it: see
        :class:`~vinoreward.rewards.on_device.DeviceClassifier`. Errors as :meth:`probability`.
        """
        if is_tensor(images):
            self.scored += len(images)
            return self._device().predict(images)
        prepared = self.prepared = self.prepare(images)
        if prepared is None:
            empty = np.zeros(0, np.float32)
            return Prediction(empty, empty, None if self.guard is None else empty)
        threads = max(1, self.threads - self.busy_cores)
        if threads > 1 and len(prepared) >= threads * PARALLEL:
            return self._predict_in_threads(prepared, threads)
        return self._predict(prepared)

    def takes(self, images: object) -> bool:
        """Return whether images are tensors that can be scored where they are."""
        logits = self.bundle.spec.output == "logits"
        return logits and not self.image.views and super().takes(images)

    def check(self) -> None:
        """Raise OutputError, once, if the network gave NaN or infinity on a device."""
        if self._on_device is not None:
            self._on_device.check()

    def probability(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the calibrated probability of success.

        Args:
            images: ``(N, H, W, 3)`` uint8 RGB. The bundle says whether another size is resized.

        Returns:
            ``(N,)`` float32 from 0 to 1.

        Raises:
            InputError: wrong shape, size or dtype.
            OutputError: the network returned what cannot be right.
        """
        return sigmoid(self._log_odds(images)).astype(np.float32)

    def log_odds(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return ``log(p / (1 - p))`` of the calibrated probability, exact where p rounds to 1.

        ``(N,)`` float32, finite; images and errors are as for :meth:`probability`.
        """
        return self._log_odds(images).astype(np.float32)

    def compute_reward(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return 1.0 where success is claimed and 0.0 elsewhere, ``(N,)`` float32.

        None is claimed of an image that is out of distribution.
        """
        prediction = self.predict(images)
        claimed = prediction.probability >= np.float32(self.threshold)
        if prediction.ood_score is not None:
            claimed &= prediction.ood_score <= 1.0
        return np.asarray(claimed.astype(np.float32))

    def as_reward_fn(self, reward: RewardKind = "claim") -> Callable[..., NDArray[np.float32]]:
        """Return the reward function that the ``imitation`` library calls; it can be pickled.

        It takes ``state, action, next_state, done`` by position or by name and scores
        ``next_state``: ``(N, H, W, 3)`` or ``(N, 3, H, W)`` uint8. The reward is ``"claim"`` (1 or
        0), ``"probability"`` or ``"log_odds"``. For the last two ``precision="auto"`` means FP32,
        in a classifier of its own: INT8 is checked for its decisions at the threshold only.
        """
        if reward == "claim" or not self._auto or self.precision == "fp32":
            return _RewardFunction(self, reward)
        exact = Classifier(
            self.bundle,
            backend=self.backend_name,
            device=self.device,
            precision="fp32",
            threads=self.threads,
            threshold=self.threshold,
            exit_threshold=self.exit_threshold,
            guarded=self.guarded,
        )
        return _RewardFunction(exact, reward)

    def close(self) -> None:
        """Free the networks; may be called more than once."""
        clones, self._clones, self._on_device = self._clones, [], None
        for one in clones:
            one.close()
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {
            "prepared": None,
            "scored": 0,
            "second_looks": 0,
            "_clones": [],
            "_on_device": None,
        }
        return {**super().__getstate__(), **own}

    def _device(self) -> DeviceClassifier:
        if self._on_device is None:
            from vinoreward.rewards.on_device import DeviceClassifier

            thresholds = self.threshold, self.exit_threshold
            spec = self.bundle.spec
            self._on_device = DeviceClassifier(self.backend, spec, thresholds, self.guard)
        return self._on_device

    def _predict(self, images: NDArray[np.uint8]) -> Prediction:
        odds = self._log_odds_of(images)
        ood_score = None if self.guard is None else self.guard.ood_score(images)
        return Prediction(sigmoid(odds).astype(np.float32), odds.astype(np.float32), ood_score)

    def _predict_in_threads(self, images: NDArray[np.uint8], threads: int) -> Prediction:
        """Score a part of a batch in each thread, with networks of its own.

        The networks leave Python's lock alone, and two of one thread each are faster than one of
        two.
        """
        while len(self._clones) < threads:
            clone = (self._clones or [self])[0].clone()
            clone.threads = 1
            self._clones.append(clone)
        clones = self._clones[:threads]
        with ThreadPoolExecutor(threads, thread_name_prefix="vinoreward-scores") as pool:
            parts = list(pool.map(Classifier._predict, clones, np.array_split(images, threads)))
        for clone in clones:
            self.scored += clone.scored
            self.second_looks += clone.second_looks
            clone.scored = clone.second_looks = 0
        ood_score: Any = [part.ood_score for part in parts]
        ood_score = None if ood_score[0] is None else np.concatenate(ood_score)
        probability = np.concatenate([part.probability for part in parts])
        return Prediction(probability, np.concatenate([part.log_odds for part in parts]), ood_score)

    def _log_odds(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        prepared = self.prepare(images)
        return np.zeros(0) if prepared is None else self._log_odds_of(prepared)

    def _log_odds_of(self, images: NDArray[np.uint8]) -> NDArray[np.float64]:
        spec = self.bundle.spec
        first, *again = self.backends
        scores = scores_of(first.infer_prepared(images), spec)
        odds = self._odds(scores)
        self.scored += len(odds)
        exact = first
        if again and self.band is not None:
            exact = again[0]
            rows = self._near(odds, self.band)
            if len(rows):
                scores[rows] = scores_of(exact.infer_prepared(images[rows]), spec)
                odds[rows] = self._odds(scores[rows])
                self.second_looks += len(rows)
        if translation_band := spec.decision.translation_band:
            rows = self._near(odds, translation_band)
            if len(rows):
                moved = exact.infer_prepared(np.concatenate(shifts_of(images[rows])[1:]))
                left, right = np.split(scores_of(moved, spec), 2)
                odds[rows] = self._odds((scores[rows] + left + right) / 3)
        return odds

    def _near(self, odds: NDArray[np.float64], band: float) -> NDArray[np.intp]:
        """Return the rows whose log-odds are within a band of a threshold."""
        near = unsure(odds, logit(self.threshold), band)
        if self.exit_threshold < self.threshold:
            near |= unsure(odds, logit(self.exit_threshold), band)
        return np.flatnonzero(near)

    def _odds(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        spec = self.bundle.spec
        return log_odds(scores, spec.success_index, spec.decision.temperature)


_METHODS = {"claim": "compute_reward", "probability": "probability", "log_odds": "log_odds"}


class _RewardFunction:
    """``imitation``'s calling convention; a class so that it can be pickled."""

    def __init__(self, classifier: Classifier, reward: RewardKind) -> None:
        if reward not in tuple(_METHODS):
            raise ConfigError(
                f"as_reward_fn was asked for {reward!r}. Expected 'claim', 'probability' or "
                "'log_odds'."
            )
        self.classifier = classifier
        self.reward = reward

    def __call__(
        self, state: object, action: object, next_state: NDArray[Any], done: object
    ) -> NDArray[np.float32]:
        if not isinstance(next_state, np.ndarray) or next_state.ndim != 4:
            raise InputError(
                f"next_state has shape {np.shape(next_state)}. Expected images, (N, H, W, 3) or "
                "(N, 3, H, W) uint8; the reward function scores image observations only."
            )
        images = in_color(next_state, layout_of(next_state.shape[1:], "next_state"))
        rewards: NDArray[np.float32] = getattr(self.classifier, _METHODS[self.reward])(images)
        return rewards


def warn_uncalibrated(bundle: Bundle) -> None:
    """Warn of a threshold that nobody chose for an error rate."""
    decision = bundle.spec.decision
    if not decision.chosen_for:
        warnings.warn(
            f"the bundle {bundle.spec.name!r} is not calibrated: its threshold of "
            f"{decision.threshold:g} was chosen for no false-positive rate. Choose one on labelled "
            "images with vinoreward calibrate, or give success_threshold.",
            UserWarning,
            stacklevel=4,
        )


def check_origin(bundle: Bundle) -> None:
    """Raise ImageMismatchError if a bundle does not say what drew its training images.

    Otherwise a policy could be claimed to succeed always and never do so.
    """
    if not bundle.spec.image.scene:
        raise ImageMismatchError(
            f"the bundle {bundle.spec.name!r} does not say what drew the images it was trained "
            "on. Expected one trained on this scene's (vinoreward capture, then finetune), as its "
            "probabilities hold for no other image; for the environment of your own images "
            "name that, with --env and --wrap-bundle, or accept such a bundle here with "
            "accept_foreign_images=True (--accept-foreign-images)."
        )
