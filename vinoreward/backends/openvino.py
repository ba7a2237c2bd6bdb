"""The OpenVINO backend: one synchronous request per static batch size, inputs bound in advance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import Backend, batch_sizes, in_pieces
from vinoreward.backends.network import (
    Preprocess,
    TensorSpec,
    check_ends,
    first_line,
    openvino_model,
)
from vinoreward.backends.probe import read_network
from vinoreward.backends.runtime import import_openvino, shared_core
from vinoreward.errors import (
    ConfigError,
    ModelCorruptError,
    OutputError,
    UnknownDeviceError,
)


class _Request(NamedTuple):
    """One compiled batch size."""

    compiled: Any
    request: Any
    source: NDArray[Any]
    result: NDArray[Any]


class OpenVINOBackend(Backend):
    """Runs an ``.onnx`` network with OpenVINO.

    It is configured for an environment's ``step``: latency hint, one stream, ``threads`` threads,
    and no pinning, which would put all workers on the same core. Shapes are static, as dynamic ones
    cost memory with every new size; batches are split into 16, 4 and 1. The precision is exactly
    the requested one: by default OpenVINO takes bfloat16 where the processor has it, and rewards
    would depend on the processor.
    """

    name: ClassVar[str] = "openvino"
    library: ClassVar[str] = "openvino"
    resources: ClassVar[tuple[str, ...]] = ("_requests", "_model", "_core")

    def _load(self) -> None:
        ov = import_openvino()
        core = shared_core(ov)
        self._check_device(core)
        self._core = core
        self._model, self._sizes = self._read(ov)
        self._requests: dict[int, _Request] = {}
        self._request(self._sizes[-1])  # compile one now, so that errors appear on loading

    def _infer(self, batch: NDArray[Any]) -> NDArray[Any]:
        if len(batch) in self._requests and len(batch) == self._sizes[-1]:
            return self._run(batch)
        return in_pieces(batch, self._sizes, self._run)

    def _run(self, batch: NDArray[Any]) -> NDArray[Any]:
        one = self._request(len(batch))
        one.source[:] = batch
        try:
            one.request.infer()
        except RuntimeError as error:
            raise OutputError(
                f"OpenVINO failed while running {self.spec.path} on {self.device}. Expected it to "
                f"return {self.output}; OpenVINO says: {first_line(error)}"
            ) from error
        return one.result

    def _request(self, size: int) -> _Request:
        if size not in self._requests:
            self._requests[size] = self._compile(size)
        return self._requests[size]

    def shaped_models(self) -> Iterator[tuple[int, Any]]:
        """Yield each batch size and the model of that size; nothing is compiled."""
        self._model, sizes = self._read(import_openvino())
        for size in sizes:
            yield size, self._shaped(size)

    def _shaped(self, size: int) -> Any:
        model = self._model.clone()
        try:
            model.reshape([size, *(axis or 1 for axis in self.input.shape[1:])])
        except (RuntimeError, ValueError) as error:
            raise self._unfit(size, error) from error
        return model

    def _unfit(self, size: int, error: Exception) -> ModelCorruptError:
        shape = (size, *(axis or 1 for axis in self.input.shape[1:]))
        return ModelCorruptError(
            f"OpenVINO cannot compile {self.spec.path} for inputs of shape {shape}. "
            "Expected a network that runs at this size; export it again, or correct the size "
            f"in its description. OpenVINO says: {first_line(error)}"
        )

    def _compile(self, size: int) -> _Request:
        ov = import_openvino()
        model = self._shaped(size)
        options: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
        options["INFERENCE_PRECISION_HINT"] = "bf16" if self.precision == "bf16" else "f32"
        if self.device == "CPU":
            options |= {"INFERENCE_NUM_THREADS": self.threads, "ENABLE_CPU_PINNING": False}
        try:
            compiled = self._core.compile_model(model, self.device, options)
        except (RuntimeError, ValueError) as error:
            raise self._unfit(size, error) from error
        request = compiled.create_infer_request()
        source = np.zeros(model.input(0).shape, dtype=self.input.dtype)
        request.set_input_tensor(ov.Tensor(source, shared_memory=True))
        joined = self.spec.joined_index is not None  # then _read made one output of the two
        result = request.get_output_tensor(0 if joined else self.spec.output_index).data
        return _Request(compiled, request, source, result)

    def _read(self, ov: Any) -> tuple[Any, tuple[int, ...]]:
        """Return the model, with the preprocessing in front, and its batch sizes."""
        path = self.spec.path
        model = openvino_model(ov, path, read_network(self.spec, self.name))
        check_ends(path, len(model.inputs), len(model.outputs), max(self.spec.outputs))
        kind, steps = model.input(0).element_type, self.spec.preprocess
        floats = [ov.Type.f32, ov.Type.f16]
        expected = [ov.Type(np.dtype(self.input.dtype))] if steps is None else floats
        try:
            if self.spec.joined_index is not None:
                model = _joined(ov, model, self.spec.outputs)
            if steps is not None:
                model = _with_preprocess(ov, model, steps, self.input)
            fits = model.input(0).partial_shape.compatible(
                ov.PartialShape([-1 if size is None else size for size in self.input.shape])
            )
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"the preprocessing described for {path} does not fit its input "
                f"{model.input(0).partial_shape}. Expected images {self.input}; correct layout "
                f"and size in the description. OpenVINO says: {first_line(error)}"
            ) from error
        if not fits or kind not in expected:
            raise ConfigError(
                f"{path} takes {model.input(0).partial_shape} {kind.get_type_name()}, but its "
                f"description says {self.input}"
                f"{'' if steps is None else f' after {steps}'}. Expected the same; correct the "
                "description, or give a preprocess if the network takes normalised floats."
            )
        batch = model.input(0).partial_shape[0]
        return model, batch_sizes(path, None if batch.is_dynamic else batch.get_length())

    def _check_device(self, core: Any) -> None:
        present = list(core.available_devices)
        if not any(name == self.device or name.startswith(f"{self.device}.") for name in present):
            raise UnknownDeviceError(
                f"OpenVINO has no device {self.device!r} here. Expected one of "
                f"{', '.join(present)}; choose one of these or install the driver."
            )
        if self.precision == "bf16":
            offered = core.get_property(self.device, "OPTIMIZATION_CAPABILITIES")
            if "BF16" not in offered:
                raise ConfigError(
                    f"{self.device} offers {', '.join(offered)}, and would emulate bf16 at a half "
                    "to a quarter of the speed. Expected another precision; use fp32 or int8."
                )

    def _describe(self) -> dict[str, str | int | float | bool]:
        compiled = self._requests[self._sizes[-1]].compiled
        described: dict[str, str | int | float | bool] = {
            "version": str(import_openvino().__version__),
            "execution_devices": ",".join(compiled.get_property("EXECUTION_DEVICES")),
            "inference_precision": str(
                compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
            ),
            "compiled_batches": ",".join(str(size) for size in sorted(self._requests)),
        }
        if self.device == "CPU":
            described["pinning"] = bool(compiled.get_property("ENABLE_CPU_PINNING"))
        return described


def _joined(ov: Any, model: Any, outputs: tuple[int, ...]) -> Any:
    """Return the model with these outputs concatenated into one."""
    # Results cannot be concatenated, only their sources.
    sources = [model.output(index).node.input_value(0) for index in outputs]
    together = ov.opset13.concat(sources, 1)
    return ov.Model([ov.opset13.result(together)], model.get_parameters(), model.friendly_name)


def _with_preprocess(ov: Any, model: Any, steps: Preprocess, image: TensorSpec) -> Any:
    """Return a float model with ``steps`` in front; it takes uint8 RGB N, H, W, C."""
    builder = ov.preprocess.PrePostProcessor(model)
    tensor = builder.input().tensor()
    tensor.set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    tensor.set_color_format(ov.preprocess.ColorFormat.RGB)
    tensor.set_spatial_static_shape(*image.shape[1:3])
    builder.input().model().set_layout(ov.Layout(steps.layout))
    actions = builder.input().preprocess().convert_element_type(ov.Type.f32)
    if steps.color_order == "BGR":
        actions = actions.convert_color(ov.preprocess.ColorFormat.BGR)
    actions.scale(steps.scale).mean(list(steps.mean)).scale(list(steps.std))
    return builder.build()
