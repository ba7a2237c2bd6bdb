"""ONNX as INT8 with NNCF.

An INT8 network is an ONNX file with QuantizeLinear and DequantizeLinear nodes. OpenVINO and ONNX
Runtime run it fast, so one file serves both. The preprocessing stays in floats, so the file still
takes uint8 images. So does the last convolution, whose rounding errors would be those of the
logits: on a SqueezeNet 1.1 this reduces the error of the log-odds by 4 % at the same speed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.convert import quiet
from vinoreward.backends.network import Preprocess, read_bytes
from vinoreward.backends.onnxruntime import preprocess_numpy
from vinoreward.backends.runtime import import_silently
from vinoreward.errors import InputError, QuantizationRefusedError, needed_for
from vinoreward.files import atomic_path

MAX_CALIBRATION_FRAMES = 300


def quantize_onnx(
    model: Path,
    out: Path,
    frames: NDArray[np.uint8],
    *,
    exact_bias: bool = False,
    preprocess: Preprocess | None = None,
) -> None:
    """Quantize ``model`` into ``out``; deterministic for the same file and frames.

    Args:
        model: FP32 ``.onnx`` file of a bundle that was checked. Its one input is uint8
            ``(N, H, W, 3)``, or what ``preprocess`` makes of that.
        out: the ``.onnx`` file to write, atomically.
        frames: calibration images ``(N, H, W, 3)`` uint8; the first 300 are used.
        exact_bias: correct each layer's bias by running the network quantized so far, instead of
            estimating the shift per layer. Slower to quantize, equally fast to run; for encoders.
        preprocess: how images become the input of a network that takes floats.

    Raises:
        InputError: the frames are not images of the network's size.
        QuantizationRefusedError: NNCF cannot quantize this network.
    """

    def prepared(frame: NDArray[np.uint8]) -> NDArray[Any]:
        return frame if preprocess is None else preprocess_numpy(frame, preprocess)

    shape = prepared(frames[:1]).shape
    with needed_for("quantizing", "train"):
        nncf: Any = import_silently("nncf")
        import onnx
    network = onnx.load_model_from_string(read_bytes(model, None))
    source = network.graph.input[0]
    in_floats = nncf.IgnoredScope(names=_left_in_floats(network), validate=False)
    sizes = [axis.dim_value for axis in source.type.tensor_type.shape.dim]  # 0 where it is open
    if len(sizes) != 4 or any(size not in (0, shape[at]) for at, size in enumerate(sizes) if at):
        raise InputError(
            f"the calibration frames have shape {frames.shape}, {shape[1:]} for the network. "
            f"Expected images of its size, {tuple(sizes[1:])}; prepare them as the bundle does."
        )
    calibration = nncf.Dataset(
        [frames[index : index + 1] for index in range(min(len(frames), MAX_CALIBRATION_FRAMES))],
        lambda frame: {source.name: np.repeat(prepared(frame), max(1, sizes[0]), axis=0)},
    )
    # The second warns of a missing GPU, which is not used.
    with quiet("nncf", "torch.utils.cpp_extension"):
        try:
            quantized: Any = nncf.quantize(
                network,
                calibration,
                preset=nncf.QuantizationPreset.PERFORMANCE,
                subset_size=MAX_CALIBRATION_FRAMES,
                fast_bias_correction=not exact_bias,
                ignored_scope=in_floats,
            )
        except Exception as error:  # NNCF's errors have no base class
            raise QuantizationRefusedError(
                f"NNCF cannot quantize {model.name}: {str(error)[:300]}. Expected a graph of usual "
                "layers; it stays FP32. Export it again with a newer operator set (opset 17, say)."
            ) from error
    with atomic_path(out) as part:
        onnx.save(quantized, str(part))


def _left_in_floats(network: Any) -> list[str]:
    """Return the nodes before the first convolution, and those from the last one on."""
    nodes = list(network.graph.node)
    convolutions = [index for index, node in enumerate(nodes) if node.op_type == "Conv"]
    if len(convolutions) < 2:
        return []
    outer = nodes[: convolutions[0]] + nodes[convolutions[-1] :]
    return [node.name for node in outer if node.name]
