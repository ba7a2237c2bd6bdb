"""What an OpenVINO IR would cost, found in a process whose memory and time are limited.

Only OpenVINO can tell the shapes in its own format, and it calculates some of them while it reads.
So a child reads the network, sets each batch that will be run and looks at what every operation
returns. A file that makes it grow or run on is refused and harms nobody.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import subprocess
import sys
from collections.abc import Sequence
from typing import Any
from xml.parsers import expat

import numpy as np

from vinoreward.backends.onnx_check import MAX_ELEMENTS, MAX_ROWS, MAX_TOTAL, MAX_WORK, CompileCost
from vinoreward.backends.onnx_graph import Malformed
from vinoreward.backends.runtime import import_openvino
from vinoreward.errors import ModelRefusedError
from vinoreward.processes import python_command

MAX_SECONDS = 20
"""Processor time of the child; it takes about one."""
MAX_BYTES = 4 << 30
"""Memory of the child."""
MAX_KNOWN = 1 << 16
"""Numbers of one result that are calculated here, such as indices."""
MAX_WINDOW = 1 << 12
"""Numbers that LRN looks at for one."""

_SCRIPT = (
    "import json, sys; asked = json.loads(sys.stdin.buffer.readline())\n"
    "from vinoreward.backends.ir_check import answer; answer(asked)"
)
_ALLOWED = frozenset(
    """
    Abs Acos Acosh Add Asin Asinh Atan Atanh AvgPool BatchNormInference Broadcast Ceiling Clamp
    Concat Const Constant Convert ConvertLike Convolution ConvolutionBackpropData Cos Cosh CumSum
    DepthToSpace Divide Einsum Elu Equal Erf Exp FakeConvert FakeQuantize Floor FloorMod Gather
    GatherND Gelu Greater GreaterEqual GroupConvolution GroupConvolutionBackpropData
    GroupNormalization HSigmoid HSwish HardSigmoid Identity Interpolate LRN Less LessEqual Log
    LogSoftmax LogicalAnd LogicalNot LogicalOr LogicalXor MVN MatMul MaxPool Maximum Minimum Mish
    Mod Multiply Negative NormalizeL2 NotEqual OneHot PRelu Pad Parameter Power Range ReLU ReduceL1
    ReduceL2 ReduceLogicalAnd ReduceLogicalOr ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    Relu Reshape Result Round ScaledDotProductAttention ScatterNDUpdate Select Selu ShapeOf
    ShuffleChannels Sigmoid Sign Sin Sinh Slice SoftMax SoftPlus SoftSign Softmax SpaceToDepth Split
    Sqrt SquaredDifference Squeeze StridedSlice Subtract Swish Tan Tanh Tile TopK Transpose
    Unsqueeze VariadicSplit
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
    asked = {"sizes": [len(model), len(weights)], "shape": list(shape), "batches": list(batches)}
    try:
        done = subprocess.run(
            python_command(_SCRIPT),
            input=json.dumps(asked).encode() + b"\n" + model + weights,
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


def answer(asked: dict[str, Any]) -> None:
    """Read a network from the standard input and print what was found, as JSON."""
    with contextlib.suppress(ImportError):  # Windows has no such limits, only the timeout
        import resource

        for kind, most in ((resource.RLIMIT_CPU, MAX_SECONDS), (resource.RLIMIT_DATA, MAX_BYTES)):
            least = min(most, *(limit for limit in resource.getrlimit(kind) if limit >= 0), most)
            resource.setrlimit(kind, (least, least))
    model, weights = (sys.stdin.buffer.read(size) for size in asked["sizes"])
    try:
        _examine(model, weights, asked["shape"], asked["batches"])
    except ModelRefusedError as error:
        print(json.dumps({"refused": str(error)}))
    except (RuntimeError, Malformed, UnicodeDecodeError, MemoryError) as error:
        print(json.dumps({"malformed": f"OpenVINO says {str(error)[-300:]!r}"}))
    else:
        print(json.dumps({}))


def _examine(model: bytes, weights: bytes, shape: list[int], batches: list[int]) -> None:
    _check_kinds(_layers(model))  # before OpenVINO, which calculates some of them while it reads
    openvino = import_openvino()
    network = openvino.Core().read_model(model, weights)
    _check_kinds({operation.get_type_name() for operation in network.get_ops()})
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
        _measure(openvino, network, first[0].get_length() if fixed and len(first) else batch)


def _check_kinds(kinds: set[str]) -> None:
    unknown = ", ".join(repr(kind[:40]) for kind in sorted(kinds - _ALLOWED)[:5])
    if unknown:
        raise ModelRefusedError(
            f"it has the operators {unknown}, which are not among those allowed"
        )


def _layers(model: bytes) -> set[str]:
    """Return the types of all layers that an ``.xml`` names."""
    found: set[str] = set()

    def start(name: str, attributes: dict[str, str]) -> None:
        if name == "layer":
            found.add(attributes.get("type", ""))

    def declared(*_: object) -> None:
        raise Malformed("a document type of its own")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = declared
    try:
        parser.Parse(model, True)
    except expat.ExpatError as error:
        raise Malformed(f"no XML: {error}") from error
    return found


def _measure(openvino: Any, network: Any, rows: int) -> None:
    check_sizes(network, rows)
    work = 0
    cost = CompileCost([source.get_name() for source in network.get_parameters()])
    known = _Known(openvino)
    for operation in network.get_ordered_ops():
        kind = operation.get_type_name()
        size = sum(math.prod(output.get_shape()) for output in operation.outputs())
        if not size and kind not in ("Constant", "Result", "Slice", "StridedSlice"):
            raise ModelRefusedError(f"a result of {kind} has no numbers")
        work += size * _depth(operation, kind)
        _check_numbers(operation, kind, known)
        known.add(operation, kind)
        _count(cost, operation, kind, known=operation in known)
    if work > MAX_WORK * max(1, min(rows, MAX_ROWS)):
        raise ModelRefusedError(f"it takes more than {MAX_WORK:.0e} operations per picture")


def check_sizes(network: Any, rows: int) -> None:
    """Raise ModelRefusedError unless all results of ``rows`` pictures are within the limits."""
    rows = max(1, min(rows, MAX_ROWS))
    total = 0
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
    if total > MAX_TOTAL * rows:
        raise ModelRefusedError(f"its results are more than {MAX_TOTAL} numbers per picture")


def _check_numbers(operation: Any, kind: str, known: _Known) -> None:
    """Raise unless an operation stays within its tensors and ends, whatever the picture is."""
    if kind in ("Divide", "Mod", "FloorMod"):
        if operation.get_output_element_type(0).is_integral():
            numbers = known.input(operation, 1)
            if numbers.size and numbers.min() < 1:
                raise ModelRefusedError(f"its operator {kind} divides whole numbers by less than 1")
    elif kind == "Gather":
        axis = int(known.input(operation, 2).reshape(-1)[0])
        size = operation.get_input_shape(0)[axis]
        _check_places(kind, known.input(operation, 1), -size, size)
    elif kind in ("GatherND", "ScatterNDUpdate"):
        if operation.get_attributes().get("batch_dims", 0):
            raise ModelRefusedError(f"its operator {kind} has batch_dims")
        places, sizes = known.input(operation, 1), operation.get_input_shape(0)
        for axis in range(places.shape[-1]):
            _check_places(kind, places[..., axis], 0, sizes[axis])
    elif kind == "LRN" and not 1 <= operation.get_attributes()["size"] <= MAX_WINDOW:
        raise ModelRefusedError(f"its operator LRN looks at other than 1 to {MAX_WINDOW} numbers")


def _check_places(kind: str, places: Any, least: int, end: int) -> None:
    if places.size and not (places.min() >= least and places.max() < end):
        raise ModelRefusedError(f"its operator {kind} looks outside of {end} numbers")


class _Known:
    """What can be calculated before a network runs: constants, shapes and what follows of them."""

    def __init__(self, openvino: Any) -> None:
        self._openvino = openvino
        self._values: dict[str, list[Any]] = {}

    def __contains__(self, operation: Any) -> bool:
        return operation.get_name() in self._values

    def input(self, operation: Any, place: int) -> Any:
        """Return an input's numbers.

        Raises:
            ModelRefusedError: they depend on the picture, or are too many to be calculated here.
        """
        source = operation.input_value(place)
        if source.get_node() not in self:
            raise ModelRefusedError(
                f"places or divisor of {operation.get_type_name()} depend on what is in the picture"
            )
        return self._values[source.get_node().get_name()][source.get_index()]

    def add(self, operation: Any, kind: str) -> None:
        """Calculate an operation, which was checked, if what it takes is known and small."""
        if kind == "Constant":
            found = [operation.data]
        elif kind == "ShapeOf":
            shape = np.array(list(operation.get_input_shape(0)))
            found = [shape.astype(operation.get_output_element_type(0).to_dtype())]
        else:
            places = range(operation.get_input_size())
            nodes = [operation.input_value(place).get_node() for place in places]
            size = sum(math.prod(output.get_shape()) for output in operation.outputs())
            if not nodes or size > MAX_KNOWN or any(node not in self for node in nodes):
                return
            tensor = self._openvino.Tensor
            takes = [tensor(self.input(operation, place).copy()) for place in places]
            gives = [
                tensor(output.get_element_type(), output.get_shape())
                for output in operation.outputs()
            ]
            if not operation.evaluate(gives, takes):
                return
            found = [np.array(given.data) for given in gives]
        self._values[operation.get_name()] = found


def _count(cost: CompileCost, operation: Any, kind: str, *, known: bool) -> None:
    if kind in ("Parameter", "Constant", "Result"):
        return
    places = range(operation.get_input_size())
    sources = [operation.input_value(place).get_node().get_name() for place in places]
    results = [operation.get_name()]
    if known:
        cost.add_size([] if kind == "ShapeOf" else sources, results)
        return
    before, after = _sizes(operation)
    cost.add(kind, sources, results, resized=before != after)


def _sizes(operation: Any) -> tuple[int, int]:
    """Return how many numbers the first input and the first result have."""
    ends = operation.inputs(), operation.outputs()
    return math.prod(ends[0][0].get_shape()), math.prod(ends[1][0].get_shape())


def _einsum_depth(operation: Any) -> int:
    shapes = [tuple(source.get_shape()) for source in operation.inputs()]
    terms, _, wanted = str(operation.get_attributes()["equation"]).partition("->")
    letters = terms.replace(",", "")
    if len(shapes) > 2 or len(letters) != sum(map(len, shapes)):  # more may be multiplied out
        return math.prod(map(math.prod, shapes))
    sizes = dict(zip(letters, itertools.chain(*shapes), strict=True))
    return math.prod(size for letter, size in sizes.items() if letter not in wanted)


def _depth(operation: Any, kind: str) -> int:
    """Return how many numbers of the inputs go into one of the result, at most."""
    if kind == "Einsum":
        return _einsum_depth(operation)
    if kind == "MatMul":
        return int(2 * max(operation.inputs()[0].get_shape(), default=1))
    if "Convolution" in kind:
        return int(2 * math.prod(operation.inputs()[1].get_shape()[1:]))
    if kind.startswith("Reduce"):
        before, after = _sizes(operation)
        return int(before // max(1, after))
    if "Pool" in kind:
        return int(math.prod(operation.get_attributes().get("kernel", [1])))
    return 1
