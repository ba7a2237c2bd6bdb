"""Learners by name."""

from __future__ import annotations

from vinoreward.actor_learner.learners.base import ModuleLearner
from vinoreward.entry_points import Registry

# mypy wants a concrete class where an abstract one is passed as a type.
LEARNERS = Registry("vinoreward.learners", ModuleLearner, "algorithm")  # type: ignore[type-abstract]
"""``impala``, ``dqn``, ``d4pg``, ``sac``, and those of other packages."""
