"""The OpenVINO backend: binds weights as inputs where that is fast, else compiles them in."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from vinoreward.backends.runtime import import_openvino, shared_core
from vinoreward.errors import ConfigError, OutputError
from vinoreward.policies.backends.base import Infer, PolicyBackend
from vinoreward.policies.backends.int8 import int8_layers
from vinoreward.policies.backends.openvino_constants import (
    compile_blob,
    compiled,
    constant_model,
    import_blob,
    wants_constants,
)
from vinoreward.policies.backends.openvino_inputs import Swappable
from vinoreward.policies.policy import Floats, Policy

Array = npt.NDArray[Any]


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
        self._swappable: Swappable | None = None
        self._key: object = None
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
        return compile_blob(self._openvino, self._core, policy, self.batch)

    def _load(self, policy: Policy) -> Infer:
        self._imported = False
        if wants_constants(policy):
            model = import_blob(self._openvino, self._core, policy, self.batch)
            self._imported = model is not None
            if model is None:
                graph = constant_model(self._openvino, policy, self.batch)
                model = compiled(self._openvino, self._core, graph)
            self._open(model, policy)
            self._swappable, self._key, self._bound = None, None, []
            return self._run
        key = (policy.spec, int8_layers(policy))
        if self._swappable is None or key != self._key:
            self._swappable = Swappable(self._openvino, policy, self.batch)
            self._key = key
            self._open(compiled(self._openvino, self._core, self._swappable.model), policy)
        arrays = [_writable(array) for array in self._swappable.arrays(policy)]
        for number, array in enumerate(arrays, start=1):
            self._request.set_input_tensor(number, self._tensor(array))
        # Release the previous weights only now: their memory may be reused from here on.
        self._bound = arrays
        return self._run

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
        self._request = self._compiled = self._swappable = self._key = None
        self._core = None
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
