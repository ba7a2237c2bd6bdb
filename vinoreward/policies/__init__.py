"""Policies as plain data: layers, weights, and their arithmetic. No torch needed."""

from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import PolicySpec, mlp
from vinoreward.policies.wire import load_policy, save_policy

__all__ = ["Policy", "PolicySpec", "load_policy", "mlp", "save_policy"]
