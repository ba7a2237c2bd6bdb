from .actor_learner.acting.evaluation import Player
from .actor_learner.config import ActorLearnerConfig
from .actor_learner.trainer import ActorLearner
from .backends.base import load_backend
from .bundles.bundle import Bundle
from .compression.chain import CompressorChain
from .encoders import Encoder
from .policies.wire import load_policy, save_policy
from .rewards.alarms import FalseClaimAlarm, RateAlarm
from .rewards.classifier import Classifier
from .rewards.interventions import Axis, Intervention, SearchSpace
from .rewards.precision import PrecisionBound
from .rewards.success import SuccessDetector
from .rewards.trust import TrustMonitor
from .wrappers.batched import BatchedVecEnv, TrainMeanwhile
from .wrappers.curriculum import RandomizationCurriculum
from .wrappers.encoded import EncodedObservation
from .wrappers.later import RewardLater
from .wrappers.learned_reward import LearnedReward
from .wrappers.render_once import PictureInInfo
from .wrappers.sb3 import ClaimedVsTrue, VecEncodedObservation, VecLearnedReward
from .wrappers.true_success import TrueSuccess
from .wrappers.vector import VectorEncodedObservation, VectorLearnedReward

__version__: str

__all__ = [
    "ActorLearner",
    "ActorLearnerConfig",
    "Axis",
    "BatchedVecEnv",
    "Bundle",
    "ClaimedVsTrue",
    "Classifier",
    "CompressorChain",
    "EncodedObservation",
    "Encoder",
    "FalseClaimAlarm",
    "Intervention",
    "LearnedReward",
    "PictureInInfo",
    "Player",
    "PrecisionBound",
    "RandomizationCurriculum",
    "RateAlarm",
    "RewardLater",
    "SearchSpace",
    "SuccessDetector",
    "TrainMeanwhile",
    "TrueSuccess",
    "TrustMonitor",
    "VecEncodedObservation",
    "VecLearnedReward",
    "VectorEncodedObservation",
    "VectorLearnedReward",
    "load_backend",
    "load_policy",
    "save_policy",
]
