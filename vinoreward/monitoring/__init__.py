"""How far compressed actors are off, and what is to be done about it. Pure; NumPy only."""

from vinoreward.monitoring.batch import (
    COMPRESSED,
    FULL,
    Gap,
    MonitorBatch,
    PairedReturns,
    paired_gap,
)
from vinoreward.monitoring.defaults import default_indicators, default_monitor, default_strategy
from vinoreward.monitoring.indicators import (
    KL,
    ActionError,
    ClippedFraction,
    CumulativeReward,
    EffectiveSampleSize,
    Entropy,
    Indicator,
    PolicyLag,
    QRegret,
    ReturnGap,
)
from vinoreward.monitoring.monitor import Change, KLMonitor, Monitor, Reading
from vinoreward.monitoring.strategies import (
    AdaptivePull,
    AdaptiveSparsity,
    LinearAlpha,
    Staged,
    SwitchPrecision,
    Threshold,
)
from vinoreward.monitoring.strategy import Composite, CompressionSetting, Limit, Strategy

__all__ = [
    "COMPRESSED",
    "FULL",
    "KL",
    "ActionError",
    "AdaptivePull",
    "AdaptiveSparsity",
    "Change",
    "ClippedFraction",
    "Composite",
    "CompressionSetting",
    "CumulativeReward",
    "EffectiveSampleSize",
    "Entropy",
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
