from .encoded import EncodedObservation
from .learned_reward import LearnedReward
from .render_once import ImageInInfo
from .true_success import TrueSuccess

__all__ = ["EncodedObservation", "ImageInInfo", "LearnedReward", "TrueSuccess"]
