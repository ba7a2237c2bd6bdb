"""What trains with Stable-Baselines3 besides its own: batches, and training while they step.

Importing this imports SB3.
"""

from vinoreward_training.sb3.batched import BatchedVecEnv
from vinoreward_training.sb3.overlapped import OverlappedTraining

__all__ = ["BatchedVecEnv", "OverlappedTraining"]
