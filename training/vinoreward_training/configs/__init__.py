"""Options of each command: one dataclass per command, without imports of this project."""

from vinoreward_training.configs.bundles import (
    CaptureConfig,
    FinetuneConfig,
    ImportEncoderConfig,
    QuantizeConfig,
    TrainVaeConfig,
)
from vinoreward_training.configs.checks import BenchConfig, DemoConfig, DoctorConfig, ProfileConfig
from vinoreward_training.configs.policies import ActorsConfig, PlayConfig, TrainConfig

__all__ = [
    "ActorsConfig",
    "BenchConfig",
    "CaptureConfig",
    "DemoConfig",
    "DoctorConfig",
    "FinetuneConfig",
    "ImportEncoderConfig",
    "PlayConfig",
    "ProfileConfig",
    "QuantizeConfig",
    "TrainConfig",
    "TrainVaeConfig",
]
