"""The built-in correctors, as frozen dataclasses of their parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward_actors.correction import returns
from vinoreward_actors.correction.corrector import Corrector, Estimate, OffPolicyBatch, Role


def _check_share(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise ConfigError(f"{name} is {value}; expected a number from 0 to 1.")


def _check_limit(name: str, value: float) -> None:
    if not value > 0.0:
        raise ConfigError(
            f"{name} is {value}; expected a truncation above 0, e.g. 1.0, or math.inf for none."
        )


@dataclass(frozen=True)
class VTrace(Corrector):
    """V-trace for actor-critic (Espeholt et al. 2018), see :func:`vtrace`.

    It weights the policy gradient with ``min(rho, rho_t)``; a corrector of role
    ``policy_gradient`` replaces that weight.

    Raises:
        ConfigError: ``rho`` or ``c`` not above 0, ``c`` above ``rho``, ``lam`` not in 0 to 1.
    """

    rho: float = 1.0
    """Truncation of the temporal difference's ratio; decides what is learned. ``math.inf`` gives
    ``V^pi``."""
    c: float = 1.0
    """Truncation of the trace's ratio; decides how fast, and with how much variance."""
    lam: float = 1.0
    """Decay of the trace, 0 to 1."""

    role: ClassVar[Role] = "target"

    def __post_init__(self) -> None:
        _check_limit("rho", self.rho)
        _check_limit("c", self.c)
        _check_share("lam", self.lam)
        if self.c > self.rho:
            raise ConfigError(
                f"c is {self.c} and rho is {self.rho}; V-trace is defined for c <= rho (Espeholt "
                "et al. 2018, section 4.1). Lower c or raise rho."
            )

    def correct(self, batch: OffPolicyBatch, estimate: Estimate) -> Estimate:
        """Return V-trace's targets, advantages and weights."""
        log_rhos = batch.log_rhos
        # An overflow becomes an infinity, which Correction reports.
        with np.errstate(over="ignore", invalid="ignore"):
            result = returns.vtrace(
                **batch.return_arguments, log_rhos=log_rhos, values=batch.values,
                rho=self.rho, c=self.c, lam=self.lam,
            )  # fmt: skip
        clipped = np.exp(log_rhos) > self.rho
        return Estimate(*result, clipped)


@dataclass(frozen=True)
class ImportanceSampling(Corrector):
    """Truncated importance weights on the policy gradient, ``min(rho, rho_t)``.

    Works with any corrector of role ``target``.

    Raises:
        ConfigError: ``rho`` not above 0.
    """

    rho: float = 1.0
    """Truncation; ``math.inf`` for none."""

    role: ClassVar[Role] = "policy_gradient"

    def __post_init__(self) -> None:
        _check_limit("rho", self.rho)

    def correct(self, batch: OffPolicyBatch, estimate: Estimate) -> Estimate:
        """Return the estimate with these weights."""
        log_rhos = batch.log_rhos
        return replace(
            estimate,
            weights=returns.truncated_weights(log_rhos, self.rho),
            clipped=estimate.clipped | (np.exp(log_rhos) > self.rho),
        )


@dataclass(frozen=True)
class NoCorrection(Corrector):
    """Uncorrected returns.

    Learns the behaviour policy's return over the horizon of the target, plus the learner's value
    after it.

    Raises:
        ConfigError: ``lam`` not in 0 to 1.
    """

    lam: float = 1.0
    """Decay of lambda-returns, 0 to 1: 1 sums up to the end of the episode or of the array, 0 is
    one step."""

    role: ClassVar[Role] = "target"

    def __post_init__(self) -> None:
        _check_share("lam", self.lam)

    def correct(self, batch: OffPolicyBatch, estimate: Estimate) -> Estimate:
        """Return uncorrected targets; weights stay 1."""
        targets = returns.lambda_returns(**batch.return_arguments, lam=self.lam)
        return replace(estimate, targets=targets, advantages=targets - batch.values)
