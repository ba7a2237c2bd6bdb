"""The chain of compression stages: AcceRL's one-line composition (section 2.2, code 1)."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from vinoreward.compression.stage import (
    CompressionContext,
    Stage,
    State,
    check_finite,
    different_tasks,
)
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import PolicySpec


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
