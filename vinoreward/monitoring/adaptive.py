"""Strategies that adjust one parameter in small steps, in both directions."""

from __future__ import annotations

from collections.abc import Sequence

from vinoreward.errors import ConfigError
from vinoreward.monitoring.judge import Judge, Limit
from vinoreward.monitoring.setting import MOST_SPARSE, CompressionSetting
from vinoreward.monitoring.strategy import Readings, Strategy


class LinearAlpha(Strategy):
    """AcceRL's linear strategy: the further the compressed network is off, the less it acts.

    alpha falls linearly from 1 at ``low`` to ``least`` at ``high``.

    Args:
        low: up to this reading the compressed network always acts.
        high: from this reading on it acts with probability ``least``.
        reading: AcceRL uses the mean of KL(learner || compressed).
        least: alpha at ``high``. At 0 there are no compressed rows any more; only readings from a
            compressor's probe observations can then raise alpha again.
        step: smallest change of alpha; each change is a message to every actor.

    Raises:
        ConfigError: the numbers do not make a falling line.
    """

    def __init__(
        self,
        low: float,
        high: float,
        *,
        reading: str = "kl_pi_mu_mean",
        least: float = 0.05,
        step: float = 0.05,
    ) -> None:
        if not (0.0 <= low < high and 0.0 <= least < 1.0 and 0.0 <= step <= 0.5):
            raise ConfigError(
                f"alpha falls between readings {low} and {high} to {least} in steps of {step}. "
                "Expected 0 <= low < high, 0 <= least < 1 and a step of at most 0.5."
            )
        self._low, self._high, self._reading = low, high, reading
        self._least, self._step = least, step

    def alpha(self, value: float) -> float:
        """Return alpha for a reading."""
        part = min(1.0, max(0.0, (self._high - value) / (self._high - self._low)))
        return self._least + (1.0 - self._least) * part

    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """See :meth:`Strategy.decide`."""
        if self._reading not in readings:
            return setting
        value = readings[self._reading]
        alpha = self.alpha(value)
        at_an_end = alpha in (self._least, 1.0)
        if alpha == setting.alpha or (not at_an_end and abs(alpha - setting.alpha) < self._step):
            return setting
        self.reason = (
            f"{self._reading} is {value:.4g}, between {self._low:.4g} (always compressed) and "
            f"{self._high:.4g}"
        )
        return setting.changed({"alpha": alpha})

    def reads(self) -> tuple[str, ...]:
        """See :meth:`Strategy.reads`."""
        return (self._reading,)


class AdaptiveSparsity(Strategy):
    """Prunes more while all readings are good, and less as soon as one is bad.

    Args:
        limits: limits on the readings.
        step: change of sparsity per step.
        lowest: minimum sparsity.
        highest: maximum sparsity.
        patience: good rounds in a row before pruning more. Each relapse doubles it, so the
            strategy settles below the sparsity that fails.
        cooldown: rounds without a verdict after each step.

    Raises:
        ConfigError: invalid numbers.
    """

    remembered = ("judge", "raised")

    def __init__(
        self,
        limits: Sequence[Limit],
        *,
        step: float = 0.1,
        lowest: float = 0.0,
        highest: float = 0.75,
        patience: int = 20,
        cooldown: int = 3,
    ) -> None:
        if not (0.0 <= lowest < highest <= MOST_SPARSE and step > 0.0):
            raise ConfigError(
                f"sparsity ranges from {lowest} to {highest} in steps of {step}. Expected "
                f"0 <= lowest < highest <= {MOST_SPARSE} and a step above 0."
            )
        self.judge = Judge(limits, patience=patience, cooldown=cooldown)
        self._step, self._lowest, self._highest = step, lowest, highest
        self.raised = False

    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """See :meth:`Strategy.decide`."""
        verdict = self.judge.verdict(readings)
        if verdict not in ("good", "bad"):
            return setting
        sign = 1.0 if verdict == "good" else -1.0
        wanted = setting.sparsity + sign * self._step
        # Rounded, so that ten steps of 0.1 make exactly 1.
        sparsity = round(min(self._highest, max(self._lowest, wanted)), 6)
        if sparsity == setting.sparsity:
            return setting
        self.judge.changed(relapsed=verdict == "bad" and self.raised)
        self.raised = verdict == "good"
        self.reason = self.judge.reason
        return setting.changed({"sparsity": sparsity})

    def reads(self) -> tuple[str, ...]:
        """See :meth:`Strategy.reads`."""
        return self.judge.reads()


class AdaptivePull(Strategy):
    """Pulls weights twice as often when experience is stale, half as often when it is fresh.

    Args:
        limits: limits on the readings; by default on the effective sample size.
        shortest: minimum pull period in environment steps.
        longest: maximum pull period; None means the initial one.
        patience: good rounds in a row before pulling less often.
        cooldown: rounds without a verdict after each step.

    Raises:
        ConfigError: invalid numbers.
    """

    remembered = ("judge", "longest", "slowed")

    def __init__(
        self,
        limits: Sequence[Limit] = (Limit("ess", bad=0.5, good=0.8),),
        *,
        shortest: int = 1,
        longest: int | None = None,
        patience: int = 50,
        cooldown: int = 5,
    ) -> None:
        if shortest < 1 or (longest is not None and longest < shortest):
            raise ConfigError(
                f"pull periods range from {shortest} to {longest}. Expected a shortest of at least "
                "1 step and a longest that is not below it."
            )
        self.judge = Judge(limits, patience=patience, cooldown=cooldown)
        self._shortest = shortest
        self.longest = longest
        self.slowed = False

    def decide(self, readings: Readings, setting: CompressionSetting) -> CompressionSetting:
        """See :meth:`Strategy.decide`."""
        if self.longest is None:
            self.longest = setting.pull_period
        verdict = self.judge.verdict(readings)
        period = setting.pull_period
        if verdict == "bad":
            period = max(self._shortest, period // 2)
        elif verdict == "good":
            period = min(self.longest, period * 2)
        # Leave a setting outside these bounds alone rather than push it the wrong way.
        if period == setting.pull_period or (period > setting.pull_period) != (verdict == "good"):
            return setting
        self.judge.changed(relapsed=verdict == "bad" and self.slowed)
        self.slowed = verdict == "good"
        self.reason = self.judge.reason
        return setting.changed({"pull_period": period})

    def reads(self) -> tuple[str, ...]:
        """See :meth:`Strategy.reads`."""
        return self.judge.reads()
