"""The chain of compression stages: AcceRL's one-line composition (section 2.2, code 1)."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from vinoreward.compression.context import CompressionContext, check_finite
from vinoreward.compression.stage import Stage, State
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Policy
from vinoreward.policies.spec import PolicySpec


class CompressorChain:
    """Stages that run one after another::

        CompressorChain().add(Prune(0.5)).add(Distill()).add(Quantize("int8"))

    A chain without stages gives the policy back as it is.
    """

    def __init__(self) -> None:
        self._stages: list[Stage] = []

    @property
    def stages(self) -> tuple[Stage, ...]:
        """In the order in which they run."""
        return tuple(self._stages)

    def add(self, stage: Stage) -> CompressorChain:
        """Append a stage and return the chain.

        Raises:
            ConfigError: something that is no stage, or a stage that is in the chain already.
        """
        if not isinstance(stage, Stage):
            raise ConfigError(f"{stage!r} was added to a chain. Expected a Stage, made: Stage().")
        if any(stage is other for other in self._stages):
            raise ConfigError(
                f"{type(stage).__name__} was added twice. Expected another one: stages remember "
                "what they did."
            )
        self._stages.append(stage)
        return self

    def check(self) -> None:
        """Raise ConfigError unless the stages can follow each other as they do."""
        latest = 0
        for index, stage in enumerate(self._stages):
            if stage.phase is not None:
                if stage.phase < latest:
                    raise ConfigError(
                        f"{type(stage).__name__} comes after a stage that left it nothing to work "
                        "on. Expected stages on float weights, then Quantize, then Compile."
                    )
                latest = stage.phase
            stage.check(self._stages[index + 1 :])

    def largest(self, spec: PolicySpec) -> PolicySpec:
        """Return the largest network that may come out for one like ``spec``."""
        for stage in self._stages:
            spec = stage.largest(spec)
        return spec

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Run every stage.

        Args:
            policy: what to compress, in full precision; the context's teacher, as a rule.
            context: of this push. Its ``bits`` and ``sparsity`` are set first, if given.

        Returns:
            The compressed policy, of the teacher's version. It may share arrays with ``policy``:
            copy it out before the memory of ``policy`` is given back.

        Raises:
            ConfigError: stages that cannot follow each other, or that do not fit the network.
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
        """Return every setting that may be changed while training runs, such as bits, sparsity."""
        found: dict[str, float] = {}
        for stage in self._stages:
            found |= stage.parameters()
        return found

    def safer(self) -> tuple[dict[str, Any], ...]:
        """Return what a monitor may try before it stops compression, for ``default_monitor``.

        A smaller network without its quantization is nearer to the learner's and still faster than
        that. Half precision, or weights alone in few bits, are not; for those there is nothing.
        """
        smaller = any(stage.shrinks for stage in self._stages)
        return ({"bits": None},) if smaller and "bits" in self.parameters() else ()

    def configure(self, **parameters: float) -> None:
        """Change settings from the next push on; each goes to every stage that has it.

        Raises:
            ConfigError: a setting that no stage has, or a value that cannot work.
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
        """Return what the stages remember between pushes, as plain arrays and numbers."""
        return {
            f"{_place(index, stage)}.{key}": value
            for index, stage in enumerate(self._stages)
            for key, value in stage.state().items()
        }

    def load_state(self, state: State) -> None:
        """Continue from what :meth:`state` of a chain of the same stages gave.

        Raises:
            ConfigError: state of another chain.
        """
        places = [_place(index, stage) for index, stage in enumerate(self._stages)]
        parts: dict[str, dict[str, npt.NDArray[Any] | int | float]] = {
            place: {} for place in places
        }
        for name, value in state.items():
            place = next((place for place in places if name.startswith(f"{place}.")), None)
            if place is None:
                raise ConfigError(
                    f"the state has {name!r}, and the chain has the stages {places}. Expected "
                    "state saved by a chain of the same stages."
                )
            parts[place][name[len(place) + 1 :]] = value
        for place, stage in zip(places, self._stages, strict=True):
            stage.load_state(parts[place])


def _place(index: int, stage: Stage) -> str:
    return f"{index}-{type(stage).__name__}"


def _check_same_task(policy: Policy, teacher: Policy, stage: Stage) -> None:
    """Raise ConfigError if a stage's policy could not stand in for the teacher."""
    if not isinstance(policy, Policy):
        raise ConfigError(f"{type(stage).__name__} returned {policy!r}. Expected a Policy.")
    kept = ("observation_shape", "observation_dtype", "head", "actions")
    changed = [name for name in kept if getattr(policy.spec, name) != getattr(teacher.spec, name)]
    if changed:
        raise ConfigError(
            f"{type(stage).__name__} changed the policy's {', '.join(changed)}. Expected the "
            "teacher's: actors take the same observations and give the same actions."
        )
