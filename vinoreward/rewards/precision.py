"""How many of the claims are successes, from the labels that people gave a few of them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vinoreward.errors import ConfigError

_HALVINGS = 60
"""Of an interval of length 1: to a double's precision."""


@dataclass(frozen=True)
class PrecisionBound:
    """Bounds on the precision of claims that hold at every number of labels at once.

    A confidence sequence: with a probability of at least ``1 - alpha`` the precision is between
    ``low`` and ``high`` after each label, so one may look after every one and stop at will. It
    has every precision whose likelihood is above ``alpha`` times that of the uniform mixture of all
    precisions (Howard, Ramdas, McAuliffe & Sekhon 2021, "Time-uniform, nonparametric, nonasymptotic
    confidence sequences", Annals of Statistics, the beta-binomial mixture; the ratio is a
    nonnegative martingale and Ville's inequality bounds it).

    The labels must be of claims drawn at random, without regard to what they show. Claims of which
    nobody can tell count as successes for ``high`` and as failures for ``low``.

    Raises:
        ConfigError: numbers that cannot work.
    """

    successes: int
    failures: int
    unclear: int = 0
    alpha: float = 0.05

    def __post_init__(self) -> None:
        if min(self.successes, self.failures, self.unclear) < 0 or not 0 < self.alpha < 1:
            raise ConfigError(
                f"found {self.successes} successes, {self.failures} failures, {self.unclear} "
                f"unclear ones and alpha={self.alpha}. Expected counts from 0, and a probability "
                "above 0 and below 1."
            )

    @property
    def labels(self) -> int:
        """All of them."""
        return self.successes + self.failures + self.unclear

    @property
    def low(self) -> float:
        """Surely at least this share of the claims are successes."""
        return 1.0 - _highest(self.failures + self.unclear, self.successes, self.alpha)

    @property
    def high(self) -> float:
        """Surely at most this share."""
        return _highest(self.successes + self.unclear, self.failures, self.alpha)


def _highest(successes: int, failures: int, alpha: float) -> float:
    """Return the greatest share whose likelihood is at least ``alpha`` times the mixture's."""
    if failures == 0:
        return 1.0
    # The mixture of all shares: the integral of p^s (1 - p)^f, a beta function.
    mixture = math.lgamma(successes + 1) + math.lgamma(failures + 1)
    mixture -= math.lgamma(successes + failures + 2)
    least = mixture + math.log(alpha)
    inside, outside = successes / (successes + failures), 1.0
    for _ in range(_HALVINGS):  # the likelihood falls from its greatest value on
        middle = (inside + outside) / 2
        if middle >= 1.0:
            break
        likelihood = failures * math.log1p(-middle)
        likelihood += successes * math.log(middle) if successes else 0.0
        inside, outside = (middle, outside) if likelihood >= least else (inside, middle)
    return outside
