"""Finding a policy backend by name; its library is imported only when one is made."""

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
"""``"torch"`` is eager PyTorch with autograd on, as ActorQ's actors ran it."""


def make_backend(name: str, batch: int) -> PolicyBackend:
    """Make a backend without weights yet.

    Args:
        name: ``"openvino"``, ``"onnxruntime"``, ``"numpy"``, ``"torch"``, ``"torch_inference"``, or
            one that another package registers in the group ``vinoreward.policy_backends``.
        batch: observations of one call, at least 1.

    Raises:
        ConfigError: no such backend, or another batch.
        MissingExtraError: the backend's library is not installed.
    """
    return BACKENDS.find(name)(batch)


def compile_blob(policy: Policy, batch: int) -> bytes | None:
    """Prepare a policy once for all actors; the result goes into ``Policy.blob``.

    A backend uses a blob only where it fits: same weights (7-bit ones where 8-bit products
    saturate, see :meth:`PolicyBackend.computed`), backend, batch and kind of machine.

    Args:
        policy: with the weights to prepare, for the backend that it names.
        batch: the actors'.

    Returns:
        The bytes, or None where there is nothing worth preparing.

    Raises:
        ConfigError: no such backend, or it refuses the network.
        MissingExtraError: the backend's library is not installed.
    """
    with make_backend(policy.backend, batch) as backend:
        return backend.blob(backend.computed(policy))


class BackendOutputs(Closing):
    """Outputs of policies on the backends that they were made for, on this machine.

    Policies without layers in INT8 are computed in NumPy: backends differ in kernels for INT8.

    Args:
        batch: observations of one call, the same as the actors'.
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
        # The last batch is filled up with observations from the start.
        places = np.arange(-(-len(observations) // self._batch) * self._batch) % len(observations)
        outputs = [backend.infer(observations[part]) for part in places.reshape(-1, self._batch)]
        return np.concatenate(outputs)[: len(observations)]

    def close(self) -> None:
        """Let the backends go."""
        for backend in self._backends.values():
            backend.close()
