"""Compilation: the backend that actors run a policy on, and its compiled form where it pays."""

from __future__ import annotations

from typing import Literal

from vinoreward.compression.context import CompressionContext
from vinoreward.compression.stage import COMPILED, Stage
from vinoreward.errors import ConfigError, OutputError
from vinoreward.policies.backends.registry import BACKENDS, compile_blob
from vinoreward.policies.policy import Policy


class Compile(Stage):
    """Marks the policy for a backend: the paper's static computational graph.

    Args:
        backend: that actors run it on: ``"openvino"``, ``"onnxruntime"`` or ``"numpy"``.
        blob: whether the compiled form travels with the weights. ``"auto"``: if that pays. From a
            million INT8 weights it does: actors load 3x2048 in 30 instead of 40 ms on OpenVINO,
            and in 7 instead of 33 ms on ONNX Runtime (20 instead of 45 for several environments).
            Float weights never do: they are swapped as they are.

    Raises:
        ConfigError: a backend that there is not.
    """

    phase = COMPILED

    def __init__(self, backend: str, *, blob: bool | Literal["auto"] = "auto") -> None:
        BACKENDS.find(backend)
        if blob not in (True, False, "auto"):
            raise ConfigError(
                f"compilation was asked for with blob={blob!r}. Expected True, False or 'auto'."
            )
        self.backend = backend
        self.blob = blob

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the policy for the backend.

        Raises:
            ConfigError: the backend refuses the network.
            OutputError: a compiled form is wanted and the backend has none of this policy.
        """
        policy = policy.replace(backend=self.backend, blob=None)
        if not self.blob:
            return policy
        compiled = compile_blob(policy, context.batch)
        if not compiled and self.blob != "auto":
            raise OutputError(
                f"the {self.backend} backend has no compiled form of this policy. Expected one; "
                "leave blob at 'auto'."
            )
        return policy.replace(blob=compiled or None)
