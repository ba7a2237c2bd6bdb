"""How far compressed actors are off, and what is to be done about it. Pure; NumPy only."""

from vinoreward_actors.monitoring.batch import (
    COMPRESSED,
    FULL,
    Gap,
    MonitorBatch,
    PairedReturns,
    paired_gap,
)
from vinoreward_actors.monitoring.indicators import (
    KL,
    CumulativeReward,
    EffectiveSampleSize,
    Indicator,
    PolicyLag,
    QRegret,
    ReturnGap,
    default_indicators,
)
from vinoreward_actors.monitoring.monitor import (
    Change,
    KLMonitor,
    Monitor,
    Reading,
    default_monitor,
    default_strategy,
)
from vinoreward_actors.monitoring.strategies import (
    LinearAlpha,
    Staged,
    SwitchPrecision,
    Threshold,
)
from vinoreward_actors.monitoring.strategy import CompressionSetting, Limit, Strategy

__all__ = [
    "COMPRESSED",
    "FULL",
    "KL",
    "Change",
    "CompressionSetting",
    "CumulativeReward",
    "EffectiveSampleSize",
    "Gap",
    "Indicator",
    "KLMonitor",
    "Limit",
    "LinearAlpha",
    "Monitor",
    "MonitorBatch",
    "PairedReturns",
    "PolicyLag",
    "QRegret",
    "Reading",
    "ReturnGap",
    "Staged",
    "Strategy",
    "SwitchPrecision",
    "Threshold",
    "default_indicators",
    "default_monitor",
    "default_strategy",
    "paired_gap",
]
