"""Knowledge distillation: trains a smaller network to act like the learner's.

The loss is equation 1 of AcceRL: ``KL(teacher || student) + 1/2 (V_teacher - V_student)^2 - beta *
H(student)``. Imports torch only when a policy is compressed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from vinoreward.errors import ConfigError
from vinoreward_actors.compression.chain import (
    FLOAT,
    CompressionContext,
    Stage,
    State,
    Value,
    part_of,
)
from vinoreward_actors.policies.policy import Floats, Policy
from vinoreward_actors.policies.spec import PolicySpec

if TYPE_CHECKING:
    from vinoreward_actors.compression.distill_torch import Student

PARTS = ("student", "first", "second")
"""Parts of the state: weights, and Adam's first and second moments."""


class Distill(Stage):
    """Trains a student to act like the teacher: the policy of the stage before, or its own.

    The loss depends on the head. ``logits``: KL of the action probabilities. ``tanh_gaussian``: KL
    of the Gaussians before the tanh, in closed form (applying tanh to both changes nothing).
    ``tanh``: KL of Gaussians of width ``sigma`` around the actions before the tanh, which is their
    squared difference. ``q``: KL of softmaxes of the values divided by ``temperature`` times the
    spread of the teacher's values over actions (after Rusu et al. 2016, "Policy Distillation",
    where that beat squared differences for DQN). So a ``q`` student ranks actions as the teacher
    does, with the same differences between values; their absolute level may differ, and acting
    does not need it.

    The student and its optimiser (PyTorch's Adam) persist between pushes, and each push trains it a
    little more. If the given policy is far closer to the teacher, or has other shapes, training
    restarts from that policy.

    Args:
        steps: updates per push; with a time limit (``CompressionContext.seconds``) as many as
            fit, from 1 to 400.
        student: layers of a smaller network, for a chain without Prune (the paper's Net1 to Net3);
            None trains the given policy.
        cold_steps: updates before a new student acts for the first time, whatever the time limit.
        beta: weight of the student's entropy, in nats. 0.001 changes a Gaussian's width by 0.05 %.
        value_weight: weight of the squared difference of values. Used only if both networks have a
            value head.
        learning_rate: of Adam.
        batch: observations per update.
        temperature: see above, for ``q``.
        sigma: see above, for ``tanh``; the noise that actors explore with.
    """

    phase = FLOAT

    @property
    def shrinks(self) -> bool:
        """See :attr:`Stage.shrinks`."""
        return self.student is not None

    def __init__(
        self,
        steps: int = 16,
        *,
        student: PolicySpec | None = None,
        cold_steps: int = 32,
        beta: float = 0.001,
        value_weight: float = 0.5,
        learning_rate: float = 1e-3,
        batch: int = 64,
        temperature: float = 0.1,
        sigma: float = 0.1,
    ) -> None:
        self.student = student
        self.steps, self.cold_steps, self.batch = steps, cold_steps, batch
        self.beta, self.value_weight, self.learning_rate = beta, value_weight, learning_rate
        self.temperature, self.sigma = temperature, sigma
        numbers = {name: value for name, value in vars(self).items() if name != "student"}
        wrong = {
            name: value
            for name, value in numbers.items()
            if not 0 <= value < math.inf or (value == 0 and name not in ("beta", "value_weight"))
        }
        if wrong:
            raise ConfigError(
                f"Distill got {wrong}. Expected positive numbers, and beta and value_weight of at "
                "least 0."
            )
        # Part of the saved state -> parameter -> array; until the next training.
        self._saved: dict[str, dict[str, Floats]] = {}
        self._updates = 0
        self._last: Student | None = None

    def largest(self, spec: PolicySpec) -> PolicySpec:
        """Return the student, which may be larger than its teacher."""
        return self.student or spec

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the student, or the teacher itself if no stage before changed it.

        Raises:
            ConfigError: the student has other observations or actions.
            OutputError: the student's weights became NaN or infinite.
            MissingExtraError: torch is not installed.
        """
        self._float_weights(policy)
        if self.student is None and policy is context.teacher:
            return policy
        # Imported here because torch is heavy, and building a chain does not need it.
        from vinoreward_actors.compression.distill_torch import Distillation, Student

        spec = self.student or policy.spec
        distillation = Distillation(context, self)
        given = Student(policy) if policy.spec == spec else None
        last = self._last_student(spec)
        student = last or given or distillation.new_student(spec)
        if last is not None and given is not None and distillation.far_closer(given, last):
            student = given
        # Drop a student that diverges.
        self._last, self._saved, self._updates = None, {}, 0
        distillation.train(student, least=self.cold_steps if last is None else 1)
        self._last = student
        return policy.replace(spec=spec, parameters=student.weights(), ranges={}, blob=None)

    def _last_student(self, spec: PolicySpec) -> Student | None:
        """Return the student of the last push, or None if there is none with these layers."""
        if self._last is not None:
            return self._last if self._last.spec == spec else None
        saved = self._saved.get("student", {})
        if {name: value.shape for name, value in saved.items()} != spec.parameter_shapes():
            return None
        from vinoreward_actors.compression.distill_torch import Student

        return Student(Policy(spec, saved), self._saved, self._updates)

    def state(self) -> State:
        """Return the last student, Adam's moments, and the number of updates."""
        parts, updates = self._saved, self._updates
        if self._last is not None:
            parts, updates = self._last.state(), self._last.updates
        state: dict[str, Value] = {"updates": updates}
        for part, arrays in parts.items():
            state |= {f"{part}.{name}": np.array(each, np.float32) for name, each in arrays.items()}
        return state

    def load_state(self, state: State) -> None:
        """Restore the saved student."""
        self._last, self._updates = None, int(state["updates"])
        self._saved = {
            part: {name: np.array(each, np.float32) for name, each in part_of(state, part).items()}
            for part in PARTS
        }
