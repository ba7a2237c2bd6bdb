"""Compilation: the engine that actors run a policy on, and its compiled form where it pays."""

from __future__ import annotations

from typing import Literal, get_args

from vinoreward.compression.context import Compiler, CompressionContext
from vinoreward.compression.stage import COMPILED, Stage
from vinoreward.errors import ConfigError, OutputError
from vinoreward.policies.policy import Policy

Engine = Literal["openvino", "onnxruntime", "numpy"]


class Compile(Stage):
    """Marks the policy for an engine: the paper's static computational graph.

    Args:
        engine: that actors run it on.
        compiler: gives the engine's compiled form of a policy; None takes the context's.
        blob: whether the compiled form travels with the weights. ``"auto"``: if there is a compiler
            and it finds that to pay. From a million INT8 weights it does: actors load 3x2048 in 30
            instead of 40 ms on OpenVINO, and in 7 instead of 33 ms on ONNX Runtime (20 instead of
            45 for several environments). Float weights never do: they are swapped as they are.

    Raises:
        ConfigError: an engine that there is not.
    """

    phase = COMPILED

    def __init__(
        self,
        engine: Engine,
        compiler: Compiler | None = None,
        *,
        blob: bool | Literal["auto"] = "auto",
    ) -> None:
        if engine not in get_args(Engine) or blob not in (True, False, "auto"):
            raise ConfigError(
                f"compilation was asked for with engine={engine!r}, blob={blob!r}. Expected one of "
                f"{', '.join(get_args(Engine))}, and True, False or 'auto'."
            )
        self.engine = engine
        self.compiler = compiler
        self.blob = blob

    def compress(self, policy: Policy, context: CompressionContext) -> Policy:
        """Return the policy for the engine.

        Raises:
            ConfigError: a compiled form is wanted and there is no compiler.
            OutputError: the compiler gave none.
        """
        policy = policy.replace(engine=self.engine, blob=None)
        compiler = self.compiler or context.compiler
        if not self.blob or (compiler is None and self.blob == "auto"):
            return policy
        if compiler is None:
            raise ConfigError(
                f"Compile({self.engine!r}, blob=True) has no compiler. Expected one as its "
                "argument or in the context."
            )
        compiled = compiler(policy)
        if not compiled and self.blob != "auto":
            raise OutputError(
                f"the compiler gave no compiled form for {self.engine}. Expected bytes; leave "
                "blob at 'auto'."
            )
        return policy.replace(blob=compiled or None)
