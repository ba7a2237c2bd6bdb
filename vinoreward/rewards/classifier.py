"""From images to the probability of success: a network, and what its outputs mean."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward.arrays import Array, Arrays
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import columns
from vinoreward.bundles.runner import Runner
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import OutputError
from vinoreward.rewards.decision import check_thresholds
from vinoreward.rewards.ood import OodDetector, guard_of

PARALLEL = 16
"""Images for each thread from which a batch is scored in several."""
PIECES = {"cpu": 64, "cuda": 1024}
"""Images that a device scores at once; a processor takes what its cache holds."""
# Smallest probability of a float32 softmax; the logarithm of 0 would be infinite.
_LEAST = float(np.finfo(np.float32).tiny)


class Prediction(NamedTuple):
    """What a classifier and its OOD detector say of N images: ``(N,)`` float32 each."""

    probability: Array
    """Calibrated, from 0 to 1; on a device NaN where the network gave no number."""
    log_odds: Array
    """``log(p / (1 - p))`` of the probability, exact where that rounds to 1."""
    ood_score: Array | None
    """Out of distribution above 1; None without a detector."""
    progress: Array | None = None
    """Towards success, from 0 to 1; None of a bundle that was trained without."""


class Classifier(Runner):
    """A bundle on a backend: calibrated probabilities of success for batches of images.

    It can be pickled: each process builds its own network, and runs the golden images, at the first
    image. With INT8 the FP32 network scores images close to the threshold again
    (``decision.int8_band``), and its answer counts. Closer still (``decision.translation_band``)
    scores are means over the image and its one-pixel translations: test-time augmentation.

    Args:
        bundle: a loaded bundle, the folder of one, or the name of an installed one.
        backend: ``"openvino"``, ``"torch"``, ``"onnxruntime"`` or another registered name.
        device: device name of that backend, e.g. ``"CPU"``.
        precision: ``"auto"`` (INT8 where the bundle's gate passed it), ``"fp32"``, ``"int8"``, …
            INT8 is checked for its decisions: for the numbers themselves ask for ``"fp32"``.
        threads: threads that one call may use: of one inference, or in a large batch each with a
            network of its own.
        threshold: probability from which success is claimed; ``None`` is the bundle's. Images
            around it are scored again, so give it here rather than compare with another number.
        exit_threshold: probability below which a claim ends, for hysteresis; likewise. ``None`` is
            the threshold.
        guarded: whether the bundle's OOD detector, if it has one, sees the images too.

    Raises:
        ConfigError: arguments that cannot work, or an encoder's bundle.
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
        super().__init__(
            bundle, backend=backend, device=device, precision=precision, threads=threads
        )
        self.guarded = guarded
        """Whether the OOD detector sees the images too."""
        own = self.bundle.spec.decision.threshold if threshold is None else threshold
        thresholds = check_thresholds(own, exit_threshold)
        self.threshold = thresholds[0]
        """Success is claimed where the probability is at least this (compared in float32)."""
        self.exit_threshold = thresholds[1]
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
        self._on_device: Any = None

    @cached_property
    def guard(self) -> OodDetector | None:
        """The bundle's OOD detector; None without one. BundleError if it is damaged."""
        return guard_of(self.bundle) if self.guarded else None

    def predict(self, images: Array) -> Prediction:
        """Return what network and OOD detector say of ``(N, H, W, 3)`` uint8 images.

        Tensors that :meth:`takes` are scored on their device, without waiting for it: where the
        network gives NaN or infinity the probability is NaN, and :meth:`check` tells. Errors as
        :meth:`probability`.
        """
        if self.takes(images):
            self.scored += len(images)
            return self._predict_on_device(images)
        prepared = self.prepared = self.prepare(images)
        if prepared is None:
            empty = np.zeros(0, np.float32)
            progress = None if self.bundle.spec.progress is None else empty
            return Prediction(empty, empty, None if self.guard is None else empty, progress)
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
            self._on_device[0].check("network", "they earned no success")

    def probability(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return the calibrated probability of success, ``(N,)`` float32.

        Args:
            images: ``(N, H, W, 3)`` uint8 RGB. The bundle says whether another size is resized.

        Raises:
            InputError: wrong shape, size or dtype.
            OutputError: the network returned what cannot be right.
        """
        prepared = self.prepare(images)
        if prepared is None:
            return np.zeros(0, np.float32)
        return sigmoid(self._log_odds(prepared)[0]).astype(np.float32)

    def compute_reward(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        """Return 1.0 where success is claimed and 0.0 elsewhere, ``(N,)`` float32.

        None is claimed of an image that is out of distribution.
        """
        prediction = self.predict(images)
        claimed = prediction.probability >= np.float32(self.threshold)
        if prediction.ood_score is not None:
            claimed &= prediction.ood_score <= 1.0
        return np.asarray(claimed.astype(np.float32))

    def close(self) -> None:
        """Free the networks; may be called more than once."""
        clones, self._clones, self._on_device = self._clones, [], None
        for one in clones:
            one.close()
        super().close()

    def __getstate__(self) -> dict[str, Any]:
        own: dict[str, Any] = {"prepared": None, "scored": 0, "second_looks": 0}
        return {**super().__getstate__(), **own, "_clones": [], "_on_device": None}

    def _predict(self, images: NDArray[np.uint8]) -> Prediction:
        odds, outputs = self._log_odds(images)
        ood_score = None if self.guard is None else self.guard.ood_score(images)
        progress = progress_of(outputs, self.bundle.spec)
        probability = sigmoid(odds).astype(np.float32)
        return Prediction(probability, odds.astype(np.float32), ood_score, progress)

    def _predict_in_threads(self, images: NDArray[np.uint8], threads: int) -> Prediction:
        """Score a part of a batch in each thread: two networks of one thread are faster than one of
        two threads."""
        _ = self.guard  # read once: clones share it
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
        joined = zip(*parts, strict=True)
        return Prediction(*(None if one[0] is None else np.concatenate(one) for one in joined))

    def _predict_on_device(self, images: Array) -> Prediction:
        import torch

        from vinoreward.backends.cuda_graph import FiniteCheck, Replayed, equal_pieces

        pieces = equal_pieces(len(images), PIECES[images.device.type])
        # A caller's inference mode can come and go.
        with torch.inference_mode(mode=False), torch.no_grad():
            if self._on_device is None:
                shape = pieces[0].stop, *images.shape[1:]
                self._on_device = FiniteCheck(images.device), Replayed[Any](shape)
            finite, replayed = self._on_device
            odds = torch.empty(len(images), dtype=torch.float64, device=images.device)
            ood_score = None if self.guard is None else torch.empty_like(odds, dtype=torch.float32)
            progress = None
            if self.bundle.spec.progress is not None:
                progress = torch.empty_like(odds, dtype=torch.float32)
            for piece in pieces:
                odds[piece], ood, done = replayed(self._score_on_device, images[piece])
                if ood_score is not None:
                    ood_score[piece] = ood
                if progress is not None:
                    progress[piece] = done
            # Infinity would be a sure success, and half precision overflows to it.
            sound = finite.of(odds if progress is None else odds + progress)
            probability = torch.sigmoid(odds).masked_fill(~sound, torch.nan)
            return Prediction(probability.float(), odds.float(), ood_score, progress)

    def _score_on_device(self, images: Array) -> tuple[Array, Array | None, Array | None]:
        """Return log-odds, OOD scores and progress of a piece; CUDA records and replays this."""
        network: Any = self.backend
        labels = len(self.bundle.spec.labels)
        ood_score = None if self.guard is None else self.guard.ood_score(images)
        outputs = network.module(images).double()
        scores = outputs[:, :labels]
        odds = self._odds(scores)
        if band := self.bundle.spec.decision.translation_band:
            distance = self._distance(odds)
            # Of hovering arms 5 % are within the band; to count them the host would have to wait.
            count = min(len(odds), max(64, len(odds) // 4))
            rows = distance.topk(count, largest=False).indices
            mean = self._translation_mean(
                lambda moved: network.module(moved).double()[:, :labels],
                images[rows],
                scores[rows],
            )
            odds[rows] = mean.where(distance[rows] < band, odds[rows])
        return odds, ood_score, progress_of(outputs, self.bundle.spec)

    def _log_odds(
        self, images: NDArray[np.uint8]
    ) -> tuple[NDArray[np.float64], NDArray[np.float32]]:
        """Return log-odds ``(N,)``, and what the first network gave, ``(N, columns)``."""
        spec = self.bundle.spec
        first, *again = self.backends
        outputs = first.infer_prepared(images)
        scores = scores_of(outputs, spec)
        odds = self._odds(scores)
        self.scored += len(odds)
        exact = first
        if again and self.band is not None:
            exact = again[0]
            rows = np.flatnonzero(self._distance(odds) < self.band)
            if len(rows):
                scores[rows] = scores_of(exact.infer_prepared(images[rows]), spec)
                odds[rows] = self._odds(scores[rows])
                self.second_looks += len(rows)
        if spec.decision.translation_band:
            rows = np.flatnonzero(self._distance(odds) < spec.decision.translation_band)
            if len(rows):
                odds[rows] = self._translation_mean(
                    lambda moved: scores_of(exact.infer_prepared(moved), spec),
                    images[rows],
                    scores[rows],
                )
        return np.asarray(odds), outputs

    def _translation_mean(
        self, score: Callable[[Array], Array], images: Array, scores: Array
    ) -> Array:
        """Return log-odds of mean scores over images and both their one-pixel translations."""
        _, left, right = translations(images)
        moved = score(Arrays.like(images).xp.concatenate([left, right]))
        return self._odds((scores + moved[: len(images)] + moved[len(images) :]) / 3)

    def _distance(self, odds: Array) -> Array:
        return threshold_distance(odds, *map(logit, {self.threshold, self.exit_threshold}))

    def _odds(self, scores: Array) -> Array:
        spec = self.bundle.spec
        return log_odds(scores, spec.success_index, spec.decision.temperature)


def translations(images: Array) -> tuple[Array, Array, Array]:
    """Return images (N, H, W, 3) as they are, moved by a pixel to the left, and to the right.

    The mean over them depends less on where edges lie between pixels (Zhang 2019, "Making
    convolutional networks shift-invariant again"). Sideways only: views lie below each other.
    """
    join = Arrays.like(images).xp.concatenate
    left = join([images[:, :, 1:], images[:, :, -1:]], 2)
    right = join([images[:, :, :1], images[:, :, :-1]], 2)
    return images, left, right


def scores_of(outputs: NDArray[np.float32], spec: BundleSpec) -> NDArray[np.float64]:
    """Return a network's outputs as logits ``(N, K)``, one column per label.

    OutputError if the bundle says that they are probabilities, and they are not.
    """
    values = columns(outputs, spec)
    if spec.output in ("logits", "logit"):
        return values
    if values.min() < -1e-4 or np.abs(values.sum(axis=1) - 1.0).max() > 1e-2:
        logits = "logit" if spec.output == "probability" else "logits"
        raise OutputError(
            f"the network returned {outputs[0].round(4).tolist()} as {spec.output}. Expected "
            f"numbers from 0 that sum to 1; if it returns {logits}, say output={logits!r} in the "
            "bundle."
        )
    return np.asarray(np.log(np.clip(values, _LEAST, 1.0)))


def progress_of(outputs: Array, spec: BundleSpec) -> Array | None:
    """Return the progress in a network's outputs, ``(N,)`` float32; None if it gives none."""
    if spec.progress is None:
        return None
    arrays = Arrays.like(outputs)
    progress = spec.progress.scale * arrays.cast(outputs[:, -1], "float32") + spec.progress.offset
    return arrays.xp.clip(progress, 0.0, 1.0)


def log_odds(logits: Array, success: int, temperature: float = 1.0) -> Array:
    """Return ``log p(success) - log p(not success)`` of the softmax of ``logits / temperature``.

    ``logits`` are ``(N, K)`` float64 with K at least 2, ``success`` is a column; the result is
    ``(N,)``.
    """
    scaled = logits / temperature
    others = [scaled[:, label] for label in range(scaled.shape[1]) if label != success]
    return scaled[:, success] - functools.reduce(Arrays.like(logits).xp.logaddexp, others)


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ``1 / (1 + exp(-x))`` without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, small) / (1.0 + small)


def threshold_distance(log_odds: Array, *thresholds: float) -> Array:
    """Return how far ``(N,)`` log-odds are from the nearest threshold, itself in log-odds.

    An image is scored again where this is less than the band.
    """
    minimum = Arrays.like(log_odds).xp.minimum
    return functools.reduce(minimum, [abs(log_odds - threshold) for threshold in thresholds])


def logit(probability: float) -> float:
    """Return ``log(p / (1 - p))``; minus and plus infinity for 0 and 1."""
    if 0.0 < probability < 1.0:
        return math.log(probability) - math.log1p(-probability)
    return math.inf if probability >= 1.0 else -math.inf
