from .acting.environments import EnvironmentSpec
from .acting.evaluation import Evaluation, Player
from .config import ActorLearnerConfig
from .learners.base import Learner
from .learners.d4pg import D4PG, D4PGConfig
from .learners.dqn import DQN, DQNConfig
from .learners.impala import Impala, ImpalaConfig
from .progress import Progress, Summary
from .trainer import ActorLearner

__all__ = [
    "D4PG",
    "DQN",
    "ActorLearner",
    "ActorLearnerConfig",
    "D4PGConfig",
    "DQNConfig",
    "EnvironmentSpec",
    "Evaluation",
    "Impala",
    "ImpalaConfig",
    "Learner",
    "Player",
    "Progress",
    "Summary",
]
