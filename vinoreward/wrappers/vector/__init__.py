"""The wrappers for Gymnasium's vector environments, as in ``gymnasium.wrappers.vector``."""

from vinoreward.wrappers.vector.encoded import VectorEncodedObservation as EncodedObservation
from vinoreward.wrappers.vector.learned_reward import VectorLearnedReward as LearnedReward

__all__ = ["EncodedObservation", "LearnedReward"]
