"""Options of each command: one dataclass per command, without imports of this project."""

from vinoreward_training.configs.bundles import (
    AuditConfig,
    CalibrateConfig,
    CaptureConfig,
    DemoConfig,
    DoctorConfig,
    FinetuneConfig,
    ImportConfig,
    Int8,
    LabelConfig,
    MendConfig,
    ScoreConfig,
    TrainVaeConfig,
    WatchConfig,
)
from vinoreward_training.configs.policies import (
    PlayConfig,
    ProfileConfig,
    TrainConfig,
)
from vinoreward_training.configs.reward import RewardConfig

__all__ = [
    "AuditConfig",
    "CalibrateConfig",
    "CaptureConfig",
    "DemoConfig",
    "DoctorConfig",
    "FinetuneConfig",
    "ImportConfig",
    "Int8",
    "LabelConfig",
    "MendConfig",
    "PlayConfig",
    "ProfileConfig",
    "RewardConfig",
    "ScoreConfig",
    "TrainConfig",
    "TrainVaeConfig",
    "WatchConfig",
]
