"""The wrappers for Stable-Baselines3's vector environments. Imports SB3."""

from vinoreward.wrappers.sb3.forms import VecEncodedObservation as EncodedObservation
from vinoreward.wrappers.sb3.forms import VecLearnedReward as LearnedReward

__all__ = ["EncodedObservation", "LearnedReward"]
