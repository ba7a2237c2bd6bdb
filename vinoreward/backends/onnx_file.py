"""What an ONNX file holds, without running or converting it: its operators and its metadata.

ONNX files are protobuf messages, and an install without extras has no library that only reads
them. This walks the few messages that matter. What it does not know it passes over: the runtimes
read the file themselves, in a process with limits first, see :mod:`vinoreward.backends.probe`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from vinoreward.errors import ModelRefusedError

OPERATORS = frozenset(
    """
    Abs Acos Acosh Add And ArgMax ArgMin Asin Asinh Atan Atanh AveragePool BatchNormalization Cast
    CastLike Ceil Celu Clip Concat Constant ConstantOfShape Conv ConvInteger ConvTranspose Cos Cosh
    CumSum DepthToSpace DequantizeLinear Div Dropout DynamicQuantizeLinear Einsum Elu Equal Erf Exp
    Expand Flatten Floor Gather GatherND Gelu Gemm GlobalAveragePool GlobalLpPool GlobalMaxPool
    Greater GreaterOrEqual GroupNormalization HardSigmoid HardSwish Hardmax Identity
    InstanceNormalization IsInf IsNaN LRN LayerNormalization LeakyRelu Less LessOrEqual Log
    LogSoftmax LpNormalization LpPool MatMul MatMulInteger Max MaxPool Mean
    MeanVarianceNormalization Min Mish Mod Mul Neg Not Or PRelu Pad Pow QLinearConv QLinearMatMul
    QuantizeLinear RMSNormalization Range Reciprocal ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Relu Reshape Resize Round
    ScatterND Selu Shape Sigmoid Sign Sin Sinh Size Slice Softmax Softplus Softsign SpaceToDepth
    Split Sqrt Squeeze Sub Sum Swish Tan Tanh ThresholdedRelu Tile TopK Transpose Trilu Unsqueeze
    Where Xor
    """.split()  # noqa: SIM905 - read as words
)
"""No loops, no branches, nothing random, no results whose size depends on the image, and nothing
that OpenVINO runs without a look at its indices (``GatherElements``, ``ScatterElements``)."""
MAX_NODES = 20_000

_NAMES = {"graph": (2,), "node": (1, 2, 3, 4, 7), "tensor": (8,), "value": (1,)}
"""Fields with text. Python's bindings of the runtimes fail on names that are not UTF-8."""
_VARINT, _BYTES = 0, 2
_FIXED = {1: 8, 5: 4}
_Field = tuple[int, int, Any]


class NotOnnx(ValueError):
    """The bytes are no ONNX file that can be read."""


def check_operators(data: bytes) -> None:
    """Check that an ONNX file is one graph of known operators with all weights inside.

    Where a field stands twice, all of them are looked at: some readers take the last, some merge.

    Raises:
        NotOnnx: it is not an ONNX file.
        ModelRefusedError: other operators, graphs in operators, functions, or data in other files.
    """
    if data[4:8] == b"ORTM":
        raise NotOnnx("it begins as a file of ONNX Runtime's own format")
    graphs = 0
    for number, kind, value in _fields(memoryview(data)):
        if number in (20, 25):
            raise ModelRefusedError("it holds functions or training graphs of its own")
        if number == 7 and kind == _BYTES:
            graphs += 1
            _check_graph(value)
    if not graphs:
        raise NotOnnx("it has no graph")


def read_metadata(data: bytes) -> dict[str, str]:
    """Return the ``metadata_props`` of an ONNX file; none if it is not one."""
    metadata: dict[str, str] = {}
    with contextlib.suppress(NotOnnx):
        for number, kind, value in _fields(memoryview(data)):
            if number == 14 and kind == _BYTES:
                pair = {part: bytes(text) for part, wire, text in _fields(value) if wire == _BYTES}
                key, text = (pair.get(part, b"").decode("utf-8", "replace") for part in (1, 2))
                metadata[key] = text
    return metadata


def _check_graph(graph: memoryview) -> None:
    nodes = 0
    for number, kind, value in _fields(graph, "graph"):
        if number == 15:
            raise ModelRefusedError("it holds sparse tensors")
        if kind != _BYTES:
            continue
        if number == 1:
            nodes += 1
            if nodes > MAX_NODES:
                raise ModelRefusedError(f"it has more than {MAX_NODES} operations")
            _check_node(value)
        elif number == 5:
            _check_tensor(value)
        elif number in (11, 12):
            for _ in _fields(value, "value"):
                pass


def _check_node(node: memoryview) -> None:
    for number, kind, value in _fields(node, "node"):
        if kind != _BYTES:
            continue
        if number == 4 and (op := _text(value)) not in OPERATORS:
            raise ModelRefusedError(f"it has the operator {op[:60]!r}, which is not a known one")
        if number == 7 and (domain := _text(value)) not in ("", "ai.onnx"):
            raise ModelRefusedError(f"it has operators of the domain {domain[:60]!r}")
        if number == 5:
            _check_attribute(value)


def _check_attribute(attribute: memoryview) -> None:
    for number, kind, value in _fields(attribute):
        if number in (6, 11):
            raise ModelRefusedError("one of its operators holds a graph of its own")
        if number in (22, 23):
            raise ModelRefusedError("it holds sparse tensors")
        if number in (5, 10) and kind == _BYTES:
            _check_tensor(value)


def _check_tensor(tensor: memoryview) -> None:
    for number, _, value in _fields(tensor, "tensor"):
        if number == 13 or (number == 14 and value != 0):
            raise ModelRefusedError(
                "it keeps weights in other files (external data). Expected one file; export it "
                "with its weights inside the file: torch.onnx.export(..., external_data=False), or "
                "onnx.save(onnx.load(path), other_path)"
            )


def _fields(data: memoryview, message: str = "") -> Iterator[_Field]:
    """Yield ``(number, wire type, value)`` of a message: an int, or a view of the bytes."""
    names = _NAMES.get(message, ())
    place, end = 0, len(data)
    while place < end:
        tag, place = _number(data, place)
        tag &= (1 << 32) - 1  # as protobuf's own readers take it
        kind = tag & 7
        if kind == _VARINT:
            value, place = _number(data, place)
            yield tag >> 3, kind, value
            continue
        if kind == _BYTES:
            size, place = _number(data, place)
        elif kind in _FIXED:
            size = _FIXED[kind]
        else:
            raise NotOnnx(f"a field of wire type {kind}")
        if place + size > end:
            raise NotOnnx("a field is longer than its message")
        content = data[place : place + size]
        if tag >> 3 in names:
            _text(content)
        yield tag >> 3, kind, content
        place += size


def _text(data: memoryview) -> str:
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotOnnx("a name that is not UTF-8") from error


def _number(data: memoryview, place: int) -> tuple[int, int]:
    """Return the protobuf number at ``place`` and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        if place >= len(data):
            break
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        if byte < 0x80:
            return value, place
    raise NotOnnx("a number that does not end")
