"""Whether a training's reward may still be trusted: sequential tests, all behind one object.

A trainer hands each finished episode to a :class:`TrustMonitor`, whatever its loop: SB3's callback,
``vinoreward train`` and ``vinoreward actors`` use the same one. All hold numbers alone, so a
recorded training can be replayed.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward.rewards.precision import PrecisionBound, PrecisionCertificate

TITLES = {
    "false": "false claims",
    "ood": "out-of-distribution images",
    "early": "early claims",
    "precision": "labelled claims",
}
"""What each test is called in a report; its evidence is logged under its key."""
TESTS: tuple[str, ...] = tuple(TITLES)
PRECISION = 0.9
"""Least share of the claims that must be successes, by people's labels of a random sample."""
OOD_SHARE = 0.1
"""Share of an episode's images that are out of distribution where the episode is: one of hundreds
may be by chance."""
_TEXTS = {
    "false": "{} of the last {} claimed successes are false. The policy may have found what fools "
    "the classifier: watch it (vinoreward play) and audit the classifier (vinoreward audit) before "
    "going on",
    "ood": "{} of the last {} episodes show images unlike those of the classifier's training. "
    "Camera or light may have changed, or the policy has found unknown states: watch "
    "it (vinoreward play), and capture or label such images before going on",
    "early": "{} of the last {} episodes end with a claim before step {earliest}, where no success "
    "is possible. The classifier claims what it sees on the way: label such claims (vinoreward "
    "label) and mend it (vinoreward mend) before going on",
}


class RateAlarm:
    """A sequential test of how often something happens in an episode.

    The null hypothesis: whatever happened before, it happens in an episode with a probability of at
    most ``allowed``. The evidence for a larger one is the likelihood ratio since a change, summed
    over all episodes at which it may have happened (Shiryaev-Roberts), and averaged over three
    probabilities. This is an e-detector (Shin, Ramdas & Rinaldo 2024, "E-detectors: a nonparametric
    framework for sequential change detection", NEJSDS): while the null hypothesis holds, false
    alarms are at least ``episodes`` episodes apart on average, though the policy keeps changing.

    Args:
        allowed: probability in an episode that is no reason for an alarm, above 0 and below 1.
        episodes: mean number of episodes between false alarms at least, above 1.

    Raises:
        ConfigError: a number that cannot work.
    """

    def __init__(self, allowed: float = 0.05, episodes: float = 1000) -> None:
        if not (0 < allowed < 1 and 1 < episodes < math.inf):  # NaN fails too
            raise ConfigError(
                f"found allowed={allowed} and episodes={episodes}. Expected a probability above 0 "
                "and below 1, and a number of episodes above 1."
            )
        self.allowed = float(allowed)
        self.episodes = float(episodes)
        others = allowed + (1 - allowed) * np.array([0.1, 0.4, 0.8])
        self._if_happened = others / allowed
        self._if_not = (1 - others) / (1 - allowed)
        self._evidence = np.zeros(3)

    @property
    def evidence(self) -> float:
        """Evidence for more than is allowed; the alarm is at ``episodes``."""
        return float(self._evidence.mean())

    def update(self, happened: float | None) -> bool:
        """Take whether it happened in an episode; return whether to raise the alarm.

        After an alarm the evidence begins anew. An episode with a None is skipped.
        """
        if happened is None:
            return False
        gained = self._if_happened if happened else self._if_not
        self._evidence = (self._evidence + 1.0) * gained
        if self.evidence < self.episodes:
            return False
        self._evidence = np.zeros(3)
        return True


@dataclass(frozen=True)
class Ended:
    """How an episode ended; None where nobody knows.

    Whether its last step was ``claimed`` to be a success and was a ``true`` one, whether many of
    its images were out of distribution (``ood``, see :class:`OodImages`), and its steps.
    """

    claimed: float | None = None
    true: float | None = None
    ood: float | None = None
    length: int | None = None


@dataclass
class OodImages:
    """Counts the images of an episode that a guard finds out of distribution."""

    scored: int = 0
    ood: int = 0

    def add(self, info: Mapping[str, Any]) -> None:
        """Take a step's ``info``."""
        if "reward_ood" in info:
            self.scored += 1
            self.ood += bool(info["reward_ood"] > 1.0)

    @property
    def many(self) -> bool | None:
        """Whether ``OOD_SHARE`` of them or more are out of distribution; None without a guard."""
        return None if self.scored == 0 else 0 < self.ood >= OOD_SHARE * self.scored


@dataclass(frozen=True)
class Alarm:
    """One alarm of one of :data:`TESTS`: what was found and what to do, in a clause, and whether it
    is this test's first. A policy that cheats goes on, and once is enough to say."""

    test: str
    text: str
    first: bool


class TrustMonitor:
    """Takes a training's episodes one by one; says when the reward is no longer to be trusted.

    Each test runs only where what it needs is known.

    Args:
        false: tests for episodes whose claim is no true success; None: no test.
        ood: tests for episodes of which a tenth or more is out of distribution for the bundle's
            guard; None: no test.
        earliest: first step of an episode, from 1, at which a success is possible; claims before it
            are tested for. None: no test.
        window: episodes behind a rate, at least 1.
        precision: least share of the claims that must be successes, by people's labels of a random
            sample, from 0 to 1.

    Raises:
        ConfigError: a number that cannot work.
    """

    def __init__(
        self,
        *,
        false: RateAlarm | None = None,
        ood: RateAlarm | None = None,
        earliest: int | None = None,
        window: int = 50,
        precision: float = PRECISION,
    ) -> None:
        if window < 1:
            raise ConfigError(f"window is {window}. Expected a number of episodes, at least 1.")
        if earliest is not None and earliest < 1:
            raise ConfigError(f"earliest is {earliest}. Expected a step from 1, or None.")
        if not 0 <= precision <= 1:  # NaN fails too
            raise ConfigError(field="precision", value=precision, expected="a share from 0 to 1")
        self.false, self.ood, self.earliest = false, ood, earliest
        self.early = None if earliest is None else RateAlarm()
        self.precision = precision
        self.bounds: dict[str, PrecisionBound] = {}
        """From the labels: ``precision`` of all claims and, of a certificate, ``last_precision``;
        nothing before the first."""
        self.raised = dict.fromkeys(TESTS, 0)
        """Alarms of each test so far."""
        self._recent: deque[dict[str, float | None]] = deque(maxlen=window)

    def add(self, ended: Ended) -> list[Alarm]:
        """Take an episode; return the alarms that it raises."""
        claimed, true = ended.claimed, ended.true
        false = early = None
        if claimed is not None and true is not None:
            false = bool(claimed) and not true
        if self.earliest is not None and claimed is not None and ended.length is not None:
            early = bool(claimed) and ended.length < self.earliest
        self._recent.append({"claim": claimed, "true": true, "ood": ended.ood, "early": early})
        raised = {
            "false": self.false is not None and self.false.update(false),
            "ood": self.ood is not None and self.ood.update(ended.ood),
            "early": self.early is not None and self.early.update(early),
        }
        return [self._alarm(test, self._text(test)) for test, alarm in raised.items() if alarm]

    @property
    def low_precision(self) -> bool:
        """Whether the labels say that the claims' precision is surely too low."""
        return any(bound.high < self.precision for bound in self.bounds.values())

    def labelled(self, found: PrecisionBound | PrecisionCertificate) -> list[Alarm]:
        """Take what people said of a random sample of claims; return the alarm that it raises.

        It is raised when the precision is surely too low, of all claims or of the last ones, and
        again only after it was not.
        """
        before = self.low_precision
        if isinstance(found, PrecisionCertificate):
            self.bounds = {"precision": found.run, "last_precision": found.last}
        else:
            self.bounds = {"precision": found}
        if before or not self.low_precision:
            return []
        name, bound = min(self.bounds.items(), key=lambda item: item[1].high)
        claims = "the last claims" if name == "last_precision" else "all claims"
        text = (
            f"of {bound.labels} labelled claims {bound.failures} are no successes: with 95 % "
            f"confidence at most {bound.high:.0%} of {claims} are. Expected {self.precision:.0%}. "
            "Mend the classifier with these labels (vinoreward mend) before going on"
        )
        return [self._alarm("precision", text)]

    def readings(self) -> dict[str, float]:
        """Return the rates over the last episodes and each test's evidence, where known."""
        flags = {name: self._flags(name) for name in ("claim", "ood", "early", "true")}
        rates = (name for name in ("claim", "ood", "early") if flags[name])
        readings = {f"{name}_rate": float(np.mean(flags[name])) for name in rates}
        for test, needed in (("false", "true"), ("ood", "ood"), ("early", "early")):
            alarm: RateAlarm | None = getattr(self, test)
            if alarm is not None and flags[needed]:
                readings[f"{test}_evidence"] = alarm.evidence
        for name, bound in self.bounds.items():
            readings |= {f"{name}_low": bound.low, f"{name}_high": bound.high}
        return {**readings, "alarms": float(sum(self.raised.values()))}

    def _flags(self, name: str) -> list[bool]:
        """Return what is known of the last episodes; of false claims only where one was made."""
        if name == "false":
            return [one["true"] == 0 for one in self._recent if one["claim"]]
        return [bool(one[name]) for one in self._recent if one[name] is not None]

    def _text(self, test: str) -> str:
        flags = self._flags(test)
        return _TEXTS[test].format(sum(flags), len(flags), earliest=self.earliest)

    def _alarm(self, test: str, text: str) -> Alarm:
        self.raised[test] += 1
        return Alarm(test, text, self.raised[test] == 1)
