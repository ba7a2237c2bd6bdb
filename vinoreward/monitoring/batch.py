"""The input of indicators: rows of experience with the outputs of both networks."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError
from vinoreward.monitoring.returns import PairedReturns
from vinoreward.policies.distributions import Exploration, kl
from vinoreward.policies.spec import PolicySpec

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
class MonitorBatch:
    """Rows of recent experience (not of old replay), as arrays.

    Attributes:
        spec: head of both networks (their trunks may differ).
        pi: (N, K) outputs of the learner's current network.
        mu: (N, K) outputs of the network that acted.
        versions: (N,) integers, the learner version from which each acting network was made.
        learner_version: the learner's current version.
        network: (N,) integers: 0 if the full precision network acted, 1 if the compressed one did.
        log_pi: (N,) log probabilities of the executed actions under ``pi``, or None if unknown.
        log_mu: (N,) the same under ``mu``, or None.
        exploration: of the actors. ``tanh`` heads need sigma, the unit of action differences.
        source: (N, K) outputs of the full precision network of each row's own version, if known:
            the compressor has them for its probe observations, and a learner may keep its last
            versions. ``mu`` against ``source`` shows compression alone; ``mu`` against ``pi`` shows
            compression and staleness. Without them, ``pi`` serves as source for rows of the
            learner's current version only.
        returns: of a paired evaluation since the last batch, if any.
        evaluated: the version of these returns; None means the learner's current one.
        full_returns: (S,) of the full precision policy in an unpaired evaluation: the compressed
            policy was of another version, or could not act.
        after: skip compressed rows up to this version: they come from an earlier setting. The
            Monitor sets it.

    Raises:
        InputError: array shapes do not match.
        ConfigError: a ``tanh`` head without sigma.
    """

    spec: PolicySpec
    pi: Floats
    mu: Floats
    versions: npt.NDArray[np.integer]
    learner_version: int
    network: npt.NDArray[np.integer]
    log_pi: Floats | None = None
    log_mu: Floats | None = None
    exploration: Exploration = Exploration()  # noqa: RUF009  (frozen)
    source: Floats | None = None
    returns: PairedReturns | None = None
    evaluated: int | None = None
    full_returns: Doubles | None = None
    after: int | None = None

    def __post_init__(self) -> None:
        rows = len(self.mu)
        wanted = {
            "pi": (rows, self.spec.outputs),
            "mu": (rows, self.spec.outputs),
            "source": (rows, self.spec.outputs),
            "versions": (rows,),
            "network": (rows,),
            "log_pi": (rows,),
            "log_mu": (rows,),
        }
        for name, shape in wanted.items():
            array = getattr(self, name)
            if array is not None and array.shape != shape:
                raise InputError(
                    f"the monitor got {name} of shape {array.shape}. Expected {shape}."
                )
        if self.spec.head == "tanh" and self.exploration.unit <= 0.0:
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

        Args:
            spec: of the policy.
            returns: paired returns, or (S,) of the full precision policy alone.
            learner_version: the learner's current version.
            evaluated: the version of these returns; None means the learner's current one.
        """
        none = np.zeros((0, spec.outputs), dtype=np.float32)
        whole = np.zeros(0, dtype=np.int64)
        sigma = 1.0 if spec.head == "tanh" else 0.0
        return cls(
            spec, none, none, whole, learner_version, whole, exploration=Exploration(sigma=sigma),
            returns=returns if isinstance(returns, PairedReturns) else None,
            evaluated=evaluated,
            full_returns=None if isinstance(returns, PairedReturns) else returns,
        )  # fmt: skip

    def judged_after(self, version: int | None) -> MonitorBatch:
        """Return a copy whose compressed rows count only if they are of later versions."""
        return dataclasses.replace(self, after=version)

    @property
    def judged_returns(self) -> PairedReturns | None:
        """Paired returns of a version that was compressed with the current setting, or None."""
        version = self.learner_version if self.evaluated is None else self.evaluated
        return None if self.after is not None and version <= self.after else self.returns

    @cached_property
    def lag(self) -> npt.NDArray[np.int64]:
        """(N,) how many versions each acting network is behind the learner.

        At least 0: after a restore, experience may be of versions the learner has yet to reach
        again.
        """
        behind = self.learner_version - self.versions.astype(np.int64)
        return np.maximum(behind, 0)

    def mask(self, rows: Rows, against: Against = "learner") -> Mask:
        """Return (N,) which rows to compare.

        Args:
            rows: whose: ``"compressed"``, ``"full"`` or ``"all"``; ``"unsourced"`` are compressed
                rows without a known source.
            against: ``"source"`` leaves out rows without a known source.
        """
        compressed: Mask = np.asarray(self.network == COMPRESSED)
        judged: Mask = np.ones(len(self.mu), dtype=np.bool_)
        if self.after is not None:
            judged &= ~compressed | (self.versions > self.after)
        if against == "source" and self.source is None:
            judged &= self.versions == self.learner_version
        if rows == "unsourced":
            if self.source is not None:
                return np.zeros_like(judged)
            older: Mask = np.asarray(self.versions != self.learner_version)
            return judged & compressed & older
        if rows == "compressed":
            return judged & compressed
        return judged & ~compressed if rows == "full" else judged

    def reference(self, against: Against) -> Floats:
        """Return (N, K) the outputs that ``mu`` is compared with."""
        return self.source if against == "source" and self.source is not None else self.pi

    def divergences(self, direction: Direction, against: Against = "learner") -> Doubles:
        """Return (N,) divergences in nats; infinite where an output is not finite.

        Args:
            direction: ``"mu_pi"``: KL(mu || reference); ``"pi_mu"``: KL(reference || mu).
            against: the reference.
        """
        key = (direction, against if self.source is not None else "learner")
        if key not in self._cached:
            other = self.reference(against)
            pair = (self.mu, other) if direction == "mu_pi" else (other, self.mu)
            self._cached[key] = self._divergences(*pair)
        return self._cached[key]

    def action_errors(self, against: Against = "learner") -> Doubles:
        """Return (N,) root mean square difference of ``tanh`` heads' actions, in sigmas."""
        return self._apart(self.mu, self.reference(against))

    @cached_property
    def _cached(self) -> dict[tuple[str, str], Doubles]:
        # Several indicators need the same divergences.
        return {}

    def _apart(self, p: Floats, q: Floats) -> Doubles:
        apart = np.tanh(p.astype(np.float64)) - np.tanh(q.astype(np.float64))
        errors: Doubles = np.sqrt((apart**2).mean(1)) / self.exploration.unit
        return np.where(np.isfinite(errors), errors, np.inf)

    def _divergences(self, p: Floats, q: Floats) -> Doubles:
        if self.spec.head == "tanh":
            # KL of Gaussians around the actions themselves. Before the tanh, saturated networks
            # differ by many sigmas although their actions are the same.
            return 0.5 * self.spec.actions * self._apart(p, q) ** 2
        finite = np.isfinite(p).all(1) & np.isfinite(q).all(1)
        found = np.full(len(p), np.inf)
        found[finite] = kl(self.spec, p[finite], q[finite], self.exploration)
        return found

    def broken(self) -> str:
        """Say which network gave NaN or infinity; empty if none did."""
        acted: Mask = np.asarray(np.isfinite(self.mu).all(1))
        if self.log_mu is not None:
            acted &= np.isfinite(self.log_mu)
        compressed: Mask = np.asarray(self.network == COMPRESSED)
        words = ""
        if not acted[compressed].all():
            count = int((~acted[compressed]).sum())
            words = f"the compressed network gave NaN or infinity in {count} rows"
        elif not acted.all():
            words = f"the full precision network gave NaN or infinity in {(~acted).sum()} rows"
        elif not all(np.isfinite(self.reference(each)).all() for each in get_args(Against)):
            words = "the learner's network gives NaN or infinity, so nothing can be compared to it"
        return words
