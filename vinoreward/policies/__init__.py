"""Policies as plain data: layers, weights, and their arithmetic. No torch needed."""

from vinoreward.policies.files import load_policy, save_policy
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import PolicySpec, mlp

__all__ = ["Policy", "PolicySpec", "load_policy", "mlp", "save_policy"]
