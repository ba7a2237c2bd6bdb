from .actor_learner.acting.evaluation import Player
from .actor_learner.config import ActorLearnerConfig
from .actor_learner.trainer import ActorLearner
from .compression.chain import CompressorChain
from .policies.wire import load_policy, save_policy
from .sb3.accelerate import accelerate

__all__ = [
    "ActorLearner",
    "ActorLearnerConfig",
    "CompressorChain",
    "Player",
    "accelerate",
    "load_policy",
    "save_policy",
]
