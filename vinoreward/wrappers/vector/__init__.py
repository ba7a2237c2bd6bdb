"""The wrappers for Gymnasium's vector environments, as in ``gymnasium.wrappers.vector``."""

from vinoreward.wrappers.vector.forms import VectorEncodedObservation as EncodedObservation
from vinoreward.wrappers.vector.forms import VectorLearnedReward as LearnedReward

__all__ = ["EncodedObservation", "LearnedReward"]
