"""The part of distillation that needs torch: the loss, and the updates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from vinoreward.compression.context import CompressionContext
from vinoreward.compression.distill import Lesson
from vinoreward.errors import ConfigError, MissingExtraError, OutputError
from vinoreward.policies.distributions import LOG_STD
from vinoreward.policies.policy import Floats, Policy
from vinoreward.policies.spec import PolicySpec

try:
    import torch
    from torch import Tensor
    from torch.nn.functional import log_softmax

    from vinoreward.policies.torch_policy import TorchPolicy, from_policy
except ImportError as error:
    raise MissingExtraError(
        "distillation needs torch, which is not installed. Install it with: pip install "
        '"vinoreward[train]"'
    ) from error


BETAS = (0.9, 0.999)
"""Of Adam: how much of each moment stays at an update."""


@dataclass(frozen=True)
class Progress:
    """Adam's memory: first and second moments of each parameter, and updates so far."""

    first: dict[str, Floats]
    second: dict[str, Floats]
    updates: int


@dataclass(frozen=True)
class Batch:
    """Observations with what the teacher says of them."""

    observations: Tensor
    outputs: Tensor
    values: Tensor | None
    spread: float


def head_loss(
    spec: PolicySpec, teacher: Tensor, student: Tensor, lesson: Lesson, spread: float
) -> Tensor:
    """Return ``KL(teacher || student) - beta * H(student)`` of outputs (N, K), averaged.

    Args:
        spec: of the teacher; for its head.
        teacher: (N, K).
        student: (N, K).
        lesson: beta, temperature and sigma.
        spread: standard deviation of the teacher's ``q`` values over actions.
    """
    if spec.discrete:
        scale = 1.0 if spec.head == "logits" else 1.0 / (lesson.temperature * spread)
        log_p = log_softmax(teacher * scale, -1)
        log_q = log_softmax(student * scale, -1)
        divergence = (log_p.exp() * (log_p - log_q)).sum(-1)
        # Greedy actions have no entropy to keep up.
        beta = lesson.beta if spec.head == "logits" else 0.0
        entropy = -(log_q.exp() * log_q).sum(-1)
        return (divergence - beta * entropy).mean()
    if spec.head == "tanh":
        return ((teacher - student) ** 2).sum(-1).mean() / (2.0 * lesson.sigma**2)
    mean_p, log_p = teacher[:, : spec.actions], teacher[:, spec.actions :].clamp(*LOG_STD)
    mean_q, raw = student[:, : spec.actions], student[:, spec.actions :]
    # Clamped in value but not in gradient: outside of the limits it must find its way back.
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


def _lessons(context: CompressionContext, count: int) -> Batch:
    """Return at most ``count`` observations, drawn at random, with the teacher's answers."""
    observations = context.observations
    if len(observations) > count:
        chosen = context.random().choice(len(observations), count, replace=False)
        observations = observations[np.sort(chosen)]
    tensor = torch.from_numpy(np.array(observations))
    teacher = from_policy(context.teacher)
    with torch.no_grad():
        parts = [teacher(part) for part in torch.split(tensor, 256)]
    outputs = torch.cat([found for found, _ in parts])
    read = [value for _, value in parts if value is not None]
    spread = float(outputs.std(dim=1, correction=0).pow(2).mean().sqrt())
    # A teacher that values all actions the same has nothing to rank; any unit will do.
    return Batch(tensor, outputs, torch.cat(read) if read else None, spread or 1.0)


def _take(batch: Batch, chosen: Tensor) -> Batch:
    values = None if batch.values is None else batch.values[chosen]
    return Batch(batch.observations[chosen], batch.outputs[chosen], values, batch.spread)


def closest(
    starts: list[tuple[Policy, Progress | None]], context: CompressionContext, lesson: Lesson
) -> tuple[Policy, Progress | None]:
    """Return the start with the least loss on some observations.

    Raises:
        ConfigError: a start that takes other observations or gives other actions than the teacher.
    """
    for policy, _ in starts:
        _check_student(policy.spec, context.teacher.spec)
    if len(starts) == 1:
        return starts[0]
    batch = _lessons(context, 512)
    with torch.inference_mode():
        losses = [
            float(loss(from_policy(policy), context.teacher.spec, batch, lesson))
            for policy, _ in starts
        ]
    return starts[int(np.argmin(losses))]


def _check_student(student: PolicySpec, teacher: PolicySpec) -> None:
    kept = ("observation_shape", "observation_dtype", "head", "actions")
    wrong = [name for name in kept if getattr(student, name) != getattr(teacher, name)]
    if wrong:
        raise ConfigError(
            f"the student differs from the teacher in {', '.join(wrong)}. Expected the same "
            "observations and actions, and other layers only."
        )


def teach(
    start: Policy,
    progress: Progress | None,
    context: CompressionContext,
    lesson: Lesson,
    steps: int,
) -> tuple[Policy, Progress]:
    """Return the student after ``steps`` updates, and Adam's memory.

    Raises:
        OutputError: the student's weights became NaN or infinite.
    """
    module = from_policy(start)
    names = {name: module.get_parameter(name) for name in start.spec.parameter_shapes()}
    adam = Adam(names, progress)
    lessons = _lessons(context, steps * lesson.batch)
    count = len(lessons.observations)
    random = context.random()
    for step in range(steps):
        chosen = torch.from_numpy(random.integers(count, size=min(lesson.batch, count)))
        module.zero_grad(set_to_none=True)
        found = loss(module, context.teacher.spec, _take(lessons, chosen), lesson)
        found.backward()  # type: ignore[no-untyped-call]
        torch.nn.utils.clip_grad_norm_(module.parameters(), 10.0)
        adam.step(lesson.learning_rate * (1.0 - step / steps))
    student = {name: value.detach().numpy().copy() for name, value in names.items()}
    if not all(np.isfinite(value).all() for value in student.values()):
        raise OutputError(
            f"the student's weights became NaN or infinite in {steps} updates. Expected finite "
            f"weights; lower Distill's learning_rate from {lesson.learning_rate}."
        )
    return Policy(start.spec, student, version=context.teacher.version), adam.progress()


class Adam:
    """Adam (Kingma and Ba 2015), with a memory of plain arrays.

    Torch's own brings its compiler along, which takes five seconds of a core to import.

    Args:
        parameters: by name.
        progress: memory to go on with.
    """

    def __init__(self, parameters: Mapping[str, Tensor], progress: Progress | None) -> None:
        self._parameters = parameters
        self._first = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self._second = {name: torch.zeros_like(value) for name, value in parameters.items()}
        self._updates = 0
        if progress is not None:
            self._updates = progress.updates
            for name in parameters:
                self._first[name].copy_(torch.from_numpy(progress.first[name]))
                self._second[name].copy_(torch.from_numpy(progress.second[name]))

    @torch.no_grad()
    def step(self, learning_rate: float) -> None:
        """Update every parameter that has a gradient."""
        self._updates += 1
        unbiased = [1.0 - beta**self._updates for beta in BETAS]
        for name, value in self._parameters.items():
            gradient = value.grad
            # A value head that the teacher has no match for is never updated.
            if gradient is None:
                continue
            first, second = self._first[name], self._second[name]
            first.lerp_(gradient, 1.0 - BETAS[0])
            second.mul_(BETAS[1]).addcmul_(gradient, gradient, value=1.0 - BETAS[1])
            scale = (second / unbiased[1]).sqrt_().add_(1e-8)
            value.addcdiv_(first, scale, value=-learning_rate / unbiased[0])

    def progress(self) -> Progress:
        """Return what to go on with; the arrays are not used here any more."""
        first = {name: value.numpy() for name, value in self._first.items()}
        second = {name: value.numpy() for name, value in self._second.items()}
        return Progress(first, second, self._updates)
