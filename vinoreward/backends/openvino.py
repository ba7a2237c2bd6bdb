"""The OpenVINO backend: one synchronous request per static batch size, inputs bound in advance."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import Backend, batch_sizes, in_pieces
from vinoreward.backends.network import (
    Preprocess,
    check_ends,
    first_line,
    openvino_model,
    other_input,
)
from vinoreward.backends.probe import read_network
from vinoreward.backends.runtime import import_openvino, shared_core
from vinoreward.errors import ConfigError, ModelCorruptError, OutputError, UnknownDeviceError


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
        size = self._sizes[-1]  # one is compiled now, so that errors appear on loading
        self._requests = {size: self._compile(size)}

    def _infer(self, batch: NDArray[Any]) -> NDArray[Any]:
        if len(batch) == self._sizes[-1]:
            return self._run(batch)  # without a copy of the result
        return in_pieces(batch, self._sizes, self._run)

    def _run(self, batch: NDArray[Any]) -> NDArray[Any]:
        if len(batch) not in self._requests:
            self._requests[len(batch)] = self._compile(len(batch))
        one = self._requests[len(batch)]
        one.source[:] = batch
        try:
            one.request.infer()
        except RuntimeError as error:
            raise OutputError(
                f"OpenVINO failed while running {self.spec.path} on {self.device}. Expected it to "
                f"return {self.spec.columns} numbers an image; OpenVINO says: {first_line(error)}"
            ) from error
        return one.result

    def shaped_models(self) -> Iterator[tuple[int, Any]]:
        """Yield each batch size and the model of that size; nothing is compiled."""
        self._model, sizes = self._read(import_openvino())
        for size in sizes:
            yield size, self._shaped(size)

    def _shaped(self, size: int) -> Any:
        model = self._model.clone()
        with self._at_size(size):
            model.reshape([size, *self.spec.shape])
        return model

    @contextlib.contextmanager
    def _at_size(self, size: int) -> Iterator[None]:
        try:
            yield
        except (RuntimeError, ValueError) as error:
            raise ModelCorruptError(
                f"OpenVINO cannot compile {self.spec.path} for {size} images {self.spec.images}. "
                "Expected a network that runs at this size; export it again, or correct the size "
                f"in its description. OpenVINO says: {first_line(error)}"
            ) from error

    def _compile(self, size: int) -> _Request:
        ov = import_openvino()
        model = self._shaped(size)
        options: dict[str, Any] = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1}
        options["INFERENCE_PRECISION_HINT"] = "bf16" if self.precision == "bf16" else "f32"
        if self.device == "CPU":
            options |= {"INFERENCE_NUM_THREADS": self.threads, "ENABLE_CPU_PINNING": False}
        with self._at_size(size):
            compiled = self._core.compile_model(model, self.device, options)
        request = compiled.create_infer_request()
        source = np.zeros(model.input(0).shape, np.uint8)
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
        expected = [ov.Type.u8] if steps is None else floats
        try:
            if self.spec.joined_index is not None:
                model = _joined(ov, model, self.spec.outputs)
            if steps is not None:
                model = _with_preprocess(ov, model, steps, self.spec.size)
            fits = model.input(0).partial_shape.compatible(ov.PartialShape([-1, *self.spec.shape]))
        except (RuntimeError, ValueError) as error:
            raise ConfigError(
                f"the preprocessing described for {path} does not fit its input "
                f"{model.input(0).partial_shape}. Expected images {self.spec.images}; correct "
                f"layout and size in the description. OpenVINO says: {first_line(error)}"
            ) from error
        if not fits or kind not in expected:
            found = f"{model.input(0).partial_shape} {kind.get_type_name()}"
            raise other_input(self.spec, found)
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


def _joined(ov: Any, model: Any, outputs: tuple[int, ...]) -> Any:
    """Return the model with these outputs concatenated into one."""
    # Results cannot be concatenated, only their sources.
    sources = [model.output(index).node.input_value(0) for index in outputs]
    together = ov.opset13.concat(sources, 1)
    return ov.Model([ov.opset13.result(together)], model.get_parameters(), model.friendly_name)


def _with_preprocess(ov: Any, model: Any, steps: Preprocess, size: tuple[int, int]) -> Any:
    """Return a float model with ``steps`` in front; it takes uint8 RGB N, H, W, C."""
    builder = ov.preprocess.PrePostProcessor(model)
    tensor = builder.input().tensor()
    tensor.set_element_type(ov.Type.u8).set_layout(ov.Layout("NHWC"))
    tensor.set_color_format(ov.preprocess.ColorFormat.RGB)
    tensor.set_spatial_static_shape(*size)
    builder.input().model().set_layout(ov.Layout(steps.layout))
    actions = builder.input().preprocess().convert_element_type(ov.Type.f32)
    if steps.color_order == "BGR":
        actions = actions.convert_color(ov.preprocess.ColorFormat.BGR)
    actions.scale(steps.scale).mean(list(steps.mean)).scale(list(steps.std))
    return builder.build()
