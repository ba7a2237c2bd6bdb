from .backends.base import load_backend
from .bundles.bundle import Bundle
from .encoders import Encoder
from .rewards.alarms import RateAlarm, TrustMonitor
from .rewards.classifier import Classifier
from .rewards.decision import RewardOptions, SuccessDetector
from .rewards.interventions import Axis, Intervention, SearchSpace
from .rewards.judge import Judge
from .rewards.precision import PrecisionBound, PrecisionCertificate
from .rewards.reward_model import RewardModel
from .wrappers.encoded import EncodedObservation
from .wrappers.env_adapter import ImageInInfo
from .wrappers.learned_reward import LearnedReward
from .wrappers.sb3 import ClaimedVsTrue, VecEncodedObservation, VecLearnedReward
from .wrappers.true_success import TrueSuccess
from .wrappers.vector import VectorEncodedObservation, VectorLearnedReward

__version__: str

__all__ = [
    "Axis",
    "Bundle",
    "ClaimedVsTrue",
    "Classifier",
    "EncodedObservation",
    "Encoder",
    "ImageInInfo",
    "Intervention",
    "Judge",
    "LearnedReward",
    "PrecisionBound",
    "PrecisionCertificate",
    "RateAlarm",
    "RewardModel",
    "RewardOptions",
    "SearchSpace",
    "SuccessDetector",
    "TrueSuccess",
    "TrustMonitor",
    "VecEncodedObservation",
    "VecLearnedReward",
    "VectorEncodedObservation",
    "VectorLearnedReward",
    "load_backend",
]
