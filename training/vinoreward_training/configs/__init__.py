"""Options of each command: one dataclass per command, without imports of this project."""

from vinoreward_training.configs.bundles import (
    CaptureConfig,
    DemoConfig,
    DoctorConfig,
    FinetuneConfig,
    ImportEncoderConfig,
    QuantizeConfig,
    ScoreConfig,
    TrainVaeConfig,
)
from vinoreward_training.configs.policies import (
    ActorsConfig,
    BenchConfig,
    PlayConfig,
    ProfileConfig,
    TrainConfig,
)

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
    "ScoreConfig",
    "TrainConfig",
    "TrainVaeConfig",
]
