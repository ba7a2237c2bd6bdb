"""Learned rewards and latent observations around any environment.

The same for Gymnasium's vector environments in :mod:`vinoreward.wrappers.vector`, and for those of
Stable-Baselines3 in :mod:`vinoreward.wrappers.sb3`.
"""

from vinoreward.wrappers.encoded import EncodedObservation
from vinoreward.wrappers.learned_reward import LearnedReward
from vinoreward.wrappers.render_once import PictureInInfo
from vinoreward.wrappers.true_success import TrueSuccess

__all__ = ["EncodedObservation", "LearnedReward", "PictureInInfo", "TrueSuccess"]
