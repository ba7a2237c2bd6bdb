"""What every executor does: check what goes in and out, and refuse weights that are not finite."""

from __future__ import annotations

import abc
import functools
import math
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.executors.folded import int8_layers
from vinoreward.actor_learner.executors.saturation import probes, reduced
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward.policies.policy import Floats, Policy, QuantizedArray


class Executor(Closing):
    """One actor's policy network. Not for use by several threads at a time.

    Weights given to :meth:`refresh` may be views of shared memory: the executor keeps a reference
    and reads them in place, so they must not change until the next ``refresh`` has returned, or
    ``close``. ``infer`` returns memory of its own.

    Args:
        batch: observations of one call, at least 1.

    Raises:
        ConfigError: another batch.
        MissingExtraError: the engine's library is not installed.
    """

    name: ClassVar[str]

    def __init__(self, batch: int) -> None:
        if batch < 1:
            raise ConfigError(f"the executor's batch is {batch}. Expected at least 1.")
        self.batch = batch
        self._policy: Policy | None = None
        self._closed = False
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.float32)

    @property
    def policy(self) -> Policy | None:
        """The policy that acts; None before the first refresh and after ``close``."""
        return self._policy

    def refresh(self, policy: Policy) -> None:
        """Act with other weights from now on; the network may be another one, too.

        If the policy is refused the weights before it stay in use.

        Raises:
            InputError: weights that are not finite.
            ConfigError: the executor is closed, or the engine cannot run this network.
        """
        if self._closed:
            raise ConfigError(f"the {self.name} executor is closed. Expected an open one.")
        check_weights(policy)
        # If loading fails halfway nothing acts, rather than a mixture of two policies.
        self._policy = None
        self._load(self.computed(policy))
        self._shape = (self.batch, *policy.spec.observation_shape)
        self._dtype = np.dtype(policy.spec.observation_dtype)
        self._policy = policy

    def computed(self, policy: Policy) -> Policy:
        """Return what is computed here for a policy: itself, or the same with 7-bit weights.

        7-bit weights: for layers in INT8, where this engine's 8-bit products saturate on this
        processor. That is tried out once in a process, when the first such policy comes.
        """
        if not int8_layers(policy) or not self._saturates(self.batch):
            return policy
        return reduced(policy)

    @classmethod
    @functools.cache
    def _saturates(cls, batch: int) -> bool:
        for policy, seen in probes():
            with cls(batch) as executor:
                executor._load(policy)
                if executor._infer(np.repeat(seen, batch, axis=0)).min() < 0.9:
                    return True
        return False

    def infer(self, observations: npt.NDArray[Any]) -> Floats:
        """Return the head's outputs (batch, K) as float32, in memory of the caller's.

        Args:
            observations: (batch, \\*shape) of the spec's type.

        Raises:
            InputError: another shape or type, NaN or infinity.
            OutputError: NaN or infinity came out: the weights are broken.
            ConfigError: there are no weights yet.
        """
        if (
            self._policy is None
            or not isinstance(observations, np.ndarray)
            or observations.shape != self._shape
            or observations.dtype != self._dtype
        ):
            raise self._refusal(observations)
        # Checked on the way in: comparisons inside a network turn NaN into a confident number.
        if self._dtype.kind == "f" and not finite(observations):
            raise InputError("observations hold NaN or infinity. Expected finite numbers.")
        outputs = self._infer(observations)
        if not finite(outputs):
            raise OutputError(
                f"the {self.name} executor returned NaN or infinity with the weights of version "
                f"{self._policy.version}. Expected finite numbers; the learner has diverged, lower "
                "its learning rate."
            )
        return outputs

    def close(self) -> None:
        """Let weights and engine go. Closing twice is fine."""
        self._closed, self._policy = True, None
        self._unload()

    @abc.abstractmethod
    def _load(self, policy: Policy) -> None:
        """Make ready to act with a policy, in place where that is possible."""

    @abc.abstractmethod
    def _infer(self, observations: npt.NDArray[Any]) -> Floats:
        """Return new (batch, K) outputs for checked observations, contiguous or not."""

    @abc.abstractmethod
    def _unload(self) -> None:
        """Drop every reference to weights and engine; may be called twice."""

    def _refusal(self, observations: Any) -> ConfigError | InputError:
        if self._policy is None:
            state = "is closed" if self._closed else "has no weights yet"
            return ConfigError(
                f"the {self.name} executor {state}. Expected refresh(policy) before infer."
            )
        found = (
            f"{observations.dtype}{observations.shape}"
            if isinstance(observations, np.ndarray)
            else type(observations).__name__
        )
        return InputError(
            f"observations are {found}. Expected a numpy array {self._dtype}{self._shape}: the "
            "executor's batch, then the shape of one observation."
        )


def finite(array: npt.NDArray[Any]) -> bool:
    """Return whether a float array holds only finite numbers; a microsecond for a small one."""
    # Squares cannot cancel; they can overflow, so a second look decides. Not array.dot, which
    # warns of the overflow.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def check_weights(policy: Policy) -> None:
    """Raise InputError if weights are NaN or infinite and the outputs might not show it.

    A NaN before a tanh reaches the outputs, where it is seen without reading 34 MB of weights at
    every refresh; relu and the rounding of INT8 may turn it into a number.

    Raises:
        InputError: names the weights.
    """
    hides = any(
        layer.activation == "relu" or policy.in_int8(layer.name) for layer in policy.spec.weighted
    )
    for name, value in policy.parameters.items():
        if isinstance(value, QuantizedArray):
            sound = bool(np.isfinite(value.scales).all())
        elif hides or value.ndim == 1:
            with np.errstate(over="ignore", invalid="ignore"):
                total = np.add.reduce(value, axis=None)
            sound = math.isfinite(total) or bool(np.isfinite(value).all())
        else:
            sound = True
        if not sound:
            raise InputError(
                f"{name} of version {policy.version} holds NaN or infinity. Expected finite "
                "weights; the learner has diverged, lower its learning rate."
            )
