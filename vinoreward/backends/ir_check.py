"""The cost of an OpenVINO IR, measured in a process whose memory and time are limited.

Only OpenVINO knows the shapes in its own format, and it calculates some of them while it reads. So
a child process reads the network, sets each batch size that will run and checks the result of every
operation. A file that exceeds the limits is refused and harms nobody. ONNX files, which are far
more frequent, are checked without a process, see :mod:`vinoreward.backends.onnx_check`.
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

from vinoreward.backends.onnx_check import (
    CompileCost,
    check_elements,
    check_totals,
    refuse_operators,
)
from vinoreward.backends.onnx_graph import Malformed
from vinoreward.backends.runtime import import_openvino
from vinoreward.errors import ModelRefusedError
from vinoreward.processes import python_command

MAX_SECONDS = 20
"""Processor time of the child; about one is usual."""
MAX_BYTES = 4 << 30
"""Memory of the child."""
MAX_KNOWN = 1 << 16
"""Elements of a result that is calculated here, such as indices."""
MAX_WINDOW = 1 << 12
"""Elements that LRN reads for one."""

_SCRIPT = (
    "import json, sys; request = json.loads(sys.stdin.buffer.readline())\n"
    "from vinoreward.backends.ir_check import answer; answer(request)"
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
    """Raise Malformed or ModelRefusedError unless every result stays within the limits.

    ``model`` is the ``.xml``, ``weights`` the ``.bin``; ``shape`` and ``batches`` are as
    :func:`~vinoreward.backends.onnx_check.check_graph` has them.
    """
    request = {"sizes": [len(model), len(weights)], "shape": list(shape), "batches": list(batches)}
    try:
        done = subprocess.run(
            python_command(_SCRIPT),
            input=json.dumps(request).encode() + b"\n" + model + weights,
            capture_output=True,
            timeout=30 * MAX_SECONDS,
        )
        verdict = json.loads(done.stdout.splitlines()[-1])
    except (subprocess.TimeoutExpired, ValueError, IndexError) as error:
        raise ModelRefusedError(
            f"reading it takes more than {MAX_SECONDS} s or {MAX_BYTES >> 30} GiB, or ends the "
            "process that reads it"
        ) from error
    if "refused" in verdict:
        raise ModelRefusedError(verdict["refused"])
    if "malformed" in verdict:
        raise Malformed(verdict["malformed"])


def answer(request: dict[str, Any]) -> None:
    """Check a network from the standard input and print the verdict as JSON."""
    with contextlib.suppress(ImportError):  # Windows has no such limits, only the timeout
        import resource

        for kind, most in ((resource.RLIMIT_CPU, MAX_SECONDS), (resource.RLIMIT_DATA, MAX_BYTES)):
            least = min(most, *(limit for limit in resource.getrlimit(kind) if limit >= 0), most)
            resource.setrlimit(kind, (least, least))
    model, weights = (sys.stdin.buffer.read(size) for size in request["sizes"])
    try:
        _examine(model, weights, request["shape"], request["batches"])
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
    if kinds - _ALLOWED:
        refuse_operators(sorted(kinds - _ALLOWED))


def _layers(model: bytes) -> set[str]:
    """Return the types of all layers that an ``.xml`` names."""
    kinds: set[str] = set()

    def start(name: str, attributes: dict[str, str]) -> None:
        if name == "layer":
            kinds.add(attributes.get("type", ""))

    def declared(*_: object) -> None:
        raise Malformed("a document type of its own")

    parser = expat.ParserCreate()
    parser.StartElementHandler = start
    parser.StartDoctypeDeclHandler = declared
    try:
        parser.Parse(model, True)
    except expat.ExpatError as error:
        raise Malformed(f"no XML: {error}") from error
    return kinds


def _measure(openvino: Any, network: Any, rows: int) -> None:
    check_sizes(network, rows)
    work = 0
    cost = CompileCost([source.get_name() for source in network.get_parameters()])
    known = _Known(openvino)
    for operation in network.get_ordered_ops():
        kind = operation.get_type_name()
        size = sum(math.prod(sides(output.get_shape())) for output in operation.outputs())
        if not size and kind not in ("Constant", "Result", "Slice", "StridedSlice"):
            raise ModelRefusedError(f"a result of {kind} has no numbers")
        work += size * _depth(operation, kind)
        _check_numbers(operation, kind, known)
        known.add(operation, kind)
        _count(cost, operation, kind, known=operation in known)
    check_totals(0, work, rows)


def check_sizes(network: Any, rows: int) -> None:
    """Raise ModelRefusedError unless all results for ``rows`` pictures are within the limits."""
    total = 0
    for operation in network.get_ops():
        kind = operation.get_type_name()
        for output in operation.outputs():
            if output.partial_shape.is_dynamic:
                raise ModelRefusedError(
                    f"the size of a result of {kind} depends on what is in the picture"
                )
            shape = sides(output.shape)
            check_elements(shape, rows, f"a result of {kind}")
            total += math.prod(shape)
    check_totals(total, 0, rows)


def sides(shape: Any) -> list[int]:
    """Return the numbers of OpenVINO's shape.

    To iterate over it costs twenty times as much: it ends with an exception in C++.
    """
    return [shape[i] for i in range(len(shape))]


def _check_numbers(operation: Any, kind: str, known: _Known) -> None:
    """Raise if an operation could read outside its tensors or divide by zero on some picture."""
    if kind in ("Divide", "Mod", "FloorMod"):
        if operation.get_output_element_type(0).is_integral():
            numbers = known.input(operation, 1)
            if numbers.size and numbers.min() < 1:
                raise ModelRefusedError(f"its operator {kind} divides integers by less than 1")
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
        raise ModelRefusedError(f"its operator LRN has no size from 1 to {MAX_WINDOW}")


def _check_places(kind: str, places: Any, least: int, end: int) -> None:
    if places.size and not (places.min() >= least and places.max() < end):
        raise ModelRefusedError(f"its operator {kind} reads outside of {end} elements")


class _Known:
    """Results known before a network runs: constants, shapes, and what is calculated from them."""

    def __init__(self, openvino: Any) -> None:
        self._openvino = openvino
        self._values: dict[str, list[Any]] = {}

    def __contains__(self, operation: Any) -> bool:
        return operation.get_name() in self._values

    def input(self, operation: Any, place: int) -> Any:
        """Return an input's array; ModelRefusedError if it is not known, or is too large."""
        source = operation.input_value(place)
        if source.get_node() not in self:
            raise ModelRefusedError(
                f"indices or divisor of {operation.get_type_name()} depend on what is in the "
                "picture"
            )
        return self._values[source.get_node().get_name()][source.get_index()]

    def add(self, operation: Any, kind: str) -> None:
        """Calculate an operation that was checked, if its inputs are known and it is small."""
        if kind == "Constant":
            arrays = [operation.data]
        elif kind == "ShapeOf":
            shape = np.array(list(operation.get_input_shape(0)))
            arrays = [shape.astype(operation.get_output_element_type(0).to_dtype())]
        else:
            places = range(operation.get_input_size())
            nodes = [operation.input_value(place).get_node() for place in places]
            size = sum(math.prod(sides(output.get_shape())) for output in operation.outputs())
            if not nodes or size > MAX_KNOWN or any(node not in self for node in nodes):
                return
            tensor = self._openvino.Tensor
            inputs = [tensor(self.input(operation, place).copy()) for place in places]
            outputs = [
                tensor(output.get_element_type(), output.get_shape())
                for output in operation.outputs()
            ]
            if not operation.evaluate(outputs, inputs):
                return
            arrays = [np.array(output.data) for output in outputs]
        self._values[operation.get_name()] = arrays


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
    """Return the number of elements of the first input and the first result."""
    ends = operation.input(0), operation.output(0)
    return math.prod(ends[0].get_shape()), math.prod(ends[1].get_shape())


def _einsum_depth(operation: Any) -> int:
    shapes = [tuple(source.get_shape()) for source in operation.inputs()]
    terms, _, wanted = str(operation.get_attributes()["equation"]).partition("->")
    letters = terms.replace(",", "")
    if len(shapes) > 2 or len(letters) != sum(map(len, shapes)):  # runtimes may expand those
        return math.prod(map(math.prod, shapes))
    sizes = dict(zip(letters, itertools.chain(*shapes), strict=True))
    return math.prod(size for letter, size in sizes.items() if letter not in wanted)


def _depth(operation: Any, kind: str) -> int:
    """Return at most how many input elements go into one element of the result."""
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
