"""Policy backends by name, and their base class, which checks inputs, outputs and weights.

A backend may prepare a policy once for all actors, as bytes with a header and a checksum: a blob.
If it does not fit, the backend prepares the policy itself, which is slower.
"""

from __future__ import annotations

import abc
import functools
import json
import math
import re
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.entry_points import Registry
from vinoreward.errors import ConfigError, InputError, OutputError
from vinoreward_actors.policies.policy import (
    ActivationRange,
    Floats,
    Parameter,
    Policy,
    QuantizedArray,
    forward,
    int8_layers,
    reduced,
)
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp

Infer = Callable[[npt.NDArray[Any]], Floats]
"""Takes checked (batch, *shape) observations, contiguous or not; returns new (batch, K) arrays."""
ALIGNMENT = 64
"""In bytes; the payload starts at a multiple of this, so a blob at such an address is aligned."""
_MAGIC = b"vinoreward policy blob 1\n"
_START = re.compile(re.escape(_MAGIC) + rb"([^\n]*)\n")
_PROBED = (
    mlp(64, 8, head="q", hidden=(64, 64)),
    PolicySpec(
        (4, 12, 12),
        (
            Conv("conv0", 4, 32, 4, 2),
            Conv("conv1", 32, 32, 3, 1),
            Flatten(),
            Dense("dense0", 32 * 3 * 3, 64, "relu"),
            Dense("head", 64, 8),
        ),
        head="q", actions=8, observation_dtype="uint8", scale=1.0 / 255.0,
    ),
)  # fmt: skip
"""One network with dense layers, the other with convolutions."""


class PolicyBackend(Closing):
    """Runs one actor's policy network. Not thread-safe.

    To write a backend, subclass this and implement :meth:`_load`; register it in the entry-point
    group ``vinoreward.policy_backends``. A backend that caches anything between refreshes also
    implements :meth:`_unload`.

    Weights passed to :meth:`refresh` may be views of shared memory. The backend keeps references
    to them, so they must not change before the next ``refresh`` or ``close`` returns. ``infer``
    returns newly allocated arrays. ``batch`` is the number of observations per call.
    """

    name: ClassVar[str]

    def __init__(self, batch: int) -> None:
        if batch < 1:
            raise ConfigError(f"the backend's batch is {batch}. Expected at least 1.")
        self.batch = batch
        self.policy: Policy | None = None
        """The current policy; None before the first refresh and after ``close``."""
        self._infer: Infer | None = None
        self._closed = False
        self._shape: tuple[int, ...] = ()
        self._dtype = np.dtype(np.float32)

    def refresh(self, policy: Policy) -> None:
        """Replace the policy; its network may differ, too.

        Raises:
            InputError: weights that are not finite; the previous policy stays in use.
            ConfigError: the backend is closed or cannot run this network.
        """
        if self._closed:
            raise ConfigError(f"the {self.name} backend is closed. Expected an open one.")
        check_weights(policy)
        # If loading fails halfway, no policy is active rather than a mixture of two.
        self.policy = None
        self._infer = self._load(self.computed(policy))
        self._shape = (self.batch, *policy.spec.observation_shape)
        self._dtype = np.dtype(policy.spec.observation_dtype)
        self.policy = policy

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
        for policy, seen in _probes():
            with cls(batch) as backend:
                if backend._load(policy)(np.repeat(seen, batch, axis=0)).min() < 0.9:
                    return True
        return False

    def infer(self, observations: npt.NDArray[Any]) -> Floats:
        """Return the head's outputs (batch, K) for observations (batch, \\*shape), as a new array.

        Raises:
            InputError: another shape or dtype, NaN or infinity.
            OutputError: the outputs have NaN or infinity: the weights are broken.
            ConfigError: there are no weights yet.
        """
        if (
            self.policy is None
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
                f"{self.policy.version}. Expected finite numbers: the learner has diverged. "
                "Lower its learning rate."
            )
        return outputs

    def close(self) -> None:
        """Release weights and library objects. May be called twice."""
        self._closed, self.policy, self._infer = True, None, None
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
        if self.policy is None:
            state = "is closed" if self._closed else "has no weights yet"
            return ConfigError(
                f"the {self.name} backend {state}. Expected refresh(policy) before infer."
            )
        given = type(observations).__name__
        if isinstance(observations, np.ndarray):
            given = f"{observations.dtype}{observations.shape}"
        return InputError(
            f"observations are {given}. Expected a numpy array {self._dtype}{self._shape}: the "
            "backend's batch, then the shape of one observation."
        )


def _probes() -> Iterator[tuple[Policy, npt.NDArray[Any]]]:
    """Yield networks with one observation (1, *shape) each, for which all outputs are 1.

    Inputs are at the highest level and weights at the largest code, so outputs fall far below 1 if
    pair sums saturate.
    """
    for spec in _PROBED:
        parameters: dict[str, Parameter] = {}
        for name, shape in spec.parameter_shapes().items():
            scale = np.full(shape[0], 1.0 / (127.0 * math.prod(shape[1:])), dtype=np.float32)
            parameters[name] = QuantizedArray(np.full(shape, 127, dtype=np.int8), scale)
            if name.endswith(".bias"):
                parameters[name] = np.zeros(shape, dtype=np.float32)
        ranges = {layer.name: ActivationRange(0.0, 1.0) for layer in spec.weighted}
        most = 255 if spec.observation_dtype == "uint8" else 1
        seen = np.full((1, *spec.observation_shape), most, dtype=spec.observation_dtype)
        yield Policy(spec, parameters, ranges), seen


def finite(array: npt.NDArray[Any]) -> bool:
    """Return whether a float array is finite; takes a microsecond for a small one."""
    # Squares cannot cancel but can overflow, so isfinite decides then. Not array.dot, which warns
    # of the overflow.
    return math.isfinite(np.vdot(array, array)) or bool(np.isfinite(array).all())


def check_weights(policy: Policy) -> None:
    """Raise InputError if weights are NaN or infinite and the outputs might not show it.

    NaN before a tanh reaches the outputs, which :meth:`PolicyBackend.infer` checks; so not all
    34 MB of weights need a check at every refresh. Other activations and INT8 rounding may turn
    NaN into a number.
    """
    hides = any(
        layer.activation not in ("none", "tanh") or policy.in_int8(layer.name)
        for layer in policy.spec.weighted
    )
    for name, value in policy.parameters.items():
        if isinstance(value, QuantizedArray):
            sound = bool(np.isfinite(value.scales).all())
        elif hides or value.ndim == 1:
            with np.errstate(over="ignore", invalid="ignore"):
                total = np.add.reduce(value, axis=None)
            sound = math.isfinite(total) or bool(np.isfinite(value).all())
        else:
            continue
        if not sound:
            raise InputError(
                f"{name} of version {policy.version} has NaN or infinity. Expected finite weights: "
                "the learner has diverged. Lower its learning rate."
            )


# mypy wants a concrete class where an abstract one is passed as a type.
BACKENDS = Registry("vinoreward.policy_backends", PolicyBackend, "policy backend")  # type: ignore[type-abstract]
"""``"torch"`` is eager PyTorch with autograd, as in ActorQ's actors."""


def make_backend(name: str, batch: int) -> PolicyBackend:
    """Create a backend without weights, for ``batch`` observations per call.

    Raises:
        ConfigError: an unknown backend or an invalid batch.
        MissingExtraError: the backend's library is not installed.
    """
    return BACKENDS.find(name)(batch)


def compile_blob(policy: Policy, batch: int) -> bytes | None:
    """Prepare a policy once for all actors; the result goes into ``Policy.blob``.

    None where preparing does not pay. A backend uses a blob only if it fits: same weights (7-bit
    ones where 8-bit products saturate, see :meth:`PolicyBackend.computed`), backend, batch and kind
    of machine.

    Raises:
        ConfigError: an unknown backend, or it refuses the network.
        MissingExtraError: the backend's library is not installed.
    """
    with make_backend(policy.backend, batch) as backend:
        return backend.blob(backend.computed(policy))


class BackendOutputs(Closing):
    """Computes policies on their own backends, on this machine, with the actors' ``batch``.

    Policies without INT8 layers are computed in NumPy: backends only differ in INT8 kernels.
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._backends: dict[str, PolicyBackend] = {}

    def __call__(self, policy: Policy, observations: npt.NDArray[np.generic]) -> Floats:
        """Return head outputs (N, K) for observations (N, *shape).

        Raises:
            InputError: weights that are not finite, or unsuitable observations.
            OutputError: outputs that are not finite, or the backend failed.
        """
        if not int8_layers(policy):
            return forward(policy, observations)
        if policy.backend not in self._backends:
            self._backends[policy.backend] = make_backend(policy.backend, self._batch)
        backend = self._backends[policy.backend]
        backend.refresh(policy)
        # Pad the last batch with observations from the start.
        places = np.arange(-(-len(observations) // self._batch) * self._batch) % len(observations)
        outputs = [backend.infer(observations[part]) for part in places.reshape(-1, self._batch)]
        return np.concatenate(outputs)[: len(observations)]

    def close(self) -> None:
        """Close the backends."""
        for backend in self._backends.values():
            backend.close()


def seal(header: Mapping[str, Any], payload: bytes) -> bytes:
    """Return a blob: the backend's bytes after plain data that must match where it is used."""
    text = json.dumps({**header, "checksum": zlib.crc32(payload)}).encode()
    start = _MAGIC + text
    return start + b" " * (-(len(start) + 1) % ALIGNMENT) + b"\n" + payload


def unseal(blob: bytes | memoryview | None, header: Mapping[str, Any]) -> memoryview | None:
    """Return a blob's payload without a copy; None without a blob or where it does not fit.

    The checksum is for damaged bytes, which runtimes load without an error, or crash on. It does
    not protect from an attacker; policies come from the user's own processes.
    """
    start = None if blob is None else _START.match(blob)
    if blob is None or start is None:
        return None
    try:
        of_blob = json.loads(start[1])
    except ValueError:
        return None
    payload = memoryview(blob)[start.end() :]
    return payload if of_blob == {**header, "checksum": zlib.crc32(payload)} else None


def describes(policy: Policy, backend: str) -> dict[str, Any]:
    """Return the header fields that identify a blob's policy and backend.

    Takes 2 ms for 8 million INT8 weights.
    """
    ranges = {name: [bounds.low, bounds.high] for name, bounds in sorted(policy.ranges.items())}
    total = zlib.crc32(json.dumps(ranges).encode())
    for value in policy.parameters.values():
        arrays = [value.codes, value.scales] if isinstance(value, QuantizedArray) else [value]
        for array in arrays:
            total = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, total)
    return {"backend": backend, "network": policy.spec.digest(), "weights": total}
