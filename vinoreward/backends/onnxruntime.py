"""The ONNX Runtime backend."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import Backend, batch_sizes, in_pieces
from vinoreward.backends.network import Preprocess, check_ends, other_input
from vinoreward.backends.probe import read_network
from vinoreward.errors import ModelCorruptError, OutputError, UnknownDeviceError

_DTYPES = {"tensor(uint8)": "uint8", "tensor(float)": "float32", "tensor(float16)": "float16"}


class ONNXRuntimeBackend(Backend):
    """Runs an ``.onnx`` network with ONNX Runtime on the CPU.

    Threads do not spin while they wait, which would take cores from the simulator. For a network
    that takes normalised floats (``spec.preprocess``), NumPy converts the images: the same result
    as OpenVINO's up to rounding, at the price of a float copy.
    """

    name: ClassVar[str] = "onnxruntime"
    library: ClassVar[str] = "onnxruntime"
    extra: ClassVar[str | None] = "onnxruntime"
    precisions: ClassVar[tuple[str, ...]] = ("fp32", "int8")
    resources: ClassVar[tuple[str, ...]] = ("_session",)

    def _load(self) -> None:
        if self.device != "CPU":
            raise UnknownDeviceError(
                f"the onnxruntime backend has no device {self.device!r}. Expected CPU; use the "
                "openvino backend for other devices."
            )
        path = self.spec.path
        self._session = self._open()
        inputs, outputs = self._session.get_inputs(), self._session.get_outputs()
        check_ends(path, len(inputs), len(outputs), max(self.spec.outputs))
        self._check_graph(inputs[0])
        self._source = inputs[0].name
        self._results = [outputs[index].name for index in self.spec.outputs]
        batch = inputs[0].shape[0] if inputs[0].shape else None
        self._sizes = batch_sizes(path, batch if isinstance(batch, int) and batch > 0 else None)

    def _open(self) -> Any:
        import onnxruntime

        model = read_network(self.spec, self.name)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # failures arrive as exceptions
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        # It would guess the format from the first bytes.
        options.add_session_config_entry("session.load_model_format", "ONNX")
        try:
            return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's errors have no base class
            raise ModelCorruptError(
                f"{self.spec.path} cannot be read as a network. Expected an ONNX file that this "
                "onnxruntime supports; the file is damaged, of another kind or too new, export it "
                f"again. ONNX Runtime says: {error}"
            ) from error

    def _check_graph(self, source: Any) -> None:
        steps, shape = self.spec.preprocess, (None, *self.spec.shape)
        dtypes = ("uint8",) if steps is None else ("float32", "float16")
        if steps is not None and steps.layout == "NCHW":
            shape = (None, 3, *self.spec.size)
        fits = len(source.shape) == len(shape) and all(
            not isinstance(size, int) or expected is None or size == expected
            for size, expected in zip(source.shape, shape, strict=True)
        )
        self._dtype = _DTYPES.get(source.type)
        if not fits or self._dtype not in dtypes:
            raise other_input(self.spec, f"{source.shape} {source.type}")

    def _infer(self, batch: NDArray[Any]) -> NDArray[Any]:
        return in_pieces(batch, self._sizes, self._run)

    def _run(self, batch: NDArray[Any]) -> NDArray[Any]:
        if self.spec.preprocess is not None:
            batch = preprocess_numpy(batch, self.spec.preprocess).astype(self._dtype, copy=False)
        try:
            results = self._session.run(self._results, {self._source: batch})
        except Exception as error:  # likewise
            raise OutputError(
                f"ONNX Runtime failed while running {self.spec.path}. Expected it to return "
                f"{self.spec.columns} numbers for each image; ONNX Runtime says: {error}"
            ) from error
        if len(results) == 1:
            return np.asarray(results[0])
        return np.concatenate([result.reshape(len(result), -1) for result in results], axis=1)


def preprocess_numpy(images: NDArray[np.uint8], steps: Preprocess) -> NDArray[np.float32]:
    """Return uint8 RGB images (N, H, W, 3) as the float32 input that ``steps`` describes."""
    ordered = images[..., ::-1] if steps.color_order == "BGR" else images
    floats = ordered.astype(np.float32)
    floats /= np.float32(steps.scale)
    floats -= np.asarray(steps.mean, dtype=np.float32)
    floats /= np.asarray(steps.std, dtype=np.float32)
    if steps.layout == "NCHW":
        floats = floats.transpose(0, 3, 1, 2)
    return np.ascontiguousarray(floats)
