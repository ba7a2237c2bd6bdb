"""The default monitor: limits, the measurements behind them, and a strategy.

Each row shows the largest KL(compressed || its own full precision network) and the return lost in
paired episodes. Pendulum: SAC, two trained policies, greedy actions. CartPole: A2C, two policies,
sampled actions. INT8 has fixed activation ranges and one weight scale per output. Nothing is
distilled unless the row says so.

========================================  ========================  =======================
variant                                   Pendulum: KL, lost        CartPole: KL, lost
========================================  ========================  =======================
half precision                            0.000  0 of 191           0.000          0 of 108
INT8, min-max ranges, first layer float   0.01, 0.02  0             0.001          0
pruned by half and distilled              0.32  0 of 151
INT8, min-max ranges everywhere           0.7, 1.4  0               0.001, 0.063   0
weights of 5 bits                         4.9  1 of 191             0.000          0
weights of 4 bits                         13.6  209 of 191          0.004          0
weights of 2 bits                         40  1140 of 191           0.059, 0.100   62 of 108
INT8, NNCF's MIXED preset                 24  648 of 151
INT8, NNCF's default ranges: mean of      70, 92  703, 789          0.235, 0.381   71 of 108
each observation's minimum and maximum
========================================  ========================  =======================

The mean action error does not rank these (Pendulum: 4 bits 0.08, 5 bits 0.21, of 2). The limits lie
between harmless and clipped ranges, nearer to the harmless side: a false alarm costs speed, a
missed alarm costs the training. For Gaussians, 6 nats are 3.5 standard deviations between two
actions. Softmax policies have far smaller divergences, at most the negative log of the learner's
smallest probability. Their limit does not detect a small bias everywhere, as with 2 bits; the
paired return does.

Q-regret, from DQN on CartPole (two policies): 8-bit weights give up to 0.19 (mean) and 4 (maximum),
with returns moving both ways. NNCF's default ranges give 0.33 and 0.76 (mean), 7.6 and 27
(maximum), and lose two thirds of the return.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from vinoreward.monitoring.batch import Against
from vinoreward.monitoring.indicators import (
    KL,
    WINDOW,
    ActionError,
    ClippedFraction,
    CumulativeReward,
    EffectiveSampleSize,
    Entropy,
    Indicator,
    PolicyLag,
    QRegret,
    ReturnGap,
    Statistic,
)
from vinoreward.monitoring.monitor import Monitor
from vinoreward.monitoring.strategies import STOP, AdaptivePull, Threshold
from vinoreward.monitoring.strategy import Composite, CompressionSetting, Limit, Strategy
from vinoreward.policies.spec import Head

# Compression alone, for rows with a known source; far stricter than the limits that include lag.
GAUSSIAN_KL_MAX = Limit("compression_kl_mu_pi_max", bad=6.0, good=1.5)
SOFTMAX_KL_MAX = Limit("compression_kl_mu_pi_max", bad=0.2, good=0.1)
Q_REGRET_MEAN = Limit("compression_q_regret_mean", bad=0.25, good=0.2)
Q_REGRET_MAX = Limit("compression_q_regret_max", bad=5.0, good=4.0)
# Compression and staleness together: only for rows whose own full precision network is unknown.
# Not for deterministic policies: one push of a new D4PG policy moves its actions by 45 to 57 nats
# (walker-stand, sigma 0.2), of which INT8 is less than 0.001.
UNSOURCED_KL_MAX = Limit("kl_mu_pi_max_unsourced", bad=6.0, good=3.0)
ESS = Limit("ess_compressed", bad=0.1, good=0.3)
"""Below 0.1, nine rows in ten are wasted, and so is whatever compression saves."""
RETURN_GAP = Limit("return_gap_relative", bad=0.1, good=0.05)
"""A bound: the loss is at least this fraction of the returns' spread."""


def default_indicators(head: Head, *, window: int = WINDOW) -> list[Indicator]:
    """Return the indicators for a kind of head.

    Args:
        head: of the policy.
        window: number of rows in each indicator's window.
    """
    found: list[Indicator] = [
        PolicyLag("mean", window=window),
        PolicyLag("max", window=window),
        EffectiveSampleSize("all", window=window),
        EffectiveSampleSize("compressed", window=window),
        ClippedFraction(window=window),
        CumulativeReward(),
        ReturnGap("mean"),
        ReturnGap("error"),
        ReturnGap("relative"),
    ]
    if head == "q":
        # No KL here: for greedy policies it is infinite or zero, and for a softmax of the values
        # it depends on the scale of the reward.
        for against in get_args(Against):
            found.append(QRegret("mean", against=against, window=window))
            found.append(QRegret("max", against=against, window=window))
        return found
    if head != "tanh":
        found.append(KL("max", "mu_pi", rows="unsourced", window=window))
    for against in get_args(Against):
        for statistic in get_args(Statistic):
            found.append(KL(statistic, "mu_pi", against=against, window=window))
            found.append(KL(statistic, "pi_mu", against=against, window=window))
        if head == "tanh":
            found.append(ActionError("rmse", against=against, window=window))
    if head != "tanh":
        found += [Entropy("pi", window=window), Entropy("mu", window=window)]
    return found


def default_strategy(
    head: Head = "tanh_gaussian", safer: Sequence[Mapping[str, Any]] = ()
) -> Strategy:
    """Return a strategy that stops harmful compression before the return drops.

    A limit that is passed selects the first safer setting at once. If no safer setting helps,
    compression stops and actors run the learner's own weights. Stepping back takes 50 good rounds,
    doubled by each relapse. Independently, actors pull weights more often while experience is
    stale.

    Args:
        head: of the policy; softmax policies have smaller divergences than Gaussian ones.
        safer: setting changes to try before compression stops, for example from
            ``CompressorChain.safer()``. Each must act faster than the learner's own weights.
            Half precision does not (3x2048 on OpenVINO: 1.43 ms a step against 1.34), and nothing
            is safer than the learner's weights.
    """
    largest = SOFTMAX_KL_MAX if head == "logits" else GAUSSIAN_KL_MAX
    guard = Threshold(
        (largest, Q_REGRET_MEAN, Q_REGRET_MAX, UNSOURCED_KL_MAX, ESS, RETURN_GAP), (*safer, STOP)
    )
    return Composite([guard, AdaptivePull()])


def default_monitor(
    head: Head, setting: CompressionSetting | None = None, safer: Sequence[Mapping[str, Any]] = ()
) -> Monitor:
    """Return the monitor that a training uses by default.

    Args:
        head: of the policy.
        setting: the initial setting.
        safer: see :func:`default_strategy`.
    """
    return Monitor(default_indicators(head), default_strategy(head, safer), setting)
