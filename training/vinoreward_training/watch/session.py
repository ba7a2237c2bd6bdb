"""The loop beside a camera: take an image, score it, tell, show, and do what keys say."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward.images import MAX_PIXELS, as_image
from vinoreward.rewards.decision import Scores
from vinoreward.rewards.frozen import RepeatCheck
from vinoreward.rewards.reward_model import RewardModel
from vinoreward_training.watch.cameras import Camera, Image
from vinoreward_training.watch.clicks import Clicks
from vinoreward_training.watch.feed import Arrival, Feed

LATENCIES = 4096
"""Of the last images, from which the percentiles are."""
SHOWN_HZ = 15.0
"""Images shown per second, at most: nobody reads more, and to draw takes time from scoring."""
STALL_SECONDS = 1.0
"""Without an image, after which the camera is said to stall."""
QUIET_SECONDS = 10.0
"""For which a sentence of one kind is not said again."""
NOTE_SECONDS = 4.0
"""For which a sentence is shown beside the image."""
FLAT = 3
"""Largest range of the values of an image that shows nothing."""


@dataclass(frozen=True)
class Claim:
    """The first image of a success that is claimed."""

    time: float
    """Seconds since 1970 (UTC) when the image came."""
    probability: float


@dataclass
class Status:
    """What is known of a session so far; shown beside the image."""

    image: Image
    """``(H, W, 3)`` uint8 RGB, as the camera gave it."""
    episode: int
    number: int = 0
    """Of the image in its episode, from 1."""
    probability: float | None = None
    """None: not scored."""
    claimed: bool = False
    ood_score: float | None = None
    """Above 1: out of distribution; None without a detector."""
    false_positives: str = ""
    """The rate that the bundle promises, in words."""
    images: int = 0
    """Taken, in all."""
    scored: int = 0
    unscored: int = 0
    """Images that could not be scored."""
    claims: int = 0
    """Successes claimed: runs of images, not images."""
    out_of_distribution: int = 0
    hz: float = 0.0
    """Images per second that came."""
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
    """The last sentence."""

    def lines(self) -> list[str]:
        """Return a summary."""
        lines = [
            f"{self.images} images, {self.scored} scored, {self.unscored} could not be; "
            f"{self.claims} successes claimed, {self.out_of_distribution} images out of "
            "distribution.",
            f"latency p50 {self.p50:.1f} ms, p99 {self.p99:.1f} ms; {self.missed} deadlines "
            f"missed, {self.dropped} images dropped, {self.repeated} repeated.",
        ]
        return lines if self.scored else [f"{self.images} images, {self.dropped} dropped."]


@dataclass
class Sentences:
    """Says what goes wrong, each kind of it now and then only."""

    say: Callable[[str], object]
    last: str = ""
    at: float = -np.inf
    _said: dict[str, float] = field(default_factory=dict)

    def __call__(self, text: str, kind: str = "") -> None:
        """Say a sentence, unless one of its ``kind`` was said in the last ``QUIET_SECONDS``."""
        now = time.perf_counter()
        if kind and now - self._said.get(kind, -np.inf) < QUIET_SECONDS:
            return
        if kind:
            self._said[kind] = now
        self.last, self.at = text, now
        self.say(text)


def watch(
    camera: Camera,
    model: RewardModel | None = None,
    *,
    hz: float | None = None,
    clicks: Clicks | None = None,
    keys: Callable[[], str] = str,
    on_claim: Callable[[Claim], object] | None = None,
    show: Callable[[Status], object] | None = None,
    say: Callable[[str], object] = print,
) -> Status:
    """Score a camera's images until they end, ``q`` is pressed, or Ctrl-C; return the summary.

    What a camera does wrong is said, and does not end the session.

    Args:
        camera: is closed at the end; see :func:`~vinoreward_training.watch.cameras.open_camera`.
        model: of one environment; None: images are shown and labelled only.
        hz: deadlines per second: an image is late when its claim takes longer. Default: the
            camera's rate.
        clicks: where labels go; None: keys label nothing.
        keys: returns the keys pressed since it was last called: ``s`` and ``f`` label the image
            that was shown last, ``u`` takes the last label back, ``n`` begins an episode, ``q``
            ends.
        on_claim: called with the first image of each claimed success; what it takes counts as
            latency of the next image.
        show: called with the status, ``SHOWN_HZ`` times a second at most.
        say: called with each sentence.

    Raises:
        InputError: the first image cannot be scored.
        DatasetError: a video that is damaged.
        RunFolderError: a label cannot be written.
    """
    session = _Session(camera, model, hz, clicks, Sentences(say))
    try:
        with Feed(camera) as feed:
            while not feed.ended:
                pressed = keys()
                if "q" in pressed:
                    break
                for key in pressed:
                    session.press(key)
                arrival = feed.take(0.1)
                if arrival is None:
                    session.wait()
                elif (claim := session.take(arrival)) is not None and on_claim is not None:
                    on_claim(claim)
                if show is not None and session.due():
                    show(session.shown())
            if feed.ended and camera.live:
                session.say("the camera gives no more images: look at its cable, or start it again")
    except KeyboardInterrupt:
        pass
    return session.summary()


class _Session:
    """The state of a session; one method for each thing that happens."""

    def __init__(
        self,
        camera: Camera,
        model: RewardModel | None,
        hz: float | None,
        clicks: Clicks | None,
        sentences: Sentences,
    ) -> None:
        self.say = sentences
        self._model, self._clicks = model, clicks
        self._deadline = 1 / (hz or camera.hz)
        self._repeats = RepeatCheck()
        self._latencies = np.zeros(LATENCIES)
        self._interval = 0.0
        self._last = time.perf_counter()
        self._shown_at = -np.inf
        self._on_screen: Status | None = None
        nothing: Image = np.zeros((1, 1, 3), np.uint8)
        self._status = Status(nothing, 0 if clicks is None else clicks.first_episode)
        if clicks is not None:
            self._status.labels = clicks.counts
        if model is not None:
            model.frozen = self._repeats
            model.reset()
            self._status.false_positives = promised_rate(model)
            _ = model.classifier.backends, model.classifier.guard  # loaded before an image waits

    def press(self, key: str) -> None:
        """Do what a key says; others do nothing."""
        status, clicks = self._status, self._clicks
        if key == "n":
            status.episode, status.number, status.claimed = status.episode + 1, 0, False
            if self._model is not None:
                self._model.reset()
            self.say(f"episode {status.episode}")
        elif key in ("s", "f", "u") and clicks is None:
            self.say("there is no folder for labels")
        elif key == "u" and clicks is not None:
            self.say(f"{clicks.undo()}; {_in_words(clicks)}")
        elif key in ("s", "f") and clicks is not None:
            if (shown := self._on_screen) is None:
                self.say("there is no image to label yet")
                return
            done = clicks.add(shown.image, key == "s", shown.episode, shown.number)
            self.say(f"{done}; {_in_words(clicks)}")
        if clicks is not None:
            status.labels = clicks.counts
        self._shown_at = -np.inf

    def wait(self) -> None:
        """Note that no image came for a while."""
        silent = time.perf_counter() - self._last
        if silent >= STALL_SECONDS:
            self.say(f"the camera stalls: no image for {silent:.1f} s", "stall")
            self._status.probability, self._status.claimed = None, False

    def take(self, arrival: Arrival) -> Claim | None:
        """Score an image; return the claim that begins with it, if one does."""
        status, before = self._status, self._status.claimed
        self._rate(arrival.at)
        status.images, status.number = status.images + 1, status.number + 1
        if arrival.dropped > status.dropped:
            dropped = arrival.dropped - status.dropped
            self.say(
                f"{dropped} images were dropped: the camera left them out, or gives more than are "
                "scored in time", "drop",
            )  # fmt: skip
        status.dropped = arrival.dropped
        status.probability = status.ood_score = None
        status.claimed = False
        try:
            image = self._checked(arrival)
            scores = None if self._model is None else self._score(self._model, image, arrival.at)
        except (InputError, ConfigError, OutputError) as error:
            if self._model is not None:
                self._model.detector.reset()
                if not status.scored and not isinstance(arrival.image, InputError):
                    raise
            status.unscored += 1
            self.say(f"an image cannot be scored: {error}", "unscored")
            return None
        if scores is None:
            return None
        status.probability, status.claimed = float(scores.probability[0]), bool(scores.claimed[0])
        if scores.ood_score is not None:
            status.ood_score = float(scores.ood_score[0])
            status.out_of_distribution += status.ood_score > 1.0
        self._time(time.perf_counter() - arrival.at)
        if not status.claimed or before:
            return None
        status.claims += 1
        return Claim(time.time() - (time.perf_counter() - arrival.at), status.probability)

    def due(self) -> bool:
        """Return whether to show the status now."""
        now = time.perf_counter()
        return now - self._shown_at >= 1 / SHOWN_HZ and self._status.images > 0

    def shown(self) -> Status:
        """Return what to show; labels are of its image from now on."""
        self._shown_at = time.perf_counter()
        self._on_screen = self.summary()
        return self._on_screen

    def summary(self) -> Status:
        """Return a copy of the status with its figures up to date."""
        status = self._status
        known = self._latencies[: min(status.scored, LATENCIES)]
        p50, p99 = 1000 * np.percentile(known, (50, 99)) if len(known) else (0.0, 0.0)
        recent = time.perf_counter() - self.say.at < NOTE_SECONDS
        return replace(
            status,
            p50=float(p50),
            p99=float(p99),
            hz=1 / self._interval if self._interval else 0.0,
            repeated=self._repeats.repeated,
            note=self.say.last if recent else "",
        )

    def _checked(self, arrival: Arrival) -> Image:
        """Return the image in colour, and say what is strange about it.

        InputError if it is none.
        """
        status, given = self._status, arrival.image
        if isinstance(given, InputError):
            raise given
        image = as_image(given, "the camera")
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
            raise InputError(
                f"the camera gave {image.dtype} of shape {image.shape}. Expected (height, width, "
                "3) uint8 RGB; look at its settings."
            )
        height, width = image.shape[:2]
        if height * width > MAX_PIXELS:
            raise InputError(
                f"the camera gave {height} x {width} pixels. Expected at most {MAX_PIXELS} in all; "
                "choose a smaller size in its settings."
            )
        old = status.image.shape[:2]
        if old != (height, width) and status.images > 1:
            self.say(
                f"the camera's images changed from {old[0]} x {old[1]} to {height} x {width} "
                "(height x width)", "size",
            )  # fmt: skip
        status.image = image
        some = image[:: max(1, height // 32), :: max(1, width // 32)]
        if int(some.max()) - int(some.min()) <= FLAT:
            self.say("the image shows one colour only: look at the lens, light and cable", "flat")
        elif (some[..., 0] == some[..., 1]).all() and (some[..., 1] == some[..., 2]).all():
            self.say("the camera gives grey images; a classifier may need colours", "grey")
        return image

    def _score(self, model: RewardModel, image: Image, at: float) -> Scores:
        scores = model.score(image[None], states=np.array([[at]]))
        if self._repeats.shown_for >= self._repeats.seconds:
            what = (
                "it is frozen, and its claims do not count"
                if self._repeats.noisy
                else "nothing moves, or it is frozen"
            )
            seconds = self._repeats.shown_for
            self.say(f"the camera has shown the same image for {seconds:.1f} s: {what}", "frozen")
        return scores

    def _rate(self, at: float) -> None:
        """Note when an image came."""
        if self._status.images:
            share = 1 / min(self._status.images, 32)
            self._interval += share * (at - self._last - self._interval)
        self._last = at

    def _time(self, seconds: float) -> None:
        """Note how long an image waited for its claim."""
        status = self._status
        self._latencies[status.scored % LATENCIES] = seconds
        status.scored += 1
        status.missed += seconds > self._deadline


def _in_words(clicks: Clicks) -> str:
    successes, failures = clicks.counts
    return f"{successes} successes, {failures} failures in {clicks.folder}"


def promised_rate(model: RewardModel) -> str:
    """Return what a bundle says of its false positives, in words."""
    decision = model.classifier.bundle.spec.decision
    bound = decision.chosen_for.get("fpr_upper")
    if not isinstance(bound, float) or model.classifier.threshold != decision.threshold:
        return "false positives unknown: not calibrated"
    return f"false positives <= {bound:.2%} of images"
