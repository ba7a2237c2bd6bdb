from .actor_learner.acting.evaluation import Player
from .actor_learner.config import ActorLearnerConfig
from .actor_learner.trainer import ActorLearner
from .compression.chain import CompressorChain
from .policies.wire import load_policy, save_policy

__all__ = [
    "ActorLearner",
    "ActorLearnerConfig",
    "CompressorChain",
    "Player",
    "load_policy",
    "save_policy",
]
