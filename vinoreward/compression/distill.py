"""Knowledge distillation: a smaller network is taught to act like the learner's.

The loss is equation 1 of AcceRL: ``KL(teacher || student) + 1/2 (V_teacher - V_student)^2 - beta *
H(student)``. Torch is imported when a policy is compressed, not before.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.compression.context import CompressionContext
from vinoreward.compression.stage import FLOAT, Stage, State, float_weights, own
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Floats, Policy, random_policy
from vinoreward.policies.spec import PolicySpec

PARTS = ("student", "first", "second")
"""Of the state: weights, and Adam's first and second moments of each."""


@dataclass(frozen=True)
class Lesson:
    """How a student is taught.

    Attributes:
        steps: updates by Adam.
        batch: observations of an update.
        learning_rate: at the start; it falls linearly to nought.
        beta: weight of the student's entropy.
        value_weight: weight of the squared difference of values; 1/2 in the paper.
        temperature: for ``q`` heads.
        sigma: for ``tanh`` heads.
    """

    steps: int
    batch: int
    learning_rate: float
    beta: float
    value_weight: float
    temperature: float
    sigma: float


class Distill(Stage):
    """Teaches the policy that it is given, or a student of its own, to act like the teacher.

    What is compared depends on the head. ``logits``: the divergence of the actions' probabilities.
    ``tanh_gaussian``: that of the Gaussians before the tanh, in closed form (a tanh of both changes
    nothing). ``tanh``: that of Gaussians of width ``sigma`` around the actions before the tanh,
    which is their squared difference. ``q``: the divergence of softmaxes of the values divided by
    ``temperature`` times the spread of the teacher's values over actions (after Rusu et al. 2016,
    "Policy Distillation", where that beat squared differences for DQN). So a student's values rank
    actions as the teacher's do, and their differences are the teacher's; their level is not, and
    nothing that acts needs it.

    At the next push the last student and Adam's moments are gone on with if the shapes are the
    same. If the policy given is closer to the teacher already, it is started from that instead.

    Args:
        steps: updates at each push.
        student: layers of a smaller network, for a chain without Prune (the paper's Net1 to Net3);
            None teaches the policy given.
        cold_steps: updates at a push that starts from random weights: a student's first.
        beta: weight of the student's entropy, in nats. 0.001 moves a Gaussian's width by 0.05 %.
        value_weight: weight of the squared difference of values. Without a value head on both
            networks there is none.
        learning_rate: of Adam at the start of a push; it falls linearly to nought.
        batch: observations of an update.
        temperature: see above, for ``q``.
        sigma: see above, for ``tanh``; the noise that actors explore with.

    Raises:
        ConfigError: values that cannot work.
    """

    phase = FLOAT

    def __init__(
        self,
        steps: int = 400,
        *,
        student: PolicySpec | None = None,
        cold_steps: int = 2000,
        beta: float = 0.001,
        value_weight: float = 0.5,
        learning_rate: float = 1e-3,
        batch: int = 256,
        temperature: float = 0.1,
        sigma: float = 0.1,
    ) -> None:
        positive = {
            "steps": steps,
            "cold_steps": cold_steps,
            "batch": batch,
            "learning_rate": learning_rate,
            "temperature": temperature,
            "sigma": sigma,
        }
        wrong = {name: value for name, value in positive.items() if not 0 < value < math.inf}
        wrong |= {
            name: value
            for name, value in {"beta": beta, "value_weight": value_weight}.items()
            if not 0 <= value < math.inf
        }
        if wrong:
            raise ConfigError(
                f"distillation was asked for with {wrong}. Expected positive numbers, and beta and "
                "value_weight from 0."
            )
        self.student = student
        self.cold_steps = cold_steps
        self.lesson = Lesson(steps, batch, learning_rate, beta, value_weight, temperature, sigma)
        # Part -> parameter -> array.
        self._last: dict[str, dict[str, Floats]] = {}
        self._updates = 0

    def largest(self, spec: PolicySpec) -> PolicySpec:
        """Return the student, which may be larger than its teacher."""
        return self.student or spec

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the student; the teacher itself where nothing was taken from it.

        Raises:
            ConfigError: a student that takes other observations or gives other actions.
            OutputError: the student's weights became NaN or infinite.
            MissingExtraError: torch is not installed.
        """
        float_weights(policy, self)
        if self.student is None and policy is context.teacher:
            return policy
        # Here, because torch is a large thing to import for whoever only builds a chain.
        from vinoreward.compression.distill_torch import Progress, closest, teach

        spec = self.student or policy.spec
        starts: list[tuple[Policy, Progress | None]] = []
        if self._shapes() == spec.parameter_shapes():
            last = Progress(self._last["first"], self._last["second"], self._updates)
            starts.append((Policy(spec, self._last["student"]), last))
        if policy.spec == spec:
            starts.append((policy, None))
        steps = self.lesson.steps
        if not starts:
            starts.append((random_policy(spec, context.seed), None))
            steps = self.cold_steps
        start, progress = closest(starts, context, self.lesson)
        student, progress = teach(start, progress, context, self.lesson, steps)
        self._updates = progress.updates
        self._last = {
            "student": student.float_parameters(),
            "first": progress.first,
            "second": progress.second,
        }
        return policy.replace(
            spec=spec, parameters=student.float_parameters(), ranges={}, blob=None
        )

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: value.shape for name, value in self._last.get("student", {}).items()}

    def state(self) -> dict[str, npt.NDArray[Any] | int | float]:
        """Return the last student, Adam's moments, and the number of updates."""
        found: dict[str, npt.NDArray[Any] | int | float] = {"updates": self._updates}
        for part, arrays in self._last.items():
            found |= {f"{part}.{name}": own(array, np.float32) for name, array in arrays.items()}
        return found

    def load_state(self, state: State) -> None:
        """Continue with the saved student."""
        last: dict[str, dict[str, Floats]] = {}
        for key, value in state.items():
            part, _, name = key.partition(".")
            if part in PARTS and name:
                last.setdefault(part, {})[name] = own(np.asarray(value), np.float32)
        shapes = [
            {name: array.shape for name, array in last.get(part, {}).items()} for part in PARTS
        ]
        if "updates" not in state or any(found != shapes[0] for found in shapes):
            raise ConfigError(
                f"Distill was given state {sorted(state)}. Expected updates, and weights and two "
                "moments of the same shapes."
            )
        self._last = last
        self._updates = int(state["updates"])
