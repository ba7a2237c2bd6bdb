"""The OpenVINO backend: binds weights as inputs where that is fast, else compiles them in."""

from __future__ import annotations

import platform
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.backends.runtime import import_openvino, shared_core
from vinoreward.errors import ConfigError, OutputError
from vinoreward.policies.backends.base import Infer, PolicyBackend, describes, seal, unseal
from vinoreward.policies.backends.int8 import int8_layers
from vinoreward.policies.backends.openvino_graph import input_arrays, policy_model, wants_constants
from vinoreward.policies.policy import Floats, Policy

Array = npt.NDArray[Any]
OPTIONS = {
    "PERFORMANCE_HINT": "LATENCY",
    "NUM_STREAMS": 1,
    "INFERENCE_NUM_THREADS": 1,
    # With pinning, all actors of a machine would share one core.
    "ENABLE_CPU_PINNING": False,
    # By default, processors with bfloat16 use it, and weight-only layers round their inputs.
    "INFERENCE_PRECISION_HINT": "f32",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0,
}


class OpenVINOBackend(PolicyBackend):
    """Runs a policy with one OpenVINO request whose inputs and output are bound once.

    FP32 weights and small INT8 weights are graph inputs: a refresh points them at the policy's
    arrays. Large INT8 or weight-only weights are compiled in, or imported from ``policy.blob`` if
    it fits.

    Raises:
        MissingExtraError: OpenVINO is not installed.
    """

    name: ClassVar[str] = "openvino"

    def __init__(self, batch: int) -> None:
        super().__init__(batch)
        self._openvino = import_openvino()
        self._core = shared_core(self._openvino)
        self._compiled: Any = None
        self._request: Any = None
        self._key: object = None
        """Of the graph whose weights are inputs; None where they are compiled in."""
        self._bound: list[Array] = []
        self._imported = False

    @property
    def imported(self) -> bool:
        """Whether the current weights came from the policy's blob."""
        return self._imported

    def kernels(self) -> dict[str, tuple[str, str]]:
        """Return the executed kernels: node name to (kind, precision), as OpenVINO reports them.

        Raises:
            ConfigError: there are no weights yet.
        """
        if self._compiled is None:
            raise ConfigError("the openvino backend has no weights yet. Call refresh first.")
        found = {}
        for node in self._compiled.get_runtime_model().get_ordered_ops():
            info = node.get_rt_info()
            found[node.get_friendly_name()] = (
                info["layerType"].astype(str),
                info["runtimePrecision"].astype(str),
            )
        return found

    def blob(self, policy: Policy) -> bytes | None:
        """Return the compiled model for machines like this one, if weights are compiled in."""
        if not wants_constants(policy):
            return None
        exported = self._compile(policy, constants=True).export_model()
        payload = exported if isinstance(exported, bytes) else exported.getvalue()
        return seal(self._header(policy), payload)

    def _load(self, policy: Policy) -> Infer:
        self._imported = False
        if wants_constants(policy):
            model = self._import(policy)
            self._imported = model is not None
            if model is None:
                model = self._compile(policy, constants=True)
            self._open(model, policy)
            self._key, self._bound = None, []
            return self._run
        key = (policy.spec, int8_layers(policy))
        if key != self._key:
            self._open(self._compile(policy, constants=False), policy)
            self._key = key
        arrays = [_writable(array) for array in input_arrays(policy, self.batch)]
        for number, array in enumerate(arrays, start=1):
            self._request.set_input_tensor(number, self._tensor(array))
        # Release the previous weights only now: their memory may be reused from here on.
        self._bound = arrays
        return self._run

    def _compile(self, policy: Policy, *, constants: bool) -> Any:
        model = policy_model(self._openvino, policy, self.batch, constants=constants)
        try:
            return self._core.compile_model(model, "CPU", OPTIONS)
        except RuntimeError as error:
            raise ConfigError(
                "OpenVINO cannot compile the policy for the CPU. Expected a network that it "
                "supports; use backend='numpy', and report this. "
                f"The reason it gives: {str(error).splitlines()[0]}"
            ) from error

    def _import(self, policy: Policy) -> Any | None:
        """Return the compiled model in a policy's blob, or None if it does not fit.

        It does not fit if made with another OpenVINO, processor, batch or weights, or if damaged.
        """
        if policy.blob is None:
            return None
        payload = unseal(policy.blob, self._header(policy))
        if payload is None:
            return None
        try:
            return self._core.import_model(bytes(payload), "CPU", OPTIONS)
        except RuntimeError:
            return None

    def _header(self, policy: Policy) -> dict[str, Any]:
        return describes(policy, "openvino") | {
            "openvino": str(self._openvino.get_version()),
            "processor": [
                platform.machine(),
                str(self._core.get_property("CPU", "FULL_DEVICE_NAME")),
                sorted(self._core.get_property("CPU", "OPTIMIZATION_CAPABILITIES")),
            ],
            "batch": self.batch,
        }

    def _open(self, model: Any, policy: Policy) -> None:
        spec = policy.spec
        self._compiled, self._request = model, model.create_infer_request()
        self._source = np.zeros((self.batch, *spec.observation_shape), spec.observation_dtype)
        self._result = np.zeros((self.batch, spec.outputs), dtype=np.float32)
        self._request.set_input_tensor(0, self._tensor(self._source))
        self._request.set_output_tensor(0, self._tensor(self._result))

    def _tensor(self, array: Array) -> Any:
        return self._openvino.Tensor(array, shared_memory=True)

    def _run(self, observations: npt.NDArray[Any]) -> Floats:
        np.copyto(self._source, observations)
        try:
            self._request.infer(share_outputs=True)
        except RuntimeError as error:
            raise OutputError(
                "OpenVINO failed to run the policy. Expected outputs; the reason it gives: "
                f"{str(error).splitlines()[0]}"
            ) from error
        return self._result.copy()

    def _unload(self) -> None:
        self._request = self._compiled = self._key = self._core = None
        self._bound = []


class _Alias:
    """An array's memory declared writable: OpenVINO requires that although it only reads."""

    def __init__(self, array: Array) -> None:
        self.source = array
        interface = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface


def _writable(array: Array) -> Array:
    return array if array.flags.writeable else np.asarray(_Alias(array))
