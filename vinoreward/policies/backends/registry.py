"""Policy backends by name; imports a backend's library only when creating it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from vinoreward.closing import Closing
from vinoreward.entry_points import Registry
from vinoreward.policies.backends.base import PolicyBackend
from vinoreward.policies.backends.int8 import int8_layers
from vinoreward.policies.policy import Floats, Policy
from vinoreward.policies.reference import forward

# mypy wants a concrete class where an abstract one is passed as a type.
BACKENDS = Registry("vinoreward.policy_backends", PolicyBackend, "policy backend")  # type: ignore[type-abstract]
"""``"torch"`` is eager PyTorch with autograd, as in ActorQ's actors."""


def make_backend(name: str, batch: int) -> PolicyBackend:
    """Create a backend without weights.

    Args:
        name: ``"openvino"``, ``"onnxruntime"``, ``"numpy"``, ``"torch"``, ``"torch_inference"``, or
            one that another package registers in the group ``vinoreward.policy_backends``.
        batch: observations per call, at least 1.

    Raises:
        ConfigError: an unknown backend or an invalid batch.
        MissingExtraError: the backend's library is not installed.
    """
    return BACKENDS.find(name)(batch)


def compile_blob(policy: Policy, batch: int) -> bytes | None:
    """Prepare a policy once for all actors; the result goes into ``Policy.blob``.

    A backend uses a blob only if it fits: same weights (7-bit ones where 8-bit products saturate,
    see :meth:`PolicyBackend.computed`), backend, batch and kind of machine.

    Args:
        policy: with the final weights and backend.
        batch: of the actors.

    Returns:
        The bytes, or None where preparing does not pay.

    Raises:
        ConfigError: an unknown backend, or it refuses the network.
        MissingExtraError: the backend's library is not installed.
    """
    with make_backend(policy.backend, batch) as backend:
        return backend.blob(backend.computed(policy))


class BackendOutputs(Closing):
    """Computes policies on their own backends, on this machine.

    Policies without INT8 layers are computed in NumPy: backends only differ in INT8 kernels.

    Args:
        batch: observations per call, as for the actors.
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
