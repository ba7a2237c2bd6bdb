"""The loop beside a camera: take an image, score it, tell, show, and do what keys say."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward.images import as_batch, as_image
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.reward_model import RewardModel
from vinoreward_training.watch.cameras import Camera, Image
from vinoreward_training.watch.clicks import Clicks
from vinoreward_training.watch.feed import Arrival, Feed
from vinoreward_training.watch.learner import Learner
from vinoreward_training.watch.repeats import SECONDS, RepeatCheck

LATENCIES = 4096
"""Of the last images, from which the percentiles are."""
SHOWN_HZ = 15.0
"""Images shown per second, at most: to draw takes time from scoring."""
STALL_SECONDS = 1.0
"""Without an image, after which the camera is said to stall."""


@dataclass
class Status:
    """What a session knows: of the last image, and of all so far."""

    image: Image
    """``(H, W, 3)`` uint8 RGB, as the camera gave it."""
    episode: int
    number: int = 0
    """Of the image in its episode, from 1."""
    probability: float | None = None
    """None: not scored."""
    claimed: bool = False
    ood_score: float | None = None
    """Above 1: out of distribution; None: without a detector."""
    progress: float | None = None
    """From 0 to 1; None: the bundle knows none."""
    false_positives: str = ""
    """The rate that the bundle promises, or the labels support, in words."""
    images: int = 0
    scored: int = 0
    unscored: int = 0
    claims: int = 0
    """Successes claimed: runs of images, not images."""
    out_of_distribution: int = 0
    p50: float = 0.0
    """Milliseconds from an image's arrival to its claim; of the last ``LATENCIES``, as ``p99``."""
    p99: float = 0.0
    missed: int = 0
    """Images whose claim came later than the next image was due."""
    dropped: int = 0
    """Images that the camera left out, or that nobody took in time."""
    repeated: int = 0
    """Images that were the same as the one before, bit for bit."""
    labels: tuple[int, int] = (0, 0)
    """Successes and failures in the dataset."""
    note: str = ""

    @property
    def is_odd(self) -> bool:
        """Whether the image is out of distribution."""
        return self.ood_score is not None and self.ood_score > 1.0

    def lines(self) -> list[str]:
        """Return a summary."""
        return [
            f"{self.images} images, {self.scored} scored, {self.unscored} could not be; "
            f"{self.claims} successes claimed, {self.out_of_distribution} images out of "
            "distribution.",
            f"latency p50 {self.p50:.1f} ms, p99 {self.p99:.1f} ms; {self.missed} deadlines "
            f"missed, {self.dropped} images dropped, {self.repeated} repeated.",
        ]


def watch(
    camera: Camera,
    model: RewardModel | None = None,
    *,
    hz: float | None = None,
    clicks: Clicks | None = None,
    learner: Learner | None = None,
    keys: Callable[[], str] = str,
    on_claim: Callable[[float, float], object] | None = None,
    show: Callable[[Status], object] = str,
    say: Callable[[str], object] = print,
) -> Status:
    """Score a camera's images until they end, ``q`` is pressed, or Ctrl-C; return the summary.

    What a camera does wrong is said, and does not end the session.

    Args:
        camera: see :func:`~vinoreward_training.watch.cameras.open_camera`.
        model: of one environment; None: images are shown and labelled only.
        hz: deadlines per second: an image is late when its claim takes longer. Default: the
            camera's rate.
        clicks: where labels go; None: keys label nothing.
        learner: makes a model of these labels after each one, which scores in place of ``model``.
        keys: returns the keys pressed since it was last called: ``s`` and ``f`` label the image
            that was shown last, ``u`` takes the last label back, ``n`` begins an episode, ``q``
            ends.
        on_claim: called where a claim begins, with the time of its image in seconds since 1970
            (UTC) and the probability; the next image waits for it.
        show: called with the status, ``SHOWN_HZ`` times a second at most.
        say: called with each sentence.

    Raises:
        VinorewardError: the first image cannot be scored, a video is damaged, or a label cannot be
            written.
    """
    session = _Session(model, 1 / (hz or camera.hz), clicks, learner, say)
    try:
        with Feed(camera) as feed:
            while "q" not in (pressed := keys()):
                for key in pressed:
                    session.press(key)
                if (arrival := feed.take(0.1)) is None:
                    session.wait(camera.live)
                elif session.take(arrival) and on_claim is not None:
                    waited = time.perf_counter() - arrival.at
                    on_claim(time.time() - waited, session.status.probability or 0.0)
                if (status := session.to_show()) is not None:
                    show(status)
    except EOFError:
        if camera.live:
            say("the camera gives no more images: look at its cable, or start it again")
    except KeyboardInterrupt:
        pass
    return session.summary()


class _Session:
    """The state of a session; one method for each thing that happens."""

    def __init__(
        self,
        model: RewardModel | None,
        deadline: float,
        clicks: Clicks | None,
        learner: Learner | None,
        say: Callable[[str], object],
    ) -> None:
        self._model, self._learner = model, learner
        self._deadline, self._clicks, self._print = deadline, clicks, say
        self._repeats = RepeatCheck()
        self._latencies = np.zeros(LATENCIES)
        self._last = time.perf_counter()
        self._said: dict[str, float] = {"": -np.inf}
        self._on_screen: Status | None = None
        self._shown_at = -np.inf
        nothing: Image = np.zeros((1, 1, 3), np.uint8)
        self.status = Status(nothing, 0 if clicks is None else clicks.first_episode)
        if clicks is not None:
            self.status.labels = clicks.counts
        if model is not None:
            self.status.false_positives = promised_rate(model)
            if isinstance(model.classifier, Classifier):  # loaded before an image waits
                _ = model.classifier.backends, model.classifier.guard
        self._begin()

    def _begin(self) -> None:
        """Score from here on by the model, that of the present labels where it learns."""
        if self._learner is not None:
            begun = time.perf_counter()
            self._model = self._learner.fit()
            self.status.false_positives = self._learner.rate
            self._print(f"{self._learner.rate} (fitted in {time.perf_counter() - begun:.1f} s)")
        if self._model is not None:
            self._model.frozen = self._repeats
            self._model.reset()

    def press(self, key: str) -> None:
        """Do what a key says; others do nothing."""
        status, clicks = self.status, self._clicks
        if key == "n":
            status.episode, status.number, status.claimed = status.episode + 1, 0, False
            if self._model is not None:
                self._model.reset()
            self._say(f"episode {status.episode}")
        elif key in ("s", "f", "u") and clicks is not None:
            shown, done = self._on_screen, "there is no image to label yet"
            if key == "u":
                done = clicks.undo()
            elif shown is not None:
                done = clicks.add(shown.image, key == "s", shown.episode, shown.number)
            if self._learner is not None:
                self._begin()
            status.labels = clicks.counts
            self._say(f"{done}; {status.labels[0]} + {status.labels[1]} in {clicks.folder}")
        self._shown_at = -np.inf

    def wait(self, live: bool) -> None:
        """Note that no image came for a while; a file may take its time."""
        if (silent := time.perf_counter() - self._last) >= STALL_SECONDS and live:
            self._say(f"the camera stalls: no image for {silent:.1f} s", "stall")
            self.status.probability, self.status.claimed = None, False

    def take(self, arrival: Arrival) -> bool:
        """Score an image; return whether success is claimed from it on."""
        status, before = self.status, self.status.claimed
        self._last = arrival.at
        status.images, status.number = status.images + 1, status.number + 1
        if arrival.dropped > status.dropped:
            self._say(
                f"{arrival.dropped - status.dropped} images were dropped: the camera left them "
                "out, or gives more than are scored in time", "drop",
            )  # fmt: skip
        status.dropped = arrival.dropped
        status.probability, status.ood_score, status.claimed = None, None, False
        try:
            self._look(arrival.image)
            if self._model is not None:
                self._score(self._model, arrival.at)
        except (InputError, ConfigError, OutputError) as error:
            if not status.scored and error is not arrival.image:
                raise
            if self._model is not None:
                self._model.detector.reset()
            status.unscored += 1
            self._say(f"an image cannot be scored: {error}", "unscored")
        begins = status.claimed and not before
        status.claims += begins
        return begins

    def to_show(self) -> Status | None:
        """Return the status if it is time to show it; labels are of its image from now on."""
        now = time.perf_counter()
        if now - self._shown_at < 1 / SHOWN_HZ or not self.status.images:
            return None
        self._shown_at, self._on_screen = now, self.summary()
        return self._on_screen

    def summary(self) -> Status:
        """Return a copy of the status with its figures up to date."""
        known = self._latencies[: min(self.status.scored, LATENCIES)]
        p50, p99 = 1000 * np.percentile(known, (50, 99)) if len(known) else (0.0, 0.0)
        note = self.status.note if time.perf_counter() - self._said[""] < 5 else ""
        repeated = self._repeats.repeated
        return replace(self.status, p50=float(p50), p99=float(p99), repeated=repeated, note=note)

    def _say(self, text: str, kind: str = "") -> None:
        """Say a sentence, unless one of its kind was said in the last ten seconds."""
        now = time.perf_counter()
        if not kind or now - self._said.get(kind, -np.inf) >= 10:
            self._said |= {kind: now, "": now}
            self.status.note = text
            self._print(text)

    def _look(self, given: object) -> None:
        """Take an image in colour into the status, and say what is strange about it.

        InputError if it is none.
        """
        if isinstance(given, InputError):
            raise given
        image = as_batch(as_image(given, "the camera"))[0]
        old, new = (" x ".join(map(str, one.shape[:2])) for one in (self.status.image, image))
        if old != new and self.status.images > 1:
            self._say(f"the camera's images changed from {old} to {new} (height x width)", "size")
        self.status.image = image
        some = image[:: max(1, len(image) // 32), :: max(1, image.shape[1] // 32)]
        if int(some.max()) - int(some.min()) <= 3:
            self._say("the image shows one colour only: look at the lens, light and cable", "flat")
        elif (some == some[..., :1]).all():
            self._say("the camera gives grey images; a classifier may need colours", "grey")

    def _score(self, model: RewardModel, at: float) -> None:
        """Score the image of the status, which came at that time."""
        status, repeats = self.status, self._repeats
        scores = model.score(status.image[None], states=np.array([[at]]))
        status.probability, status.claimed = float(scores.probability[0]), bool(scores.claimed[0])
        if model.classifier.guard is not None or self._repeats.frozen:
            status.ood_score = None if scores.ood_score is None else float(scores.ood_score[0])
        status.progress = None if scores.progress is None else float(scores.progress[0])
        status.out_of_distribution += status.is_odd
        seconds = time.perf_counter() - at
        self._latencies[status.scored % LATENCIES] = seconds
        status.scored += 1
        status.missed += seconds > self._deadline
        if repeats.shown_for >= SECONDS:
            frozen = "it is frozen, and its claims do not count"
            why = frozen if repeats.frozen else "nothing moves, or it is frozen"
            self._say(f"the same image for {repeats.shown_for:.1f} s: {why}", "frozen")


def promised_rate(model: RewardModel) -> str:
    """Return what a bundle says of its false positives, in words, and whether it has a detector."""
    rate = "unknown: not calibrated"
    if isinstance(model.classifier, Classifier):
        decision = model.classifier.bundle.spec.decision
        bound = decision.chosen_for.get("fpr_upper")
        if isinstance(bound, float) and model.classifier.threshold == decision.threshold:
            rate = f"<= {bound:.2%} of images"
    return f"false positives {rate}" + "; no OOD detector" * (model.classifier.guard is None)
