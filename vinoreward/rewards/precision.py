"""The precision of claims, from the labels of a random few: bounds that hold at any time."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from vinoreward.errors import ConfigError

Answer = Literal["success", "failure", "unclear"]
LAST_CLAIMS = 500
"""Claims behind the bound on the last ones."""
_EXPONENTS = np.outer([1.0, -1.0], np.geomspace(0.06, 8.0, 11)).ravel()
"""Of the mixture: the smallest suits ten thousand labels, the largest a precision of 99.9 %."""


@dataclass(frozen=True)
class PrecisionBound:
    """Bounds on the precision of claims that hold at every number of labels at once.

    A confidence sequence: with a probability of at least ``1 - alpha`` the precision is between
    ``low`` and ``high`` after each label, so one may look after every one and stop at will. It has
    every precision ``m`` at which the mixture of ``exp(t S) / (1 + m (exp(t) - 1))**n`` over
    exponents ``t``, for ``S`` successes of ``n`` labels, is below ``1 / alpha`` (sub-Bernoulli
    mixture; Howard, Ramdas, McAuliffe & Sekhon 2021, "Time-uniform, nonparametric, nonasymptotic
    confidence sequences", Annals of Statistics). The logarithm of ``1 + m (exp(t) - 1)`` is concave
    in ``m``, so the bounds also hold where each label has a chance of its own, for their mean.

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
            raise ConfigError(f"found {self}. Expected counts from 0, and alpha between 0 and 1.")

    @property
    def labels(self) -> int:
        """All of them."""
        return self.successes + self.failures + self.unclear

    @property
    def low(self) -> float:
        """Lower bound on the share of the claims that are successes."""
        return 1.0 - _highest(self.failures + self.unclear, self.successes, self.alpha)

    @property
    def high(self) -> float:
        """Upper bound on the share of the claims that are successes."""
        return _highest(self.successes + self.unclear, self.failures, self.alpha)


@dataclass(frozen=True)
class PrecisionCertificate:
    """Bounds on the precision of a run's claims, over all of them and over the last.

    With a probability of at least ``1 - alpha`` both are right at all times at once, whatever the
    policy does and however its precision changes. For that, one claim of every ``every`` in a row
    is drawn at random and labelled, and nobody acts on a draw before those claims are all made:
    then the chance that a label is a success is their precision, whatever was labelled before. Half
    of ``alpha`` is for the bound on all claims. That on the last ones starts anew after every half
    of them; the ``k``-th start, from 1, has ``alpha / (2 k (k + 1))``.

    Example::

        certificate = PrecisionCertificate.of(["success"] * 80, every=10)
        certificate.run.low, certificate.claims  # at least so much of these 800 claims is true

    Raises:
        ConfigError: numbers that cannot work.
    """

    run: PrecisionBound
    """Of all claims."""
    last: PrecisionBound
    """Of the last ones: as many as asked for, and up to half as many more; of all, if there are
    fewer."""
    claims: int
    """Of the run, up to which this holds."""

    @classmethod
    def of(
        cls,
        answers: Sequence[Answer],
        every: int,
        last: int = LAST_CLAIMS,
        alpha: float = 0.05,
    ) -> PrecisionCertificate:
        """Return the certificate from one answer for each ``every`` claims, in their order.

        Args:
            answers: ``"success"``, ``"failure"`` or, of those that nobody can tell, ``"unclear"``.
            every: claims of which one is labelled, from 1.
            last: claims behind the bound on the last ones, from 1.
            alpha: probability of being wrong at any time, above 0 and below 1.
        """
        for name, value in (("every", every), ("last", last)):
            if value < 1:
                raise ConfigError(field=name, value=value, expected="a number of claims, from 1")
        if not 0 < alpha < 1:  # NaN fails too
            raise ConfigError(field="alpha", value=alpha, expected="a number between 0 and 1")
        half = math.ceil(last / every / 2)
        start = max(0, len(answers) // half - 2)
        run = recent = _counted(answers, alpha / 2)
        if start:
            recent = _counted(answers[start * half :], alpha / (2 * start * (start + 1)))
        return cls(run, recent, every * len(answers))


def _counted(answers: Sequence[Answer], alpha: float) -> PrecisionBound:
    counts = Counter(answers)
    return PrecisionBound(counts["success"], counts["failure"], counts["unclear"], alpha)


@functools.lru_cache(1 << 16)
def _highest(successes: int, failures: int, alpha: float) -> float:
    """Return the greatest mean at which the mixture is below ``1 / alpha``."""
    labels = successes + failures
    if failures == 0:
        return 1.0
    most = math.log(len(_EXPONENTS) / alpha)
    # The mixture is convex in the mean, and at most 1 at the labels' own.
    inside, outside = successes / labels, 1.0
    while outside - inside > 1e-6:
        middle = (inside + outside) / 2
        terms = successes * _EXPONENTS - labels * np.log1p(middle * np.expm1(_EXPONENTS))
        below = float(np.logaddexp.reduce(terms)) < most
        inside, outside = (middle, outside) if below else (inside, middle)
    return outside
