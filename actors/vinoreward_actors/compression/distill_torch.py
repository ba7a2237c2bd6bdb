"""The torch part of distillation: the loss and the updates."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, OutputError, needed_for
from vinoreward_actors.compression.chain import CompressionContext, different_tasks
from vinoreward_actors.policies.distributions import LOG_STD
from vinoreward_actors.policies.policy import Floats, Policy, random_policy
from vinoreward_actors.policies.spec import PolicySpec

with needed_for("distillation", "train"):
    import torch
    from torch import Tensor
    from torch.nn.functional import log_softmax

    from vinoreward_actors.policies.torch_policy import TorchPolicy, from_policy

MOST_STEPS = 400
"""Maximum of updates per push with a time limit; more on the same observations gain little."""
MOMENTS = {"first": "exp_avg", "second": "exp_avg_sq"}
"""Parts of a student's state and PyTorch's names for them."""
FAR_CLOSER = 0.5
"""Restart from another policy if its divergence is below this fraction of the student's."""


class Lesson(Protocol):
    """Settings of :class:`~vinoreward_actors.compression.Distill` that training reads."""

    steps: int
    batch: int
    learning_rate: float
    beta: float
    value_weight: float
    temperature: float
    sigma: float


@dataclass(frozen=True)
class Batch:
    """Observations with the teacher's outputs."""

    observations: Tensor
    outputs: Tensor
    values: Tensor | None
    spread: float


def head_loss(
    spec: PolicySpec, teacher: Tensor, student: Tensor, lesson: Lesson, spread: float
) -> Tensor:
    """Return ``KL(teacher || student) - beta * H(student)`` of outputs (N, K), averaged.

    ``spread`` is the standard deviation of the teacher's ``q`` values over actions.
    """
    if spec.discrete:
        scale = 1.0 if spec.head == "logits" else 1.0 / (lesson.temperature * spread)
        log_p = log_softmax(teacher * scale, -1)
        log_q = log_softmax(student * scale, -1)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
        # Greedy actions have no entropy to preserve.
        beta = lesson.beta if spec.head == "logits" else 0.0
        entropy = -(log_q.exp() * log_q).sum(-1)
        return (divergence - beta * entropy).mean()
    if spec.head == "tanh":
        return ((teacher - student) ** 2).sum(-1).mean() / (2.0 * lesson.sigma**2)
    mean_p, log_p = teacher[:, : spec.actions], teacher[:, spec.actions :].clamp(*LOG_STD)
    mean_q, raw = student[:, : spec.actions], student[:, spec.actions :]
    # Clamp the value but not the gradient, so that it can return from outside the limits.
    log_q = raw + (raw.clamp(*LOG_STD) - raw).detach()
    variances = (2.0 * (log_p - log_q)).exp()
    apart = (mean_p - mean_q) ** 2 * (-2.0 * log_q).exp()
    divergence = 0.5 * (variances + apart - 1.0 - 2.0 * (log_p - log_q)).sum(-1)
    entropy = (log_q + 0.5 * math.log(2.0 * math.pi * math.e)).sum(-1)
    return (divergence - lesson.beta * entropy).mean()


def loss(module: TorchPolicy, teacher: PolicySpec, batch: Batch, lesson: Lesson) -> Tensor:
    """Return equation 1 of AcceRL, averaged over a batch."""
    outputs, values = module(batch.observations)
    total = head_loss(teacher, batch.outputs, outputs, lesson, batch.spread)
    if values is not None and batch.values is not None:
        total = total + lesson.value_weight * ((batch.values - values) ** 2).mean()
    return total


class Student:
    """A network with its optimiser, after so many updates; persists between pushes.

    ``moments`` are Adam's, to resume from: ``"first"`` and ``"second"`` of each parameter. The
    first Adam in a process imports PyTorch's compiler: 1.5 s of one core.
    """

    def __init__(
        self,
        policy: Policy,
        moments: Mapping[str, Mapping[str, Floats]] | None = None,
        updates: int = 0,
    ) -> None:
        self.spec, self.module, self.updates = policy.spec, from_policy(policy), updates
        names = self.spec.parameter_shapes()
        self._parameters = {name: self.module.get_parameter(name) for name in names}
        self.adam = torch.optim.Adam(self._parameters.values(), fused=True)
        if moments is not None and updates:
            for name, parameter in self._parameters.items():
                self.adam.state[parameter] = {"step": torch.tensor(float(updates))} | {
                    key: torch.from_numpy(np.array(moments[part][name]))
                    for part, key in MOMENTS.items()
                }

    def weights(self) -> dict[str, Floats]:
        """Return a copy of the weights."""
        return {name: value.detach().numpy().copy() for name, value in self._parameters.items()}

    def state(self) -> dict[str, dict[str, Floats]]:
        """Return weights and Adam's moments, by the names in ``distill.PARTS``."""
        parts = {"student": self.weights()}
        for part, key in MOMENTS.items():
            parts[part] = {
                # A value head without a counterpart in the teacher is never updated.
                name: self.adam.state[value].get(key, torch.zeros_like(value)).numpy()
                for name, value in self._parameters.items()
            }
        return parts


class Distillation:
    """One push: its observations, a cache of the teacher's outputs, and the hyperparameters."""

    def __init__(self, context: CompressionContext, lesson: Lesson) -> None:
        self._context, self._lesson = context, lesson
        self._observations = torch.from_numpy(np.array(context.observations))
        self._teacher, self._spec = from_policy(context.teacher), context.teacher.spec
        count = len(self._observations)
        self._known = torch.zeros(count, dtype=torch.bool)
        self._outputs = torch.empty(count, self._spec.outputs)
        self._values = None if self._spec.value is None else torch.empty(count)
        self._random = context.random()
        self._order = self._random.permutation(count)
        self._at = 0
        self._spread = 1.0
        self._first = self._batch(self._order[: lesson.batch])
        spread = float(self._first.outputs.std(dim=1, correction=0).pow(2).mean().sqrt())
        # If the teacher values all actions equally, any unit will do.
        self._spread = spread or 1.0
        self._first = replace(self._first, spread=self._spread)

    @torch.no_grad()
    def _batch(self, places: npt.NDArray[np.int64]) -> Batch:
        """Return some observations with the teacher's outputs; computes each of them once."""
        rows = torch.from_numpy(places)
        new = rows[~self._known[rows]]
        if len(new):
            outputs, values = self._teacher(self._observations[new])
            self._outputs[new] = outputs
            if self._values is not None and values is not None:
                self._values[new] = values
            self._known[new] = True
        known = None if self._values is None else self._values[rows]
        return Batch(self._observations[rows], self._outputs[rows], known, self._spread)

    def _next(self) -> Batch:
        """Return the next batch; reshuffles after each epoch."""
        if self._at >= len(self._order):
            self._order, self._at = self._random.permutation(len(self._order)), 0
        rows = self._order[self._at : self._at + self._lesson.batch]
        self._at += self._lesson.batch
        return self._batch(rows)

    def new_student(self, spec: PolicySpec) -> Student:
        """Return a new student: random weights, and the teacher's mean output as bias."""
        self._check(spec)
        weights = random_policy(spec, self._context.seed).float_parameters()
        head = spec.layers[-1].name
        weights[f"{head}.weight"] *= np.float32(0.01)
        weights[f"{head}.bias"] = self._first.outputs.mean(0).numpy()
        return Student(Policy(spec, weights))

    def far_closer(self, one: Student, other: Student) -> bool:
        """Return whether ``one`` diverges far less from the teacher than ``other``."""
        self._check(one.spec)
        alone = copy.copy(self._lesson)
        alone.beta = alone.value_weight = 0.0
        with torch.inference_mode():
            near, far = (
                float(loss(each.module, self._spec, self._first, alone)) for each in (one, other)
            )
        # NaN, from a student that diverged, is never closer.
        return not near >= FAR_CLOSER * far

    def _check(self, student: PolicySpec) -> None:
        wrong = different_tasks(student, self._spec)
        if wrong:
            raise ConfigError(
                f"the student differs from the teacher in {', '.join(wrong)}. Expected the same "
                "observations and actions; only layers may differ."
            )

    def train(self, student: Student, *, least: int = 1) -> None:
        """Train a student in place for the configured updates, or until the time is up.

        Raises:
            OutputError: the student's weights became NaN or infinite.
        """
        self._check(student.spec)
        seconds, lesson = self._context.seconds, self._lesson
        steps, deadline = max(least, lesson.steps), math.inf
        if seconds is not None:
            steps, deadline = max(least, MOST_STEPS), time.perf_counter() + seconds
        for group in student.adam.param_groups:
            group["lr"] = lesson.learning_rate
        for step in range(1, steps + 1):
            student.adam.zero_grad(set_to_none=True)
            total = loss(student.module, self._spec, self._next(), lesson)
            total.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(student.module.parameters(), 10.0)
            student.adam.step()
            student.updates += 1
            if step >= least and time.perf_counter() >= deadline:
                break
        if not all(bool(value.isfinite().all()) for value in student.module.parameters()):
            raise OutputError(
                f"the student's weights became NaN or infinite in {student.updates} updates. "
                "Expected finite weights; lower Distill's learning_rate from "
                f"{lesson.learning_rate}."
            )
