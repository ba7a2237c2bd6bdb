"""The stage that chooses the actors' backend."""

from __future__ import annotations

from typing import Literal

from vinoreward.errors import ConfigError, OutputError
from vinoreward_actors.compression.chain import COMPILED, CompressionContext, Stage
from vinoreward_actors.policies.backends.base import BACKENDS, compile_blob
from vinoreward_actors.policies.policy import Policy


class Compile(Stage):
    """Marks the policy for a backend: the paper's static computational graph.

    Args:
        backend: that actors use: ``"openvino"``, ``"onnxruntime"`` or ``"numpy"``.
        blob: whether to send the compiled model with the weights. ``"auto"`` does it where it
            pays: from a million INT8 weights. Actors then load 3x2048 in 30 instead of 40 ms on
            OpenVINO, and in 7 instead of 33 ms on ONNX Runtime (20 instead of 45 for several
            environments). It never pays for float weights, which actors swap in place.

    Raises:
        ConfigError: an unknown backend.
    """

    phase = COMPILED

    def __init__(self, backend: str, *, blob: bool | Literal["auto"] = "auto") -> None:
        BACKENDS.find(backend)
        if blob not in (True, False, "auto"):
            raise ConfigError(f"Compile got blob={blob!r}. Expected True, False or 'auto'.")
        self.backend = backend
        self.blob = blob

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the policy for the backend.

        Raises:
            ConfigError: the backend refuses the network.
            OutputError: ``blob`` is True, but the backend has no compiled model of this policy.
        """
        policy = policy.replace(backend=self.backend, blob=None)
        if not self.blob:
            return policy
        compiled = compile_blob(policy, context.batch)
        if not compiled and self.blob != "auto":
            raise OutputError(
                f"the {self.backend} backend has no compiled model of this policy, but blob=True "
                "asks for one. Leave blob at 'auto'."
            )
        return policy.replace(blob=compiled or None)
