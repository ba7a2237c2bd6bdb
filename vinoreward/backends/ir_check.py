"""What an OpenVINO IR would cost, found in a process whose memory and time are limited.

Only OpenVINO can tell the shapes in its own format, and it calculates some of them while it reads.
So a child reads the network, sets each batch that will be run and looks at what every operation
returns. A file that makes it grow or run on is refused and harms nobody.
"""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from vinoreward.backends.onnx_check import MAX_ELEMENTS, MAX_ROWS, MAX_TOTAL, MAX_WORK
from vinoreward.backends.onnx_graph import Malformed
from vinoreward.backends.telemetry import import_openvino
from vinoreward.child_python import python_command
from vinoreward.errors import ModelRefusedError

MAX_SECONDS = 20
"""Processor time of the child; it takes about one."""
MAX_BYTES = 4 << 30
"""Memory of the child."""

_SCRIPT = (
    "import json, sys; told = json.loads(sys.stdin.buffer.readline())\n"
    "from vinoreward.backends.ir_check import answer; answer(told)"
)
_ALLOWED = frozenset(
    """
    Abs Acos Acosh Add Asin Asinh Atan Atanh AvgPool BatchNormInference Broadcast Ceiling Clamp
    Concat Const Constant Convert ConvertLike Convolution ConvolutionBackpropData Cos Cosh CumSum
    DepthToSpace Divide Einsum Elu Equal Erf Exp FakeConvert FakeQuantize Floor FloorMod Gather
    GatherElements GatherND Gelu Greater GreaterEqual GroupConvolution GroupConvolutionBackpropData
    GroupNormalization HSigmoid HSwish HardSigmoid Identity Interpolate LRN Less LessEqual Log
    LogSoftmax LogicalAnd LogicalNot LogicalOr LogicalXor MVN MatMul MaxPool Maximum Minimum Mish
    Mod Multiply Negative NormalizeL2 NotEqual OneHot PRelu Pad Parameter Power Range ReLU ReduceL1
    ReduceL2 ReduceLogicalAnd ReduceLogicalOr ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    Relu Reshape Result Round ScaledDotProductAttention
    ScatterElementsUpdate ScatterNDUpdate ScatterUpdate Select Selu ShapeOf ShuffleChannels Sigmoid
    Sign Sin Sinh Slice SoftMax SoftPlus SoftSign Softmax SpaceToDepth Split Sqrt SquaredDifference
    Squeeze StridedSlice Subtract Swish Tan Tanh Tile TopK Transpose Unsqueeze VariadicSplit
    """.split()  # noqa: SIM905 - read as words
)


def check_ir(model: bytes, weights: bytes, shape: Sequence[int], batches: Sequence[int]) -> None:
    """Raise unless every result of the network stays within the limits.

    Args:
        model: the ``.xml``.
        weights: the ``.bin``.
        shape: of one input without the batch.
        batches: sizes of batches that will be run; a network with a fixed batch has its own.

    Raises:
        Malformed: OpenVINO cannot read it.
        ModelRefusedError: an operation that is not allowed, or too much memory or work.
    """
    told = {
        "sizes": [len(model), len(weights)],
        "shape": list(shape),
        "batches": list(batches),
    }
    try:
        done = subprocess.run(
            python_command(_SCRIPT),
            input=json.dumps(told).encode() + b"\n" + model + weights,
            capture_output=True,
            timeout=30 * MAX_SECONDS,
        )
        found = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise ModelRefusedError(
            f"reading it takes more than {MAX_SECONDS} s or {MAX_BYTES >> 30} GiB, or ends the "
            "process that reads it"
        ) from error
    if "refused" in found:
        raise ModelRefusedError(found["refused"])
    if "malformed" in found:
        raise Malformed(found["malformed"])


def answer(told: dict[str, Any]) -> None:
    """Read a network from the standard input and print what was found, as JSON."""
    with contextlib.suppress(ImportError):  # Windows has no such limits, only the timeout
        import resource

        for kind, most in ((resource.RLIMIT_CPU, MAX_SECONDS), (resource.RLIMIT_DATA, MAX_BYTES)):
            least = min(most, *(limit for limit in resource.getrlimit(kind) if limit >= 0), most)
            resource.setrlimit(kind, (least, least))
    model, weights = (sys.stdin.buffer.read(size) for size in told["sizes"])
    try:
        _examine(model, weights, told["shape"], told["batches"])
    except ModelRefusedError as error:
        print(json.dumps({"refused": str(error)}))
    except (RuntimeError, Malformed, UnicodeDecodeError, MemoryError) as error:
        print(json.dumps({"malformed": f"OpenVINO says {str(error)[-300:]!r}"}))
    else:
        print(json.dumps({}))


def _examine(model: bytes, weights: bytes, shape: list[int], batches: list[int]) -> None:

    network = import_openvino().Core().read_model(model, weights)
    kinds = {operation.get_type_name() for operation in network.get_ops()}
    unknown = ", ".join(repr(kind[:40]) for kind in sorted(kinds - _ALLOWED)[:5])
    if unknown:
        raise ModelRefusedError(
            f"it has the operators {unknown}, which are not among those allowed"
        )
    first = network.input(0).partial_shape
    if first.rank.is_dynamic:
        raise Malformed("an input of unknown rank")
    fixed = first[0].is_static if len(first) else True
    for batch in [1] if fixed else batches:
        fill = [batch, *shape]
        for source in network.inputs:
            sizes = [
                size.get_length() if size.is_static else fill[axis] if axis < len(fill) else 1
                for axis, size in enumerate(source.partial_shape)
            ]
            network.reshape({source: sizes})
        _measure(network, first[0].get_length() if fixed and len(first) else batch)


def _measure(network: Any, rows: int) -> None:
    rows = max(1, min(rows, MAX_ROWS))
    total = work = 0
    for operation in network.get_ops():
        kind = operation.get_type_name()
        for output in operation.outputs():
            if output.partial_shape.is_dynamic:
                raise ModelRefusedError(
                    f"the size of a result of {kind} depends on what is in the picture"
                )
            size = math.prod(output.shape)
            if size > MAX_ELEMENTS * rows:
                raise ModelRefusedError(
                    f"a result of {kind} has the shape {'x'.join(map(str, output.shape))}, more "
                    f"than {MAX_ELEMENTS} numbers per picture"
                )
            total += size
            work += size * _depth(operation, kind)
    if total > MAX_TOTAL * rows or work > MAX_WORK * rows:
        raise ModelRefusedError(
            f"it takes more than {MAX_TOTAL} numbers or {MAX_WORK:.0e} operations per picture"
        )


def _depth(operation: Any, kind: str) -> int:
    """Return how many numbers of the inputs go into one of the result, at most."""
    if kind == "Einsum":
        return math.prod(math.prod(source.get_shape()) for source in operation.inputs())
    if kind == "MatMul":
        return int(2 * max(operation.inputs()[0].get_shape(), default=1))
    if "Convolution" in kind:
        return int(2 * math.prod(operation.inputs()[1].get_shape()[1:]))
    if kind.startswith("Reduce"):
        return int(math.prod(operation.inputs()[0].get_shape()))
    if "Pool" in kind:
        return int(math.prod(operation.get_attributes().get("kernel", [1])))
    return 1
