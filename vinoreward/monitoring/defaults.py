"""What watches a training when its user does not say: limits, where they come from, and a strategy.

Each line: the largest KL(compressed || its own full precision network), and the return lost in
paired episodes. Pendulum: SAC, two trained policies, best actions. CartPole: A2C, two policies,
actions drawn as actors draw them. INT8 has fixed activation ranges, weights have one scale for each
output; nothing was distilled unless it says so.

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
INT8, ranges as NNCF's default: mean of   70, 92  703, 789          0.235, 0.381   71 of 108
each observation's least and largest
========================================  ========================  =======================

The mean error of actions does not rank these (Pendulum: 4 bits 0.08, 5 bits 0.21, of 2). Limits lie
between harmless and clipped ranges, nearer to the harmless side: a false alarm costs speed, a
missed one the training. For Gaussians 6 nats are 3.5 standard deviations between two actions.
Softmax policies have far smaller divergences, and none larger than the logarithm of the learner's
least probability. What the limit for them does not see is a small bias everywhere, as of 2 bits:
that is left to the paired return.

Q-regret, from DQN on CartPole (two policies): weights of 8 bits up to 0.19 (mean) and 4 (largest),
with returns that moved both ways; ranges as NNCF's 0.33 and 0.76 (mean), 7.6 and 27 (largest), with
two thirds of the return lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, get_args

from vinoreward.monitoring.adaptive import AdaptivePull
from vinoreward.monitoring.batch import Against
from vinoreward.monitoring.experience import (
    ClippedFraction,
    CumulativeReward,
    EffectiveSampleSize,
    PolicyLag,
    ReturnGap,
)
from vinoreward.monitoring.indicators import (
    KL,
    WINDOW,
    ActionError,
    Entropy,
    Indicator,
    QRegret,
    Statistic,
)
from vinoreward.monitoring.judge import Limit
from vinoreward.monitoring.monitor import Monitor
from vinoreward.monitoring.setting import CompressionSetting
from vinoreward.monitoring.strategy import Composite, Strategy
from vinoreward.monitoring.threshold import STOP, Threshold
from vinoreward.policies.spec import Head

# Compression alone, where the source of each row is known; far stricter than what age allows.
GAUSSIAN_KL_MAX = Limit("compression_kl_mu_pi_max", bad=6.0, good=1.5)
SOFTMAX_KL_MAX = Limit("compression_kl_mu_pi_max", bad=0.2, good=0.1)
Q_REGRET_MEAN = Limit("compression_q_regret_mean", bad=0.25, good=0.2)
Q_REGRET_MAX = Limit("compression_q_regret_max", bad=5.0, good=4.0)
# Compression and staleness together: what no age of a few versions explains.
KL_MAX = Limit("kl_mu_pi_max", bad=6.0, good=3.0)
ESS = Limit("ess_compressed", bad=0.1, good=0.3)
"""Below a tenth, nine rows in ten are wasted: whatever compression saves is lost."""
RETURN_GAP = Limit("return_gap_relative", bad=0.1, good=0.05)
"""Certainly a tenth of the returns' own spread."""


def default_indicators(head: Head, *, window: int = WINDOW) -> list[Indicator]:
    """Return the indicators for a kind of head.

    Args:
        head: of the policy.
        window: rows to look back on.
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
        # Not the KL: of greedy policies it is infinite or nought, of a softmax of values it
        # depends on the scale of the reward.
        for against in get_args(Against):
            found.append(QRegret("mean", against=against, window=window))
            found.append(QRegret("max", against=against, window=window))
        return found
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
    """Return the strategy that stops a compression which hurts before the return shows it.

    A limit that is passed goes to the first safer setting at once, and if none helps stops
    compression: then actors run the learner's own weights. The way back takes 50 good rounds, and
    twice as many after each relapse. Apart from that, weights are pulled more often while
    experience is stale.

    Args:
        head: of the policy; softmax policies have smaller divergences than Gaussian ones.
        safer: changes of the setting to try before compression is stopped, such as
            ``CompressorChain.safer()`` gives. Each has to act faster than the learner's own weights
            do, which half precision does not (3x2048 on OpenVINO: 1.43 ms a step against 1.34):
            nothing is safer than those.
    """
    largest = SOFTMAX_KL_MAX if head == "logits" else GAUSSIAN_KL_MAX
    guard = Threshold(
        (largest, Q_REGRET_MEAN, Q_REGRET_MAX, KL_MAX, ESS, RETURN_GAP),
        (*safer, STOP),
    )
    return Composite([guard, AdaptivePull()])


def default_monitor(
    head: Head,
    setting: CompressionSetting | None = None,
    safer: Sequence[Mapping[str, Any]] = (),
) -> Monitor:
    """Return the monitor that watches a training when its user does not say.

    Args:
        head: of the policy.
        setting: to begin with.
        safer: see :func:`default_strategy`.
    """
    return Monitor(default_indicators(head), default_strategy(head, safer), setting)
