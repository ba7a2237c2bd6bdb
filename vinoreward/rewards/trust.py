"""Whether a training's reward may still be trusted: all alarms behind one object.

A trainer hands each finished episode to a :class:`TrustMonitor`, whatever its loop: SB3's callback,
``vinoreward train`` and ``vinoreward actors`` use the same one. It holds numbers alone, so a
recorded training can be replayed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward.rewards.alarms import FalseClaimAlarm, RateAlarm
from vinoreward.rewards.precision import PrecisionBound

TESTS: tuple[str, ...] = ("false", "ood", "early", "precision")
"""Names of the tests; their evidence is logged under them."""
TITLES = {
    "false": "false claims",
    "ood": "out-of-distribution images",
    "early": "early claims",
    "precision": "labelled claims",
}
"""What each test is called in a report."""
OOD_SHARE = 0.1
"""Share of an episode's images that are out of distribution where the episode is: a guard that was
calibrated on a few images of each episode may find one of hundreds out of distribution by
chance."""
PRECISION = 0.9
"""Share of the claims that must be successes, as far as people have labelled them."""


@dataclass(frozen=True)
class Ended:
    """How an episode ended; None where nobody knows."""

    claimed: float | None = None
    """Whether its last step was claimed to be a success."""
    true: float | None = None
    """Whether it was one."""
    ood: float | None = None
    """Whether a tenth or more of its images were out of distribution for the guard, see
    :class:`OodImages`."""
    length: int | None = None
    """Its steps."""


@dataclass
class OodImages:
    """Counts the images of an episode that a guard finds out of distribution."""

    looked: int = 0
    ood: int = 0

    def add(self, info: Mapping[str, Any]) -> None:
        """Take a step's ``info``."""
        if "reward_ood" in info:
            self.looked += 1
            self.ood += bool(info["reward_ood"] > 1.0)

    @property
    def many(self) -> bool | None:
        """Whether ``OOD_SHARE`` of them or more are out of distribution; None without a guard."""
        return None if self.looked == 0 else 0 < self.ood >= OOD_SHARE * self.looked


@dataclass(frozen=True)
class Alarm:
    """One alarm."""

    test: str
    """Which test raised it, of :data:`TESTS`."""
    text: str
    """What was found and what to do, in a clause."""
    first: bool
    """Whether it is this test's first: a policy that cheats goes on, and once is enough to say."""


class TrustMonitor:
    """Takes a training's episodes one by one; says when the reward is no longer to be trusted.

    Each test runs only where what it needs is known:

    - ``false``: claims that are no true successes. Needs the truth.
    - ``ood``: episodes of which a tenth or more is out of distribution for the bundle's guard.
      Needs a guard.
    - ``earliest``: claims before this step of an episode, where no success is possible yet. Needs
      you to know that step.
    - labels of people, see :meth:`labelled`. Needs a random sample of the claims.

    Args:
        false: None: no test.
        ood: None: no test.
        earliest: first step of an episode, from 1, at which a success is possible; None: no test.
        precision: least share of the claims that must be successes, by the labels.
        window: episodes behind a rate, at least 1.

    Raises:
        ConfigError: a number that cannot work.
    """

    def __init__(
        self,
        *,
        false: FalseClaimAlarm | None = None,
        ood: RateAlarm | None = None,
        earliest: int | None = None,
        precision: float = PRECISION,
        window: int = 50,
    ) -> None:
        if window < 1:
            raise ConfigError(f"window is {window}. Expected a number of episodes, at least 1.")
        if earliest is not None and earliest < 1:
            raise ConfigError(
                f"earliest is {earliest}. Expected the first step of an episode at which a success "
                "is possible, from 1; None if nobody knows."
            )
        if not 0 < precision < 1:
            raise ConfigError(
                f"precision is {precision}. Expected the share of claims that must be successes, "
                "above 0 and below 1."
            )
        self.false, self.ood, self.earliest = false, ood, earliest
        self.early = None if earliest is None else RateAlarm()
        self.precision = precision
        self.bound: PrecisionBound | None = None
        """From the labels; None before the first."""
        self.raised = dict.fromkeys(TESTS, 0)
        """Alarms of each test so far."""
        self._recent: deque[Ended] = deque(maxlen=window)

    def add(self, ended: Ended) -> list[Alarm]:
        """Take an episode; return the alarms that it raises."""
        self._recent.append(ended)
        found = []
        if self.false is not None and self.false.update(ended.claimed, ended.true):
            found.append(self._alarm("false", self._false()))
        if self.ood is not None and self.ood.update(ended.ood):
            found.append(self._alarm("ood", self._ood()))
        if self.early is not None and self.early.update(self._is_early(ended)):
            found.append(self._alarm("early", self._early()))
        return found

    def labelled(self, bound: PrecisionBound) -> list[Alarm]:
        """Take what people said of a random sample of claims; return the alarm that it raises.

        It is raised when the bound is surely below ``precision``, and again only after it was not.
        """
        before = self.bound is not None and self.bound.high < self.precision
        self.bound = bound
        if bound.high >= self.precision or before:
            return []
        text = (
            f"of {bound.labels} labelled claims {bound.failures} are no successes: surely at most "
            f"{bound.high:.0%} of the claims are any, and {self.precision:.0%} were expected. Mend "
            "the classifier with these labels (vinoreward mend) before going on"
        )
        return [self._alarm("precision", text)]

    def readings(self) -> dict[str, float]:
        """Return the rates over the last episodes and each test's evidence, where known."""
        found: dict[str, float] = {}
        for name, values in (
            ("claim_rate", [one.claimed for one in self._recent]),
            ("ood_rate", [one.ood for one in self._recent]),
            ("early_rate", [self._is_early(one) for one in self._recent]),
        ):
            known = [value for value in values if value is not None]
            if known:
                found[name] = float(np.mean(known))
        if self.false is not None and self._known(one.true for one in self._recent):
            found["false_evidence"] = self.false.evidence
        if self.ood is not None and "ood_rate" in found:
            found["ood_evidence"] = self.ood.evidence
        if self.early is not None and "early_rate" in found:
            found["early_evidence"] = self.early.evidence
        if self.bound is not None:
            found |= {"precision_low": self.bound.low, "precision_high": self.bound.high}
        return {**found, "alarms": float(sum(self.raised.values()))}

    def _alarm(self, test: str, text: str) -> Alarm:
        self.raised[test] += 1
        return Alarm(test, text, self.raised[test] == 1)

    def _is_early(self, ended: Ended) -> bool | None:
        if self.earliest is None or ended.claimed is None or ended.length is None:
            return None
        return bool(ended.claimed) and ended.length < self.earliest

    @staticmethod
    def _known(values: Iterable[float | None]) -> bool:
        return any(value is not None for value in values)

    def _false(self) -> str:
        claimed = [one for one in self._recent if one.claimed]
        wrong = sum(one.true == 0 for one in claimed)
        return (
            f"{wrong} of the last {len(claimed)} claimed successes are false. The policy may have "
            "found what fools the classifier: watch it (vinoreward play) and audit the classifier "
            "(vinoreward audit) before going on"
        )

    def _ood(self) -> str:
        known = [one.ood for one in self._recent if one.ood is not None]
        return (
            f"{sum(map(bool, known))} of the last {len(known)} episodes show images "
            "unlike those of the classifier's training. Camera or light may have changed, or the "
            "policy has found where it sees nothing known: watch it (vinoreward play), and capture "
            "or label such images before going on"
        )

    def _early(self) -> str:
        flags = [self._is_early(one) for one in self._recent]
        known = [flag for flag in flags if flag is not None]
        return (
            f"{sum(known)} of the last {len(known)} episodes end with a claim before step "
            f"{self.earliest}, where no success is possible. The classifier claims what it sees on "
            "the way: label such claims (vinoreward label) and mend it (vinoreward mend) before "
            "going on"
        )
