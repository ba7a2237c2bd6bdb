"""Finding an executor by its engine's name; libraries are imported only when one is made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from vinoreward.actor_learner.executors.base import Executor
from vinoreward.errors import ConfigError
from vinoreward.policies.policy import Policy


def _numpy(batch: int) -> Executor:
    from vinoreward.actor_learner.executors.numpy_executor import NumpyExecutor

    return NumpyExecutor(batch)


def _openvino(batch: int) -> Executor:
    from vinoreward.actor_learner.executors.openvino_executor import OpenVINOExecutor

    return OpenVINOExecutor(batch)


def _onnxruntime(batch: int) -> Executor:
    from vinoreward.actor_learner.executors.onnxruntime_executor import ONNXRuntimeExecutor

    return ONNXRuntimeExecutor(batch)


def _torch(batch: int) -> Executor:
    from vinoreward.actor_learner.executors.torch_eager import TorchExecutor

    return TorchExecutor(batch)


def _torch_inference(batch: int) -> Executor:
    from vinoreward.actor_learner.executors.torch_eager import TorchExecutor

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

    An executor uses a blob only where it fits: same weights, engine, batch and kind of machine.

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
    if policy.engine == "openvino":
        from vinoreward.actor_learner.executors import openvino_constants

        return openvino_constants.compile_blob(policy, batch)
    if policy.engine == "onnxruntime":
        from vinoreward.actor_learner.executors import onnx_blob

        return onnx_blob.compile_blob(policy)
    return None


def _check(engine: str) -> None:
    if engine not in _ENGINES:
        raise ConfigError(f"no engine {engine!r}. Expected one of {', '.join(ENGINES)}.")
