"""The chain of compression stages, AcceRL's one-line composition (section 2.2, code 1).

And how close a compressed policy is to its teacher, which is checked before any actor uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.compression.stage import (
    CompressionContext,
    Observations,
    Stage,
    State,
    batches,
    check_finite,
    different_tasks,
)
from vinoreward.errors import ConfigError, InputError
from vinoreward.policies.distributions import Exploration, kl
from vinoreward.policies.policy import Floats, Policy
from vinoreward.policies.reference import check_observations, forward
from vinoreward.policies.spec import PolicySpec

Run = Callable[[Policy, Observations], Floats]
"""Computes a policy's head outputs (N, K) for observations (N, *shape)."""

SAME_ACTION = 0.05
"""Continuous actions, in [-1, 1], count as equal if they differ by no more than this."""


class CompressorChain:
    """Stages that run one after another::

        CompressorChain().add(Prune(0.5)).add(Distill()).add(Quantize("int8"))

    An empty chain returns the policy unchanged.
    """

    def __init__(self) -> None:
        self._stages: list[Stage] = []

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In the order of execution."""
        return tuple(self._stages)

    def add(self, stage: Stage) -> CompressorChain:
        """Append a stage and return the chain.

        Raises:
            ConfigError: not a stage, or a stage that the chain already has.
        """
        if not isinstance(stage, Stage):
            raise ConfigError(f"{stage!r} is not a Stage. Expected an instance, such as Fuse().")
        if any(stage is other for other in self._stages):
            raise ConfigError(
                f"{type(stage).__name__} was added twice. Expected two instances: stages keep "
                "state between pushes."
            )
        self._stages.append(stage)
        return self

    def check(self) -> None:
        """Raise ConfigError if the stages cannot follow each other in this order."""
        latest = 0
        for index, stage in enumerate(self._stages):
            if stage.phase is not None:
                if stage.phase < latest:
                    raise ConfigError(
                        f"{type(stage).__name__} comes too late in the chain. Expected stages on "
                        "float weights first, then Quantize, then Compile."
                    )
                latest = stage.phase
            stage.check(self._stages[index + 1 :])

    def largest(self, spec: PolicySpec) -> PolicySpec:
        """Return the largest network that the chain may make from one like ``spec``."""
        for stage in self._stages:
            spec = stage.largest(spec)
        return spec

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Run every stage.

        Args:
            policy: in full precision; usually the context's teacher.
            context: of this push. Sets its ``bits`` and ``sparsity`` first, if given.

        Returns:
            The compressed policy with the teacher's version. It may share arrays with ``policy``:
            copy it before you release the memory of ``policy``.

        Raises:
            ConfigError: stages in a wrong order, or that do not fit the network.
            InputError: weights that are NaN or infinite, before or after.
        """
        self.check()
        given = {"bits": context.bits, "sparsity": context.sparsity}
        self.configure(
            **{parameter: value for parameter, value in given.items() if value is not None}
        )
        if policy is not context.teacher:
            check_finite(policy, "policy")
        for stage in self._stages:
            policy = stage.compress(policy, context)
            _check_same_task(policy, context.teacher, stage)
        check_finite(policy, "compressed policy")
        return policy.replace(version=context.teacher.version)

    def parameters(self) -> dict[str, float]:
        """Return all settings that may change during training, such as bits and sparsity."""
        found: dict[str, float] = {}
        for stage in self._stages:
            found |= stage.parameters()
        return found

    def safer(self) -> tuple[dict[str, Any], ...]:
        """Return the safer settings for ``default_monitor``, to try before compression stops.

        A smaller network without quantization is closer to the learner's and still faster. A
        network of full size is not, so a chain that does not shrink it has no safer settings.
        """
        smaller = any(stage.shrinks for stage in self._stages)
        return ({"bits": None},) if smaller and "bits" in self.parameters() else ()

    def configure(self, **parameters: float) -> None:
        """Change settings from the next push on; sets each on every stage that has it.

        Raises:
            ConfigError: a setting that no stage has, or an invalid value.
        """
        for parameter, value in parameters.items():
            owners = [stage for stage in self._stages if parameter in stage.parameters()]
            if not owners:
                raise ConfigError(
                    f"no stage of the chain has the setting {parameter!r}. Expected one of "
                    f"{sorted(self.parameters())}."
                )
            for stage in owners:
                stage.set_parameter(parameter, value)

    def state(self) -> dict[str, npt.NDArray[Any] | int | float]:
        """Return the state of all stages as plain arrays and numbers."""
        return {
            f"{_place(index, stage)}.{key}": value
            for index, stage in enumerate(self._stages)
            for key, value in stage.state().items()
        }

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` of a chain of the same stages returned.

        Raises:
            ConfigError: the state is of another chain.
        """
        places = [_place(index, stage) for index, stage in enumerate(self._stages)]
        parts: dict[str, dict[str, npt.NDArray[Any] | int | float]] = {name: {} for name in places}
        for name, value in state.items():
            place, _, key = name.partition(".")
            if place not in parts:
                raise ConfigError(
                    f"the saved state has {name!r}, but the chain's stages are {places}. Expected "
                    "the state of a chain of the same stages."
                )
            parts[place][key] = value
        for place, stage in zip(places, self._stages, strict=True):
            stage.load_state(parts[place])


def _place(index: int, stage: Stage) -> str:
    return f"{index}-{type(stage).__name__}"


def _check_same_task(policy: Policy, teacher: Policy, stage: Stage) -> None:
    """Raise ConfigError if a stage's policy cannot replace the teacher."""
    if not isinstance(policy, Policy):
        raise ConfigError(f"{type(stage).__name__} returned {policy!r}. Expected a Policy.")
    changed = different_tasks(policy.spec, teacher.spec)
    if changed:
        raise ConfigError(
            f"{type(stage).__name__} changed the policy's {', '.join(changed)}. Expected the "
            "teacher's: actors take the same observations and give the same actions."
        )


@dataclass(frozen=True)
class Quality:
    """Difference between a compressed policy and its teacher.

    Attributes:
        kl_mean: KL(teacher || policy) in nats, mean over observations; infinite if not finite.
        kl_max: the maximum. Only this and the return rank compressions; mean action errors do not.
        agreement: fraction of observations on which both policies have the same best action; for
            continuous actions, differ by at most 0.05 of [-1, 1] in every dimension.
        finite: whether all outputs are finite.
    """

    kl_mean: float
    kl_max: float
    agreement: float
    finite: bool


def compare_outputs(
    spec: PolicySpec,
    teacher: npt.NDArray[np.floating],
    outputs: npt.NDArray[np.floating],
    *,
    sigma: float = 0.1,
) -> Quality:
    """Compare head outputs.

    Args:
        spec: of both, for the head.
        teacher: (N, K), finite.
        outputs: (N, K) of the compressed policy.
        sigma: width of the Gaussians for the comparison of ``tanh`` heads.

    Raises:
        InputError: no rows, different shapes, or a teacher that is not finite.
    """
    if teacher.shape != outputs.shape or len(teacher) == 0 or not np.isfinite(teacher).all():
        raise InputError(
            f"cannot compare outputs {outputs.shape} with the teacher's {teacher.shape}. Expected "
            "the same shape, at least one row, and a finite teacher."
        )
    if not np.isfinite(outputs).all():
        return Quality(float("inf"), float("inf"), 0.0, False)
    exploration = Exploration(sigma=sigma) if spec.head == "tanh" else Exploration()
    with np.errstate(over="ignore"):
        divergence = kl(spec, teacher, outputs, exploration)
    if spec.discrete:
        same = teacher.argmax(1) == outputs.argmax(1)
    else:
        apart = np.tanh(teacher[:, : spec.actions]) - np.tanh(outputs[:, : spec.actions])
        same = (np.abs(apart) <= SAME_ACTION).all(1)
    return Quality(float(divergence.mean()), float(divergence.max()), float(same.mean()), True)


def check_policy(
    policy: Policy,
    teacher: Policy,
    observations: Observations,
    *,
    sigma: float = 0.1,
    run: Run | None = None,
) -> Quality:
    """Run both policies on observations and compare their outputs.

    Args:
        policy: compressed.
        teacher: from which it was made.
        observations: (N, *shape).
        sigma: see :func:`compare_outputs`.
        run: computes the compressed policy as actors do. None uses the NumPy reference, which
            cannot reveal a fault of a backend.

    Raises:
        InputError: unsuitable observations, or a teacher whose outputs are not finite.
    """
    check_observations(teacher.spec, observations)
    check_observations(policy.spec, observations)
    if len(observations) == 0:
        raise InputError("cannot compare policies on no observations. Expected at least one.")
    with np.errstate(over="ignore", invalid="ignore"):
        wanted = _reference(teacher, observations)
        found = (run or _reference)(policy, observations)
    return compare_outputs(teacher.spec, wanted, found, sigma=sigma)


def _reference(policy: Policy, observations: Observations) -> Floats:
    return np.concatenate([forward(policy, part) for part in batches(observations)])
