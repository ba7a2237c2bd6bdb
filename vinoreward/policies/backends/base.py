"""What every backend does: check what goes in and out, and refuse weights that are not finite."""

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
"""Takes checked (batch, *shape) observations, contiguous or not; returns new (batch, K) outputs."""


class PolicyBackend(Closing):
    """Runs one actor's policy network. Not for use by several threads at a time.

    A new backend subclasses this and writes :meth:`_load`; other packages register theirs in the
    entry-point group ``vinoreward.policy_backends``. One that keeps something from refresh to
    refresh also writes :meth:`_unload`.

    Weights given to :meth:`refresh` may be views of shared memory: the backend keeps a reference
    and reads them in place, so they must not change until the next ``refresh`` has returned, or
    ``close``. ``infer`` returns memory of its own.

    Args:
        batch: observations of one call, at least 1.

    Raises:
        ConfigError: another batch.
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
        """The policy that acts; None before the first refresh and after ``close``."""
        return self._policy

    def refresh(self, policy: Policy) -> None:
        """Act with other weights from now on; the network may be another one, too.

        If the policy is refused the weights before it stay in use.

        Raises:
            InputError: weights that are not finite.
            ConfigError: the backend is closed, or the backend cannot run this network.
        """
        if self._closed:
            raise ConfigError(f"the {self.name} backend is closed. Expected an open one.")
        check_weights(policy)
        # If loading fails halfway nothing acts, rather than a mixture of two policies.
        self._policy = None
        self._infer = self._load(self.computed(policy))
        self._shape = (self.batch, *policy.spec.observation_shape)
        self._dtype = np.dtype(policy.spec.observation_dtype)
        self._policy = policy

    def computed(self, policy: Policy) -> Policy:
        """Return what is computed here for a policy: itself, or the same with 7-bit weights.

        7-bit weights: for layers in INT8, where this backend's 8-bit products saturate on this
        processor. That is tried out once in a process, when the first such policy comes.
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
            or self._infer is None
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
                f"the {self.name} backend returned NaN or infinity with the weights of version "
                f"{self._policy.version}. Expected finite numbers; the learner has diverged, lower "
                "its learning rate."
            )
        return outputs

    def close(self) -> None:
        """Let weights and backend go. Closing twice is fine."""
        self._closed, self._policy, self._infer = True, None, None
        self._unload()

    def blob(self, policy: Policy) -> bytes | None:
        """Return what ``Policy.blob`` may carry to actors, None if there is nothing worth it."""
        return None

    @abc.abstractmethod
    def _load(self, policy: Policy) -> Infer:
        """Return what runs a policy; made in place where that is possible."""

    def _unload(self) -> None:
        """Drop what is kept between refreshes; may be called twice."""

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
