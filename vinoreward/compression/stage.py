"""Base class for one stage of a chain, with one method to write."""

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
"""State of a stage between pushes: arrays and numbers only."""

FLOAT, QUANTIZED, COMPILED = range(3)
"""Order of stages: those that need float weights, then quantization, then compilation."""


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

    def state(self) -> dict[str, npt.NDArray[Any] | int | float]:
        """Return the state to keep between pushes."""
        return {}

    def load_state(self, state: State) -> None:
        """Restore what :meth:`state` returned.

        Raises:
            ConfigError: the state is not this stage's.
        """
        if state:
            raise ConfigError(
                f"{type(self).__name__} got the state {sorted(state)}. Expected none; another "
                "chain saved it."
            )


def float_weights(policy: Policy, stage: Stage) -> dict[str, Floats]:
    """Return the policy's parameters as float32.

    Raises:
        ConfigError: some weights are already quantized.
    """
    coarse = [
        name for name, value in policy.parameters.items() if isinstance(value, QuantizedArray)
    ]
    if coarse:
        raise ConfigError(
            f"{type(stage).__name__} got quantized weights ({', '.join(coarse)}). Expected float "
            "weights; put Quantize after it."
        )
    return policy.float_parameters()


def own(array: npt.NDArray[Any], dtype: type[np.generic]) -> npt.NDArray[Any]:
    """Return an own copy: state must not lie in shared memory."""
    return np.array(array, dtype=dtype)
