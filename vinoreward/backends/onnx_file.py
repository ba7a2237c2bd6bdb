"""What operators an ONNX file holds, without running or converting it.

ONNX files are protobuf messages, and an install without extras has no library that only reads
them. This walks the few messages that matter. What it does not know it passes over: the runtimes
read the file themselves, in a process with limits first, see :mod:`vinoreward.backends.probe`.
"""

from __future__ import annotations

from collections.abc import Iterator

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
that OpenVINO runs without checking its indices (``GatherElements``, ``ScatterElements``)."""
MAX_NODES = 20_000

_PARTS = {
    "model": {7: "graph", 14: "metadata"},
    "graph": {1: "node", 5: "tensor", 11: "value", 12: "value"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 10: "tensor"},
}
"""Messages in messages, by the number of their field."""
_NAMES = {"graph": (2,), "node": (1, 2, 3, 4, 7), "tensor": (8,), "value": (1,), "metadata": (1, 2)}
"""Fields with text. Python's bindings of the runtimes fail on names that are not UTF-8."""
_OPERATOR, _DOMAIN = 4, 7
_REFUSED = {
    ("model", 20): "it holds training graphs",
    ("model", 25): "it holds functions of its own",
    ("graph", 15): "it holds sparse tensors",
    ("attribute", 6): "one of its operators holds a graph of its own",
    ("attribute", 11): "one of its operators holds a graph of its own",
    ("attribute", 22): "it holds sparse tensors",
    ("attribute", 23): "it holds sparse tensors",
    ("tensor", 13): "it keeps weights in other files (external data). Expected one file; export it "
    "with its weights inside the file: torch.onnx.export(..., external_data=False), or "
    "onnx.save(onnx.load(path), other_path)",
}

_Field = tuple[int, int | memoryview]


class NotOnnx(ValueError):
    """The bytes are no ONNX file that can be read."""


def check_operators(data: bytes) -> None:
    """Check that an ONNX file is one graph of known operators with all weights inside.

    Where a field stands twice, all of them are checked: some readers take the last, some merge.

    Raises:
        NotOnnx: it is not an ONNX file.
        ModelRefusedError: other operators, graphs in operators, functions, or data in other files.
    """
    _check(memoryview(data), "model")


def _check(message: memoryview, kind: str) -> None:
    parts, nodes = _PARTS.get(kind, {}), 0
    for number, value in _fields(message):
        if reason := _REFUSED.get((kind, number)):
            raise ModelRefusedError(reason)
        if isinstance(value, int):
            continue
        if number in _NAMES.get(kind, ()):
            _check_text(value)
        if number in parts:
            nodes += parts[number] == "node"
            if nodes > MAX_NODES:
                raise ModelRefusedError(f"it has more than {MAX_NODES} operations")
            _check(value, parts[number])
        elif kind == "node" and number == _OPERATOR and (name := _text(value)) not in OPERATORS:
            raise ModelRefusedError(f"it has the operator {name[:60]!r}, which is not a known one")
        elif kind == "node" and number == _DOMAIN and _text(value) not in ("", "ai.onnx"):
            raise ModelRefusedError(f"it has operators of the domain {_text(value)[:60]!r}")


def _check_text(value: memoryview) -> None:
    try:
        bytes(value).decode("utf-8")
    except UnicodeDecodeError as error:
        raise NotOnnx("a name that is not UTF-8") from error


def _fields(data: memoryview) -> Iterator[_Field]:
    """Yield number and value of each field of a message: an int, or a view of the bytes."""
    place = 0
    while place < len(data):
        tag, place = _number(data, place)
        number, kind = (tag & (1 << 32) - 1) >> 3, tag & 7  # as protobuf's own readers take it
        if kind == 0:
            value, place = _number(data, place)
            yield number, value
            continue
        if kind == 2:
            size, place = _number(data, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise NotOnnx(f"a field of wire type {kind}")
        if place + size > len(data):
            raise NotOnnx("a field is longer than its message")
        yield number, data[place : place + size]
        place += size


def _text(value: int | memoryview) -> str:
    return "" if isinstance(value, int) else bytes(value).decode("utf-8", "replace")


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
