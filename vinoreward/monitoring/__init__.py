"""How far compressed actors are off, and what is to be done about it. Pure; NumPy only."""

from vinoreward.monitoring.adaptive import AdaptivePull, AdaptiveSparsity, LinearAlpha
from vinoreward.monitoring.batch import COMPRESSED, FULL, MonitorBatch
from vinoreward.monitoring.defaults import default_indicators, default_monitor, default_strategy
from vinoreward.monitoring.experience import (
    ClippedFraction,
    CumulativeReward,
    EffectiveSampleSize,
    PolicyLag,
    ReturnGap,
)
from vinoreward.monitoring.indicators import KL, ActionError, Entropy, Indicator, QRegret
from vinoreward.monitoring.judge import Limit
from vinoreward.monitoring.monitor import Change, KLMonitor, Monitor, Reading
from vinoreward.monitoring.returns import Gap, PairedReturns, paired_gap
from vinoreward.monitoring.setting import CompressionSetting
from vinoreward.monitoring.staged import Staged
from vinoreward.monitoring.strategy import Composite, Strategy
from vinoreward.monitoring.threshold import SwitchPrecision, Threshold

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
