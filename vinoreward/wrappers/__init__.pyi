from .encoded import EncodedObservation
from .env_adapter import ImageInInfo
from .learned_reward import LearnedReward
from .true_success import TrueSuccess

__all__ = ["EncodedObservation", "ImageInInfo", "LearnedReward", "TrueSuccess"]
