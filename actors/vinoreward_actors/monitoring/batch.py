"""The input of indicators: rows of experience with the outputs of both networks, and returns.

Compression is also measured by paired evaluation: the full and the compressed policy play the same
episodes. Returns of the actors' own episodes do not measure this (they include exploration and
lag), and in an unpaired evaluation the spread between start states hides the gap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError, needed_for
from vinoreward_actors.policies.distributions import Exploration, kl
from vinoreward_actors.policies.spec import PolicySpec

Floats = npt.NDArray[np.floating]
Doubles = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
Rows = Literal["compressed", "full", "all", "unsourced"]
Against = Literal["learner", "source"]
Direction = Literal["mu_pi", "pi_mu"]

FULL = 0
"""In ``MonitorBatch.network``: the learner's own weights acted."""
COMPRESSED = 1
"""In ``MonitorBatch.network``: the compressed weights acted."""


@dataclass(frozen=True)
class PairedReturns:
    """Returns of two policies on the same environment seeds, without exploration.

    Raises:
        InputError: arrays of different lengths, or not finite.
    """

    full: Doubles
    """(S,) undiscounted returns of the policy in full precision."""
    compressed: Doubles
    """(S,) of the same policy compressed, on the same seeds in the same order."""

    def __post_init__(self) -> None:
        full, compressed = np.asarray(self.full, float), np.asarray(self.compressed, float)
        if (
            full.ndim != 1
            or full.shape != compressed.shape
            or not (np.isfinite(full).all() and np.isfinite(compressed).all())
        ):
            raise InputError(
                f"paired returns have shapes {full.shape} and {compressed.shape}. Expected two "
                "vectors of finite numbers of one length, one pair per environment seed."
            )
        object.__setattr__(self, "full", full)
        object.__setattr__(self, "compressed", compressed)


@dataclass(frozen=True)
class Gap:
    """Return lost to compression."""

    mean: float
    """Of full minus compressed; positive means that compression costs return."""
    error: float
    """Standard error of the mean."""
    lower: float
    """One-sided lower confidence bound of the true gap (Student's t)."""
    scale: float
    """Unit for a relative gap: the spread of the full policy's returns between seeds, or a tenth of
    their mean where that is larger."""
    worse: bool
    """Whether the gap exceeds the tolerance at the given confidence."""


def paired_gap(returns: PairedReturns, *, confidence: float = 0.95, tolerance: float = 0.0) -> Gap:
    """Return the gap between two policies with a one-sided test.

    Args:
        returns: at least 2 pairs.
        confidence: that a gap within the tolerance is not called worse, from 0.5 to below 1.
        tolerance: in units of reward; AcceRL's delta.

    Raises:
        InputError: fewer than 2 pairs.
        ConfigError: an invalid confidence.
        MissingExtraError: SciPy is not installed.
    """
    if not 0.5 <= confidence < 1.0:
        raise ConfigError(f"the confidence is {confidence}. Expected 0.5 to below 1.")
    count = len(returns.full)
    if count < 2:
        raise InputError(f"got {count} pairs of returns. Expected at least 2.")
    gaps = returns.full - returns.compressed
    mean = float(gaps.mean())
    error = float(gaps.std(ddof=1)) / math.sqrt(count)
    with needed_for("comparing returns", "train"):
        from scipy.special import stdtrit
    lower = mean - float(stdtrit(count - 1, confidence)) * error
    scale = max(float(returns.full.std(ddof=1)), 0.1 * abs(float(returns.full.mean())), 1e-9)
    return Gap(mean, error, lower, scale, lower > tolerance)


@dataclass(frozen=True)
class MonitorBatch:
    """Rows of recent experience (not of old replay), as arrays.

    Raises:
        InputError: array shapes do not match.
        ConfigError: a ``tanh`` head without sigma.
    """

    spec: PolicySpec
    """Head of both networks (their trunks may differ)."""
    pi: Floats
    """(N, K) outputs of the learner's current network."""
    mu: Floats
    """(N, K) outputs of the network that acted."""
    versions: npt.NDArray[np.integer]
    """(N,) integers, the learner version from which each acting network was made."""
    learner_version: int
    """The learner's current version."""
    network: npt.NDArray[np.integer]
    """(N,) integers: 0 if the full precision network acted, 1 if the compressed one did."""
    log_pi: Floats | None = None
    """(N,) log probabilities of the executed actions under ``pi``, or None if unknown."""
    log_mu: Floats | None = None
    """(N,) the same under ``mu``, or None."""
    exploration: Exploration = Exploration()  # noqa: RUF009  (frozen)
    """Of the actors. ``tanh`` heads need sigma, the unit of action differences."""
    source: Floats | None = None
    """(N, K) outputs of the full precision network of each row's own version, if known: the
    compressor has them for its probe observations, and a learner may keep its last versions. ``mu``
    against ``source`` shows compression alone; ``mu`` against ``pi`` shows compression and
    staleness. Without them, ``pi`` serves as source for rows of the learner's current version
    only."""
    returns: PairedReturns | None = None
    """Of a paired evaluation since the last batch, if any."""
    evaluated: int | None = None
    """The version of these returns; None means the learner's current one."""
    full_returns: Doubles | None = None
    """(S,) of the full precision policy in an unpaired evaluation: the compressed policy was of
    another version, or could not act."""
    after: int | None = None
    """Skip compressed rows up to this version: they come from an earlier setting. The Monitor sets
    it."""

    def __post_init__(self) -> None:
        rows = len(self.mu)
        for name in ("pi", "mu", "source", "versions", "network", "log_pi", "log_mu"):
            array = getattr(self, name)
            outputs = name in ("pi", "mu", "source")
            shape = (rows, self.spec.outputs) if outputs else (rows,)
            if array is not None and array.shape != shape:
                raise InputError(
                    f"the monitor got {name} of shape {array.shape}. Expected {shape}."
                )
        if self.spec.head == "tanh" and self.exploration.sigma <= 0.0:
            raise ConfigError(
                "the monitor got a tanh head without exploration. Expected a sigma above 0: it is "
                "the unit of action differences."
            )

    @classmethod
    def of_returns(
        cls,
        spec: PolicySpec,
        returns: PairedReturns | Doubles,
        learner_version: int,
        evaluated: int | None = None,
    ) -> MonitorBatch:
        """Return a batch without rows that carries only an evaluation.

        ``returns`` are paired, or (S,) of the full precision policy alone, and of the version
        ``evaluated``; None means the learner's current one.
        """
        none = np.zeros((0, spec.outputs), dtype=np.float32)
        whole = np.zeros(0, dtype=np.int64)
        sigma = 1.0 if spec.head == "tanh" else 0.0
        return cls(
            spec, none, none, whole, learner_version, whole, exploration=Exploration(sigma=sigma),
            returns=returns if isinstance(returns, PairedReturns) else None, evaluated=evaluated,
            full_returns=None if isinstance(returns, PairedReturns) else returns,
        )  # fmt: skip

    @property
    def judged_returns(self) -> PairedReturns | None:
        """Paired returns of a version that was compressed with the current setting, or None."""
        version = self.learner_version if self.evaluated is None else self.evaluated
        return None if self.after is not None and version <= self.after else self.returns

    @cached_property
    def lag(self) -> npt.NDArray[np.int64]:
        """(N,) how many versions each acting network is behind the learner, at least 0.

        After a restore, experience may be of versions that the learner has yet to reach again.
        """
        return np.maximum(self.learner_version - self.versions.astype(np.int64), 0)

    def mask(self, rows: Rows, against: Against = "learner") -> Mask:
        """Return (N,) which rows to compare.

        ``"unsourced"`` rows are compressed ones without a known source; a comparison with the
        source leaves them out.
        """
        compressed: Mask = np.asarray(self.network == COMPRESSED)
        current: Mask = np.asarray(self.versions == self.learner_version)
        judged: Mask = np.ones(len(self.mu), dtype=np.bool_)
        if self.after is not None:
            judged &= ~compressed | (self.versions > self.after)
        if against == "source" and self.source is None:
            judged &= current
        if rows == "unsourced":
            return judged & compressed & ~current & (self.source is None)
        if rows == "compressed":
            return judged & compressed
        return judged & ~compressed if rows == "full" else judged

    def reference(self, against: Against) -> Floats:
        """Return (N, K) the outputs that ``mu`` is compared with."""
        return self.source if against == "source" and self.source is not None else self.pi

    def divergences(self, direction: Direction, against: Against = "learner") -> Doubles:
        """Return (N,) divergences in nats; infinite where an output is not finite.

        ``"mu_pi"`` is KL(mu || reference), ``"pi_mu"`` KL(reference || mu).
        """
        key = (direction, against if self.source is not None else "learner")
        if key not in self._cached:
            self._cached[key] = self._divergences(direction, against)
        return self._cached[key]

    @cached_property
    def _cached(self) -> dict[tuple[str, str], Doubles]:
        # Several indicators need the same divergences.
        return {}

    def action_errors(self, against: Against = "learner") -> Doubles:
        """Return (N,) root mean square difference of ``tanh`` heads' actions, in sigmas."""
        other = self.reference(against).astype(np.float64)
        apart = np.tanh(self.mu.astype(np.float64)) - np.tanh(other)
        errors: Doubles = np.sqrt((apart**2).mean(1)) / self.exploration.sigma
        return np.where(np.isfinite(errors), errors, np.inf)

    def _divergences(self, direction: Direction, against: Against) -> Doubles:
        if self.spec.head == "tanh":
            # KL of Gaussians around the actions themselves. Before the tanh, saturated networks
            # differ by many sigmas although their actions are the same.
            return 0.5 * self.spec.actions * self.action_errors(against) ** 2
        p, q = self.mu, self.reference(against)
        p, q = (p, q) if direction == "mu_pi" else (q, p)
        finite = np.isfinite(p).all(1) & np.isfinite(q).all(1)
        divergences = np.full(len(p), np.inf)
        divergences[finite] = kl(self.spec, p[finite], q[finite], self.exploration)
        return divergences

    def broken(self) -> str:
        """Say which network gave NaN or infinity; empty if none did."""
        acted: Mask = np.asarray(np.isfinite(self.mu).all(1))
        if self.log_mu is not None:
            acted &= np.isfinite(self.log_mu)
        compressed: Mask = np.asarray(self.network == COMPRESSED)
        for network, rows in (("compressed", compressed), ("full precision", ~compressed)):
            count = int((~acted[rows]).sum())
            if count:
                return f"the {network} network gave NaN or infinity in {count} rows"
        if not all(np.isfinite(self.reference(each)).all() for each in get_args(Against)):
            return "the learner's network gives NaN or infinity, so nothing can be compared to it"
        return ""
