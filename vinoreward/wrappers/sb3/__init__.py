"""The wrappers for Stable-Baselines3's vector environments. Imports SB3."""

from vinoreward.wrappers.sb3.encoded import VecEncodedObservation as EncodedObservation
from vinoreward.wrappers.sb3.learned_reward import VecLearnedReward as LearnedReward

__all__ = ["EncodedObservation", "LearnedReward"]
