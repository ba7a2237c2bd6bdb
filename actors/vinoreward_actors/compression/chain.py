"""The chain of compression stages, AcceRL's one-line composition (section 2.2, code 1).

Also the base class of its stages, their inputs at one push, and how close a compressed policy is to
its teacher, which is checked before any actor uses it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, InputError
from vinoreward_actors.policies.distributions import Exploration, kl
from vinoreward_actors.policies.policy import (
    Floats,
    Policy,
    QuantizedArray,
    check_observations,
    forward,
)
from vinoreward_actors.policies.spec import PolicySpec

Observations = npt.NDArray[np.generic]
Value = npt.NDArray[Any] | int | float
State = Mapping[str, Value]
"""State of a stage between pushes: numbers, and arrays of its own, not in shared memory."""
Run = Callable[[Policy, Observations], Floats]
"""Computes a policy's head outputs (N, K) for observations (N, *shape)."""

BATCH = 64
"""Observations per batch: the patches of a first convolution take 400 kB each."""
FLOAT, QUANTIZED, COMPILED = range(3)
"""Order of stages: those that need float weights, then quantization, then compilation."""
SAME_ACTION = 0.05
"""Continuous actions, in [-1, 1], count as equal if they differ by no more than this."""


def batches(observations: Observations) -> Iterator[Observations]:
    """Yield the observations in batches."""
    for start in range(0, len(observations), BATCH):
        yield observations[start : start + BATCH]


def check_finite(policy: Policy, who: str) -> None:
    """Raise InputError if a weight of ``policy`` is NaN or infinite; ``who`` names it."""
    for name, value in policy.parameters.items():
        numbers = value.scales if isinstance(value, QuantizedArray) else value
        if not np.isfinite(numbers).all():
            raise InputError(
                f"the {who}'s {name} has NaN or infinite values. Expected finite weights: training "
                "has diverged. Keep the actors' current policy, and lower the learning rate."
            )


def different_tasks(one: PolicySpec, other: PolicySpec) -> list[str]:
    """Return the attributes by which two networks cannot replace each other."""
    names = ("observation_shape", "observation_dtype", "head", "actions")
    return [name for name in names if getattr(one, name) != getattr(other, name)]


@dataclass(frozen=True)
class CompressionContext:
    """One push.

    Raises:
        InputError: a teacher with NaN or infinite weights, no observations, or unsuitable ones.
    """

    teacher: Policy
    """The learner's policy in full precision at this push. It does not change while the chain runs:
    the fixed network that AcceRL (section 2.2) distils from."""
    observations: Observations = field(repr=False)
    """(N, *shape) of recent experience, including resets and exploration. Distill trains on them
    and Quantize measures ranges on them, so rare ones must be among them."""
    push: int = 0
    """Number of this push; ``seed`` and ``push`` fix all random choices."""
    seed: int = 0
    """Of the run."""
    seconds: float | None = None
    """Wall time for distillation. None: each stage makes its configured number of updates, so that
    the same push gives the same policy."""
    batch: int = 1
    """Observations per call of the actors' backends."""
    bits: float | None = None
    """New setting of the chain's quantization, or None for no change."""
    sparsity: float | None = None
    """New setting of the chain's pruning, or None for no change."""

    def __post_init__(self) -> None:
        check_finite(self.teacher, "teacher")
        if len(self.observations) == 0:
            raise InputError("compression got no observations. Expected at least one.")
        check_observations(self.teacher.spec, self.observations)

    def random(self) -> np.random.Generator:
        """Return a generator that is the same for the same push and seed."""
        return np.random.default_rng([self.seed, self.push])

    def some(self, count: int) -> Observations:
        """Return about ``count`` observations, evenly spaced; different ones at each push.

        Not a fixed part such as the newest ones, which might never include the rare observations.
        """
        every = max(1, len(self.observations) // count)
        random = np.random.default_rng([self.seed, self.push, count])
        return self.observations[random.integers(every) :: every]


class Stage(abc.ABC):
    """Turns a policy into a cheaper one.

    A stage gets its arguments in the constructor, so that a chain can be sent to another process,
    and keeps its state between pushes as NumPy arrays.

    Attributes:
        phase: its position in a chain; None for any.
    """

    phase: ClassVar[int | None] = None

    @property
    def shrinks(self) -> bool:
        """Whether it makes layers smaller, so that any backend runs them faster."""
        return False

    @abc.abstractmethod
    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the cheaper policy; ``policy`` itself is not changed.

        Args:
            policy: the output of the stage before; it may share arrays with the teacher.
            context: of this push.
        """

    def largest(self, spec: PolicySpec) -> PolicySpec:
        """Return the largest network that :meth:`compress` may make from one like ``spec``.

        Shared memory is reserved for it before training. Override this if a stage can enlarge the
        network.
        """
        return spec

    def check(self, following: Sequence[Stage]) -> None:  # noqa: B027 - optional
        """Raise ConfigError if the stages after this one cannot be right."""

    def parameters(self) -> dict[str, float]:
        """Return the settings that may change during training."""
        return {}

    def set_parameter(self, parameter: str, value: float) -> None:
        """Change one of :meth:`parameters`.

        Raises:
            ConfigError: an invalid value, or a parameter that the stage does not have.
        """
        raise ConfigError(
            f"{type(self).__name__} has no setting {parameter!r} (value {value}). Expected one of "
            f"{sorted(self.parameters())}."
        )

    def state(self) -> State:
        """Return the state to keep between pushes."""
        return {}

    def load_state(self, state: State) -> None:  # noqa: B027 - most have none
        """Restore what :meth:`state` returned."""

    def _float_weights(self, policy: Policy) -> dict[str, Floats]:
        """Return the policy's parameters as float32; ConfigError if some are quantized."""
        parameters = policy.parameters.items()
        coarse = [name for name, value in parameters if isinstance(value, QuantizedArray)]
        if coarse:
            raise ConfigError(
                f"{type(self).__name__} got quantized weights ({', '.join(coarse)}). Expected "
                "float weights; put Quantize after it."
            )
        return policy.float_parameters()


def part_of(state: State, part: str) -> dict[str, Value]:
    """Return name to value of the entries ``PART.NAME`` of a saved state."""
    start = f"{part}."
    return {key[len(start) :]: value for key, value in state.items() if key.startswith(start)}


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
            raise ConfigError(f"{stage!r} is not a Stage. Expected an instance, such as Distill().")
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
        """Set the context's ``bits`` and ``sparsity``, if given, and run every stage.

        Args:
            policy: in full precision; usually the context's teacher.
            context: of this push.

        Returns:
            The compressed policy with the teacher's version. It may share arrays with ``policy``:
            copy it before you release the memory of ``policy``.

        Raises:
            ConfigError: stages in a wrong order, or that do not fit the network.
            InputError: weights that are NaN or infinite, before or after.
        """
        self.check()
        given = {"bits": context.bits, "sparsity": context.sparsity}
        self.configure(**{name: value for name, value in given.items() if value is not None})
        if policy is not context.teacher:
            check_finite(policy, "policy")
        for stage in self._stages:
            policy = stage.compress(policy, context)
            self._check_task(stage, policy, context.teacher)
        check_finite(policy, "compressed policy")
        return policy.replace(version=context.teacher.version)

    @staticmethod
    def _check_task(stage: Stage, policy: Policy, teacher: Policy) -> None:
        """Raise ConfigError if a stage's policy cannot replace the teacher."""
        if not isinstance(policy, Policy):
            raise ConfigError(f"{type(stage).__name__} returned {policy!r}. Expected a Policy.")
        changed = different_tasks(policy.spec, teacher.spec)
        if changed:
            raise ConfigError(
                f"{type(stage).__name__} changed the policy's {', '.join(changed)}. Expected the "
                "teacher's: actors take the same observations and give the same actions."
            )

    def parameters(self) -> dict[str, float]:
        """Return all settings that may change during training, such as bits and sparsity."""
        return {name: value for stage in self._stages for name, value in stage.parameters().items()}

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

    def _places(self) -> list[str]:
        return [f"{index}-{type(stage).__name__}" for index, stage in enumerate(self._stages)]

    def state(self) -> dict[str, Value]:
        """Return the state of all stages as plain arrays and numbers."""
        return {
            f"{place}.{key}": value
            for place, stage in zip(self._places(), self._stages, strict=True)
            for key, value in stage.state().items()
        }

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` of a chain of the same stages returned.

        Raises:
            ConfigError: the state is of another chain.
        """
        places = self._places()
        parts: dict[str, dict[str, Value]] = {place: {} for place in places}
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


@dataclass(frozen=True)
class Quality:
    """Difference between a compressed policy and its teacher."""

    kl_mean: float
    """KL(teacher || policy) in nats, mean over observations; infinite if not finite."""
    kl_max: float
    """The maximum. Only this and the return rank compressions; mean action errors do not."""
    agreement: float
    """Fraction of observations on which both policies have the same best action; for continuous
    actions, differ by at most 0.05 of [-1, 1] in every dimension."""
    finite: bool
    """Whether all outputs are finite."""


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

    def reference(policy: Policy, observations: Observations) -> Floats:
        return np.concatenate([forward(policy, part) for part in batches(observations)])

    with np.errstate(over="ignore", invalid="ignore"):
        wanted = reference(teacher, observations)
        outputs = (run or reference)(policy, observations)
    return compare_outputs(teacher.spec, wanted, outputs, sigma=sigma)
