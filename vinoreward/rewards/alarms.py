"""Says during a training that the reward may no longer be trusted."""

from __future__ import annotations

import math

import numpy as np

from vinoreward.errors import ConfigError


class RateAlarm:
    """A sequential test of how often something happens in an episode.

    The null hypothesis: whatever happened before, it happens in an episode with a probability of at
    most ``allowed``. The alternatives: three larger probabilities. The evidence for one is the
    likelihood ratio since a change, summed over all episodes at which the change may have happened
    (Shiryaev-Roberts); the alarm averages the three. This is an e-detector (Shin, Ramdas & Rinaldo
    2024, "E-detectors: a nonparametric framework for sequential change detection", NEJSDS): while
    the null hypothesis holds, false alarms are at least ``episodes`` episodes apart on average,
    even though the policy keeps changing.

    It holds numbers alone, so a recorded training can be replayed.

    Args:
        allowed: probability in an episode that is no reason for an alarm, above 0 and below 1.
        episodes: mean number of episodes between false alarms at least, above 1.

    Raises:
        ConfigError: a number that cannot work.
    """

    def __init__(self, allowed: float = 0.05, episodes: float = 1000) -> None:
        # Written so that NaN fails too.
        if not (0 < allowed < 1 and 1 < episodes < math.inf):
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


class FalseClaimAlarm:
    """Tests episode by episode whether claims are no longer successes: a :class:`RateAlarm`.

    Args:
        allowed: probability of a false claim in an episode that is no reason for an alarm.
        episodes: mean number of episodes between false alarms at least.

    Raises:
        ConfigError: a number that cannot work.
    """

    def __init__(self, allowed: float = 0.05, episodes: float = 1000) -> None:
        self._rate = RateAlarm(allowed, episodes)
        self.allowed, self.episodes = self._rate.allowed, self._rate.episodes

    @property
    def evidence(self) -> float:
        """Evidence for more false claims than allowed; the alarm is at ``episodes``."""
        return self._rate.evidence

    def update(self, claimed: float | None, true: float | None) -> bool:
        """Take how an episode ended (true or false); return whether to raise the alarm.

        After an alarm the evidence begins anew. An episode with a None is skipped.
        """
        if claimed is None or true is None:
            return False
        return self._rate.update(bool(claimed) and not true)
