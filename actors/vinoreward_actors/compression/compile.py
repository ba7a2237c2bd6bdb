"""The stage that chooses the actors' backend."""

from __future__ import annotations

from vinoreward_actors.compression.chain import COMPILED, CompressionContext, Stage
from vinoreward_actors.policies.backends.base import BACKENDS, compile_blob
from vinoreward_actors.policies.policy import Policy


class Compile(Stage):
    """Marks the policy for a backend: the paper's static computational graph.

    Sends the compiled model with the weights where it pays: from a million INT8 weights. Actors
    then load 3x2048 in 30 instead of 40 ms on OpenVINO, and in 7 instead of 33 ms on ONNX Runtime
    (20 instead of 45 for several environments). It never pays for float weights, which actors swap
    in place.

    Args:
        backend: that actors use: ``"openvino"``, ``"onnxruntime"`` or ``"numpy"``.

    Raises:
        ConfigError: an unknown backend.
    """

    phase = COMPILED

    def __init__(self, backend: str) -> None:
        BACKENDS.find(backend)
        self.backend = backend

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the policy for the backend; ConfigError if that refuses the network."""
        policy = policy.replace(backend=self.backend, blob=None)
        return policy.replace(blob=compile_blob(policy, context.batch))
