"""Finding an executor by its engine's name; libraries are imported only when one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.executors import onnx_blob, openvino_constants
from vinoreward.actor_learner.executors.base import Executor
from vinoreward.actor_learner.executors.folded import int8_layers
from vinoreward.actor_learner.executors.numpy_executor import NumpyExecutor
from vinoreward.actor_learner.executors.onnxruntime_executor import ONNXRuntimeExecutor
from vinoreward.actor_learner.executors.openvino_executor import OpenVINOExecutor
from vinoreward.actor_learner.executors.torch_eager import TorchExecutor
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Floats, Policy
from vinoreward.policies.reference import forward


def _numpy(batch: int) -> Executor:

    return NumpyExecutor(batch)


def _openvino(batch: int) -> Executor:

    return OpenVINOExecutor(batch)


def _onnxruntime(batch: int) -> Executor:

    return ONNXRuntimeExecutor(batch)


def _torch(batch: int) -> Executor:

    return TorchExecutor(batch)


def _torch_inference(batch: int) -> Executor:

    return TorchExecutor(batch, autograd=False)


_ENGINES: Mapping[str, Callable[[int], Executor]] = MappingProxyType(
    {
        "numpy": _numpy,
        "openvino": _openvino,
        "onnxruntime": _onnxruntime,
        "torch": _torch,
        "torch_inference": _torch_inference,
    }
)
ENGINES = tuple(_ENGINES)
"""Names of engines. ``"torch"`` is eager PyTorch with autograd on, as ActorQ's actors ran it."""


def make_executor(engine: str, batch: int) -> Executor:
    """Make an executor without weights yet.

    Args:
        engine: one of :data:`ENGINES`.
        batch: observations of one call, at least 1.

    Raises:
        ConfigError: no such engine, or another batch.
        MissingExtraError: the engine's library is not installed.
    """
    _check(engine)
    return _ENGINES[engine](batch)


def compile_blob(policy: Policy, batch: int) -> bytes | None:
    """Prepare a policy once for all actors; the result goes into ``Policy.blob``.

    An executor uses a blob only where it fits: same weights (7-bit ones where 8-bit products
    saturate, see :meth:`Executor.computed`), engine, batch and kind of machine.

    Args:
        policy: with the weights to prepare, for the engine that it names.
        batch: the executors'.

    Returns:
        The bytes, or None where there is nothing worth preparing.

    Raises:
        ConfigError: no such engine, or it refuses the network.
        MissingExtraError: the engine's library is not installed.
    """
    _check(policy.engine)
    if policy.engine not in ("openvino", "onnxruntime"):
        return None
    if int8_layers(policy):
        with make_executor(policy.engine, batch) as executor:
            policy = executor.computed(policy)
    if policy.engine == "openvino":
        return openvino_constants.compile_blob(policy, batch)

    return onnx_blob.compile_blob(policy)


class EngineOutputs(Closing):
    """Outputs of policies on the engines that they were made for, on this machine.

    Policies without layers in INT8 are computed in NumPy: engines differ in kernels for INT8.

    Args:
        batch: observations of one call, the same as the actors'.
    """

    def __init__(self, batch: int) -> None:
        self._batch = batch
        self._executors: dict[str, Executor] = {}

    def __call__(self, policy: Policy, observations: npt.NDArray[Any]) -> Floats:
        """Return head outputs (N, K) for observations (N, *shape).

        Raises:
            InputError: weights that are not finite, or unsuitable observations.
            OutputError: outputs that are not finite, or the engine failed.
        """
        if not int8_layers(policy):
            return forward(policy, observations)
        if policy.engine not in self._executors:
            self._executors[policy.engine] = make_executor(policy.engine, self._batch)
        executor = self._executors[policy.engine]
        executor.refresh(policy)
        # The last batch is filled up with observations from the start.
        places = np.arange(-(-len(observations) // self._batch) * self._batch) % len(observations)
        outputs = [executor.infer(observations[part]) for part in places.reshape(-1, self._batch)]
        return np.concatenate(outputs)[: len(observations)]

    def close(self) -> None:
        """Let the executors go."""
        for executor in self._executors.values():
            executor.close()


def _check(engine: str) -> None:
    if engine not in _ENGINES:
        raise ConfigError(f"no engine {engine!r}. Expected one of {', '.join(ENGINES)}.")
