"""Base class of policy backends: checks inputs and outputs, and refuses weights with NaN."""

from __future__ import annotations

import abc
import functools
import math
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward.policies.backends.int8 import int8_layers, probes, reduced
from vinoreward.policies.policy import Floats, Policy, QuantizedArray

Infer = Callable[[npt.NDArray[Any]], Floats]
"""Takes checked (batch, *shape) observations, contiguous or not; returns new (batch, K) arrays."""


class PolicyBackend(Closing):
    """Runs one actor's policy network. Not thread-safe.

    To write a backend, subclass this and implement :meth:`_load`; register it in the entry-point
    group ``vinoreward.policy_backends``. A backend that caches anything between refreshes also
    implements :meth:`_unload`.

    Weights passed to :meth:`refresh` may be views of shared memory. The backend keeps references
    to them, so they must not change before the next ``refresh`` or ``close`` returns. ``infer``
    returns newly allocated arrays.

    Args:
        batch: observations per call, at least 1.

    Raises:
        ConfigError: an invalid batch.
        MissingExtraError: the backend's library is not installed.
    """

    name: ClassVar[str]

    def __init__(self, batch: int) -> None:
        if batch < 1:
            raise ConfigError(f"the backend's batch is {batch}. Expected at least 1.")
        self.batch = batch
        self._policy: Policy | None = None
        self._infer: Infer | None = None
        self._closed = False
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.float32)

    @property
    def policy(self) -> Policy | None:
        """The current policy; None before the first refresh and after ``close``."""
        return self._policy

    def refresh(self, policy: Policy) -> None:
        """Replace the policy; its network may differ, too.

        If the policy is refused, the previous one stays in use.

        Raises:
            InputError: weights that are not finite.
            ConfigError: the backend is closed or cannot run this network.
        """
        if self._closed:
            raise ConfigError(f"the {self.name} backend is closed. Expected an open one.")
        check_weights(policy)
        # If loading fails halfway, no policy is active rather than a mixture of two.
        self._policy = None
        self._infer = self._load(self.computed(policy))
        self._shape = (self.batch, *policy.spec.observation_shape)
        self._dtype = np.dtype(policy.spec.observation_dtype)
        self._policy = policy

    def computed(self, policy: Policy) -> Policy:
        """Return the policy that this backend computes: itself, or the same with 7-bit weights.

        7-bit weights replace INT8 weights where this backend's 8-bit products saturate on this
        processor. The first such policy in a process triggers the test.
        """
        if not int8_layers(policy) or not self._saturates(self.batch):
            return policy
        return reduced(policy)

    @classmethod
    @functools.cache
    def _saturates(cls, batch: int) -> bool:
        for policy, seen in probes():
            with cls(batch) as backend:
                if backend._load(policy)(np.repeat(seen, batch, axis=0)).min() < 0.9:
                    return True
        return False

    def infer(self, observations: npt.NDArray[Any]) -> Floats:
        """Return the head's outputs (batch, K) as a new float32 array.

        Args:
            observations: (batch, \\*shape) of the spec's dtype.

        Raises:
            InputError: another shape or dtype, NaN or infinity.
            OutputError: the outputs have NaN or infinity: the weights are broken.
            ConfigError: there are no weights yet.
        """
        if (
            self._policy is None
            or self._infer is None
            or not isinstance(observations, np.ndarray)
            or observations.shape != self._shape
            or observations.dtype != self._dtype
        ):
            raise self._refusal(observations)
        # Check inputs: comparisons inside a network can turn NaN into a plausible number.
        if self._dtype.kind == "f" and not finite(observations):
            raise InputError("observations have NaN or infinity. Expected finite numbers.")
        outputs = self._infer(observations)
        if not finite(outputs):
            raise OutputError(
                f"the {self.name} backend returned NaN or infinity with the weights of version "
                f"{self._policy.version}. Expected finite numbers: the learner has diverged. "
                "Lower its learning rate."
            )
        return outputs

    def close(self) -> None:
        """Release weights and library objects. May be called twice."""
        self._closed, self._policy, self._infer = True, None, None
        self._unload()

    def blob(self, policy: Policy) -> bytes | None:
        """Return bytes for ``Policy.blob``, or None if preparing the policy does not pay."""
        return None

    @abc.abstractmethod
    def _load(self, policy: Policy) -> Infer:
        """Return a function that runs the policy; reuses existing objects where possible."""

    def _unload(self) -> None:
        """Release what is cached between refreshes; may be called twice."""

    def _refusal(self, observations: Any) -> ConfigError | InputError:
        if self._policy is None:
            state = "is closed" if self._closed else "has no weights yet"
            return ConfigError(
                f"the {self.name} backend {state}. Expected refresh(policy) before infer."
            )
        found = (
            f"{observations.dtype}{observations.shape}"
            if isinstance(observations, np.ndarray)
            else type(observations).__name__
        )
        return InputError(
            f"observations are {found}. Expected a numpy array {self._dtype}{self._shape}: the "
            "backend's batch, then the shape of one observation."
        )


def finite(array: npt.NDArray[Any]) -> bool:
    """Return whether a float array is finite; takes a microsecond for a small one."""
    # Squares cannot cancel but can overflow, so isfinite decides then. Not array.dot, which warns
    # of the overflow.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def check_weights(policy: Policy) -> None:
    """Raise InputError if weights are NaN or infinite and the outputs might not show it.

    NaN before a tanh reaches the outputs, which :meth:`PolicyBackend.infer` checks; so not all
    34 MB of weights need a check at every refresh. relu and INT8 rounding may turn NaN into a
    number.

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
                f"{name} of version {policy.version} has NaN or infinity. Expected finite weights: "
                "the learner has diverged. Lower its learning rate."
            )
