"""Policies as plain data: layers, weights, and their arithmetic. No torch needed."""

from vinoreward_actors.policies.policy import Policy
from vinoreward_actors.policies.spec import PolicySpec, mlp
from vinoreward_actors.policies.wire import load_policy, save_policy

__all__ = ["Policy", "PolicySpec", "load_policy", "mlp", "save_policy"]
