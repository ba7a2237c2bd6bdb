"""Options of each command: one dataclass per command, without imports of this project."""

from vinoreward_training.configs.bundles import (
    AuditConfig,
    CalibrateConfig,
    CaptureConfig,
    DemoConfig,
    DoctorConfig,
    FinetuneConfig,
    GuardConfig,
    ImportClassifierConfig,
    ImportEncoderConfig,
    LabelConfig,
    MendConfig,
    QuantizeConfig,
    ScoreConfig,
    TrainVaeConfig,
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
    "GuardConfig",
    "ImportClassifierConfig",
    "ImportEncoderConfig",
    "LabelConfig",
    "MendConfig",
    "PlayConfig",
    "ProfileConfig",
    "QuantizeConfig",
    "RewardConfig",
    "ScoreConfig",
    "TrainConfig",
    "TrainVaeConfig",
]
