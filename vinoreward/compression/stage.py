"""One stage of a chain: what users subclass, with one method to write."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.compression.context import CompressionContext
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Floats, Policy, QuantizedArray
from vinoreward.policies.spec import PolicySpec

State = Mapping[str, "npt.NDArray[Any] | int | float"]
"""What a stage remembers from push to push: arrays and numbers, nothing else."""

FLOAT, QUANTIZED, COMPILED = range(3)
"""Order of stages: those that need float weights, then quantization, then compilation."""


class Stage(abc.ABC):
    """Turns a policy into a cheaper one.

    A stage takes its arguments when it is made, so that a chain can be sent to another process, and
    keeps what it learns between pushes as NumPy arrays.

    Attributes:
        phase: where in a chain it may stand; None for anywhere.
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
            policy: what the stage before gave; it may share arrays with the teacher.
            context: of this push.
        """

    def largest(self, spec: PolicySpec) -> PolicySpec:
        """Return the largest network that :meth:`compress` may make of one like ``spec``.

        Room in shared memory is reserved for it before training. A stage whose networks are never
        larger than what it is given may leave this as it is.
        """
        return spec

    def check(self, following: Sequence[Stage]) -> None:  # noqa: B027 - may be left as it is
        """Raise ConfigError if the stages that follow in the chain cannot be right."""

    def parameters(self) -> dict[str, float]:
        """Return the settings that may be changed while training runs."""
        return {}

    def set_parameter(self, parameter: str, value: float) -> None:
        """Change one of :meth:`parameters`.

        Raises:
            ConfigError: a value that cannot work, or a parameter that the stage does not have.
        """
        raise ConfigError(
            f"{type(self).__name__} has no setting {parameter!r} to turn to {value}. Expected one "
            f"of {sorted(self.parameters())}."
        )

    def state(self) -> dict[str, npt.NDArray[Any] | int | float]:
        """Return what is remembered between pushes."""
        return {}

    def load_state(self, state: State) -> None:
        """Continue from what :meth:`state` gave.

        Raises:
            ConfigError: state that is not this stage's.
        """
        if state:
            raise ConfigError(
                f"{type(self).__name__} was given state {sorted(state)}. Expected none; the state "
                "was saved by another chain."
            )


def float_weights(policy: Policy, stage: Stage) -> dict[str, Floats]:
    """Return the policy's parameters as float32.

    Raises:
        ConfigError: some are quantized already.
    """
    coarse = [
        name for name, value in policy.parameters.items() if isinstance(value, QuantizedArray)
    ]
    if coarse:
        raise ConfigError(
            f"{type(stage).__name__} was given quantized weights ({', '.join(coarse)}). Expected "
            "float ones; put Quantize after it."
        )
    return policy.float_parameters()


def own(array: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return a copy that nothing else holds: what is remembered must not lie in shared memory."""
    return np.array(array, dtype=dtype)
