"""Batches and correctors that the tests of the correction share."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from vinoreward_actors.correction import Corrector, OffPolicyBatch


def make_batch(seed=0, steps=5, batch=4, dtype=np.float64, **changes):
    random = np.random.default_rng(seed)
    shape = (steps, batch)
    arrays = {
        "log_pi": -random.exponential(size=shape),
        "log_mu": -random.exponential(size=shape),
        "rewards": random.normal(size=shape),
        "values": random.normal(size=shape),
        "next_values": random.normal(size=shape),
    }
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    arrays["terminated"] = random.random(shape) < 0.2
    arrays["truncated"] = random.random(shape) < 0.2
    return OffPolicyBatch(**{**arrays, "gamma": 0.9, **changes})


@dataclass(frozen=True)
class Multiplying(Corrector):
    """A user's corrector that multiplies the weights it is given, as one might."""

    role = "policy_gradient"

    def correct(self, batch, estimate):
        return replace(estimate, weights=estimate.weights * np.exp(batch.log_rhos))


class Broken(Corrector):
    """Changes one array of the estimate with a function."""

    def __init__(self, role, **changes):
        self.role = role
        self.changes = changes

    def __repr__(self):
        return "Broken()"

    def correct(self, batch, estimate):
        changes = {name: f(getattr(estimate, name)) for name, f in self.changes.items()}
        return replace(estimate, **changes)
