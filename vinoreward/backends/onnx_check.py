"""What an ONNX network would cost, found without running it: shapes are followed, node by node.

A graph is a program. A few hundred bytes can ask for a loop of 10^12 turns or a tensor of a
terabyte, and the runtimes obey, some of it while they read the file. So before a runtime sees it
each node must be one of the operators known here, none of which loops or branches, and each result
must stay within the limits. What the runtimes may understand in two ways is refused, as a size that
is followed wrongly is no limit. The batch is the one that will run, so every size is a number.

A runtime passes over an attribute that it does not expect, so a file could show one size to a
reader that believes it and another to the runtime. What a version of an operator does not have is
therefore refused.

Compiling costs too, judged by how operations hang together. OpenVINO joins neighbouring elementwise
operations, and the time it takes for that grows with the square of how many there are side by side,
or with the third power where one result is read by all of them: 600 additions of the same tensor
take it 42 s. Real networks have a convolution or a product of matrices after every few of them, and
results that few layers read. For each use of a size it goes through all that the size is calculated
from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from vinoreward.backends.onnx_graph import MAX_RANK, Graph, Malformed, Node, Value
from vinoreward.backends.onnx_rules import RULES
from vinoreward.backends.onnx_shape_rules import Call
from vinoreward.errors import ModelRefusedError

MAX_ELEMENTS = 1 << 26
"""Numbers in one result per picture of the batch: 256 MiB of float32."""
MAX_TOTAL = 1 << 31
"""Numbers in all results together, per picture."""
MAX_WORK = 10**12
"""Multiplications and additions per picture; a ViT-H/14 takes a third of it."""
MAX_ROWS = 16
"""Pictures of a batch for which the limits grow."""
MAX_OPERATIONS = 6000
"""Operations that are left when constants are folded; EfficientNet-B7 has about 1,000."""
MAX_READERS = 128
"""Of one result; DenseNet-264 has 65."""
MAX_CLUSTER = 128
"""Operations that nothing parts which stays when a graph is compiled; a ViT has about 10."""
MAX_STEPS = 50_000
"""Operations behind all sizes, counted for each use of a size; a Swin-L has about 6,000."""

# In ONNX's words and OpenVINO's. These stay what they are, whatever they are given,
_PARTING = frozenset(
    """
    Conv ConvInteger ConvTranspose Convolution ConvolutionBackpropData Einsum Gemm
    GroupConvolution GroupConvolutionBackpropData GroupNormalization InstanceNormalization
    LayerNormalization LogSoftmax MatMul MatMulInteger MVN QLinearConv QLinearMatMul
    RMSNormalization ScaledDotProductAttention SoftMax Softmax
    """.split()  # noqa: SIM905 - read as words
)
# and these if they return more or fewer numbers than they take, else they may be left out.
_RESIZING = frozenset(
    """
    ArgMax ArgMin AveragePool AvgPool Broadcast Concat DepthToSpace Expand Gather GatherND
    GlobalAveragePool GlobalLpPool GlobalMaxPool Interpolate LpPool MaxPool Pad ReduceL1 ReduceL2
    ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
    ReduceSumSquare Resize Slice Split StridedSlice Tile TopK VariadicSplit
    """.split()  # noqa: SIM905
)

MIN_OPSET, MAX_OPSET = 11, 28
"""Versions of the standard operators that are known here."""

# Operators: most inputs, by version where that changes, and attributes. `@18` means since version
# 18, `<13` before 13. This is as ONNX has it. GatherElements and ScatterElements are left out:
# OpenVINO reads and writes wherever their indices point, outside of the tensor too.
_TABLE = """
Abs Acos Acosh Asin Asinh Atan Atanh Ceil Cos Cosh DynamicQuantizeLinear Erf Exp Floor
GlobalAveragePool GlobalMaxPool HardSwish@14 Identity IsNaN Log Mish@18 Neg Not Reciprocal Relu
Round Sigmoid Sign Sin Sinh Size Softplus Softsign Sqrt Tan Tanh: 1;
Add And Div Equal Expand Greater GreaterOrEqual@12 Less LessOrEqual@12 MatMul Mul Or PRelu Pow Sub
Tile Xor: 2;
Max Mean Min Sum: any;
Where: 3;
MatMulInteger: 4;
QLinearMatMul: 8;
ArgMax ArgMin: 1 axis keepdims select_last_index@12;
AveragePool: 1 auto_pad ceil_mode count_include_pad dilations@19 kernel_shape pads strides;
BatchNormalization: 5 epsilon momentum training_mode@14;
Cast: 1 round_mode@24 saturate@19 to;
CastLike@15: 2 round_mode@24 saturate@19;
Celu@12 Elu LeakyRelu Swish@24 ThresholdedRelu: 1 alpha;
Clip: 3;
Concat: any axis;
Constant: 0 value value_float@12 value_floats@12 value_int@12 value_ints@12;
ConstantOfShape: 1 value;
Conv: 3 auto_pad dilations group kernel_shape pads strides;
ConvInteger: 4 auto_pad dilations group kernel_shape pads strides;
ConvTranspose: 3 auto_pad dilations group kernel_shape output_padding output_shape pads strides;
CumSum: 2 exclusive reverse;
DepthToSpace: 1 blocksize mode;
DequantizeLinear: 3 axis@13 block_size@21 output_dtype@23;
Dropout: 1 3@12 ratio<12 seed@12;
Einsum@12: any equation;
Flatten Hardmax LogSoftmax Softmax: 1 axis;
Gather: 2 axis;
GatherND: 2 batch_dims@12;
Gelu@20: 1 approximate;
Gemm: 3 alpha beta transA transB;
GlobalLpPool: 1 p;
GroupNormalization@21: 3 epsilon num_groups stash_type;
HardSigmoid: 1 alpha beta;
InstanceNormalization: 3 epsilon;
IsInf: 1 detect_negative detect_positive;
LRN: 1 alpha beta bias size;
LayerNormalization@17: 3 axis epsilon stash_type;
LpNormalization: 1 axis p;
LpPool: 1 auto_pad ceil_mode@18 dilations@18 kernel_shape p pads strides;
MaxPool: 1 auto_pad ceil_mode dilations kernel_shape pads storage_order strides;
MeanVarianceNormalization: 1 axes;
Mod: 2 fmod;
Pad: 3 4@18 mode;
QLinearConv: 9 auto_pad dilations group kernel_shape pads strides;
QuantizeLinear: 3 axis@13 block_size@21 output_dtype@21 precision@23 saturate@19;
RMSNormalization@23: 2 axis epsilon stash_type;
Range: 3 stash_type@27;
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
ReduceSumSquare: 1 2@18 axes<18 keepdims noop_with_empty_axes@18;
ReduceSum: 1 2@13 axes<13 keepdims noop_with_empty_axes@13;
Reshape: 2 allowzero@14;
Resize: 4 antialias@18 axes@18 coordinate_transformation_mode cubic_coeff_a exclude_outside
extrapolation_value keep_aspect_ratio_policy@18 mode nearest_mode;
ScatterND: 3 reduction@16;
Selu: 1 alpha gamma;
Shape: 1 end@15 start@15;
Slice: 5;
SpaceToDepth: 1 blocksize;
Split: 1 2@13 axis num_outputs@18 split<13;
Squeeze Unsqueeze: 1 2@13 axes<13;
TopK: 2 axis largest sorted;
Transpose: 1 perm;
Trilu@14: 2 upper;
"""


def check_graph(graph: Graph, shape: Sequence[int], batches: Sequence[int]) -> None:
    """Raise unless every result of the graph stays within the limits.

    ``shape`` is one picture's, without the batch, for sizes that the graph leaves open; ``batches``
    are the sizes that will be run, where the graph does not fix its own.

    Raises:
        Malformed: operators whose inputs do not fit.
        ModelRefusedError: an operator that is not known here, or too much memory or work.
    """
    check_operators(graph)
    for batch in batches:
        _follow(graph, shape, batch)


def _follow(graph: Graph, shape: Sequence[int], batch: int) -> None:
    values = dict(graph.constants)
    rows = 1
    for name, declared in graph.inputs.items():
        fill = (batch, *shape)
        sizes = [
            size or (fill[axis] if axis < len(fill) else 1) for axis, size in enumerate(declared)
        ]
        rows = max(rows, sizes[0] if sizes else 1)
        source = Value(tuple(sizes), kind=graph.kinds[name])
        values[name] = _bounded(source, MAX_ELEMENTS * rows, "the input")
    rows = max(1, min(rows, MAX_ROWS))
    total = work = 0
    cost = CompileCost(list(graph.inputs))
    for node in graph.nodes:
        inputs = [_get(values, name, node) for name in node.inputs]
        # Exporters give empty scales to Resize, join empty pads and cut nothing off a shape.
        # OpenVINO divides by such sizes elsewhere.
        empty = any(value is not None and not value.size for value in inputs)
        if empty and node.op not in ("Concat", "Resize", "ConstantOfShape"):
            raise Malformed(f"{node.op} takes no numbers")
        call = Call(node, inputs, graph.opset)
        try:
            results = RULES[node.op](call)
        except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
            if isinstance(error, (Malformed, ModelRefusedError)):
                raise
            raise Malformed(f"{node.op}: {error}") from error
        for name, value in zip(node.outputs, results, strict=False):
            if name in values:
                raise Malformed(f"{node.op} gives {name[:60]!r}, which is there before it")
            value.kind = value.kind or (inputs[0].kind if inputs and inputs[0] else 0)
            _bounded(value, MAX_ELEMENTS * rows, f"a result of {node.op}")
            constant = node.op in ("Constant", "ConstantOfShape", "Slice")
            if not value.size and not (constant and value.known is not None):
                raise Malformed(f"a result of {node.op} has no numbers")
            total += value.size
            if name:
                values[name] = value
        for name in node.outputs[len(results) :]:
            if name:
                raise Malformed(f"{node.op} with {len(node.outputs)} outputs")
        _count(cost, node, values)
        work += call.work + sum(value.size for value in results)
        work += sum(value.size for value in inputs if value is not None)
        if total > MAX_TOTAL * rows:
            raise ModelRefusedError(f"its results are more than {MAX_TOTAL} numbers per picture")
        if work > MAX_WORK * rows:
            raise ModelRefusedError(f"it takes more than {MAX_WORK:.0e} operations per picture")


def _count(cost: CompileCost, node: Node, values: dict[str, Value]) -> None:
    results = [name for name in node.outputs if name]
    if not results or not node.inputs:  # a constant
        return
    if values[results[0]].known is not None:
        cost.add_size(() if node.op in ("Shape", "Size") else node.inputs, results)
        return
    first = values.get(node.inputs[0])
    resized = first is None or values[results[0]].size != first.size
    cost.add(node.op, node.inputs, results, resized=resized)


def _get(values: dict[str, Value], name: str, node: Node) -> Value | None:
    if not name:
        return None
    if name not in values:
        raise Malformed(f"{node.op} takes {name[:60]!r}, which nothing gives before it")
    return values[name]


def _bounded(value: Value, limit: int, what: str) -> Value:
    if len(value.shape) > MAX_RANK or min(value.shape, default=0) < 0:
        raise Malformed(f"{what} has the shape {value.shape[: MAX_RANK + 1]}")
    if value.size > limit:
        raise ModelRefusedError(
            f"{what} has the shape {'x'.join(map(str, value.shape))}, more than {MAX_ELEMENTS} "
            "numbers per picture"
        )
    if value.known is not None and value.known.shape != value.shape:
        raise Malformed(f"{what} with other values than its shape")
    return value


class Operator(NamedTuple):
    """Its first version, most inputs with the version since which, and its attributes' versions."""

    since: int
    inputs: list[tuple[float, int]]
    attributes: dict[str, range]


def _versions(word: str) -> tuple[str, range]:
    word, _, before = word.partition("<")
    name, _, since = word.partition("@")
    return name, range(int(since or MIN_OPSET), int(before or MAX_OPSET + 1))


def _operators() -> dict[str, Operator]:
    found = {}
    for row in _TABLE.split(";"):
        names, _, form = row.partition(":")
        inputs: list[tuple[float, int]] = []
        attributes = {}
        for word in form.split():
            name, versions = _versions(word)
            if name == "any" or name.isdigit():
                inputs.append((math.inf if name == "any" else int(name), versions.start))
            else:
                attributes[name] = versions
        for word in names.split():
            name, versions = _versions(word)
            found[name] = Operator(versions.start, inputs, attributes)
    return found


OPERATORS = _operators()


def check_operators(graph: Graph) -> None:
    """Raise ModelRefusedError unless every node is an allowed operator in its version's form."""
    if not MIN_OPSET <= graph.opset <= MAX_OPSET:
        raise ModelRefusedError(
            f"it is of ONNX's operator version {graph.opset}; known are {MIN_OPSET} to {MAX_OPSET}"
        )
    ops = {node.op for node in graph.nodes}
    unknown = sorted(op for op in ops if op not in OPERATORS or OPERATORS[op].since > graph.opset)
    if unknown:
        names = ", ".join(repr(name[:40]) for name in unknown[:5])
        raise ModelRefusedError(f"it has the operators {names}, which are not among those allowed")
    for node in graph.nodes:
        _check_node(node, graph.opset)


def _check_node(node: Node, opset: int) -> None:
    operator = OPERATORS[node.op]
    for name in node.attributes:
        if opset not in operator.attributes.get(name, ()):
            raise ModelRefusedError(
                f"its operator {node.op} has the attribute {name[:40]!r}, which version {opset} "
                "does not have"
            )
    most = max(count for count, since in operator.inputs if since <= opset)
    if len(node.inputs) > most:
        raise ModelRefusedError(
            f"its operator {node.op} has {len(node.inputs)} inputs; version {opset} takes {most}"
        )


class CompileCost:
    """Takes the operations of a graph in their order and raises when they are too many together."""

    def __init__(self, inputs: Sequence[str]) -> None:
        self._levels = dict.fromkeys(inputs, 0)  # of what depends on the picture
        self._readers: Counter[str] = Counter()
        self._clusters: dict[str, str] = {}  # result to another one of its cluster, at last itself
        self._sizes: Counter[str] = Counter()
        self._behind: dict[str, int] = {}  # what a size is calculated with, a bit for each
        self._steps = 0
        self._left = 0

    def add(
        self, op: str, sources: Sequence[str], results: Sequence[str], *, resized: bool
    ) -> None:
        """Add an operation, in ONNX's words or OpenVINO's, whose results are not constant.

        ``sources`` and ``results`` are names; those of the file's constants do not count.
        ``resized``: it returns more or fewer numbers than its first input has.

        Raises:
            ModelRefusedError: there are too many.
        """
        self._left += 1
        if self._left > MAX_OPERATIONS:
            raise ModelRefusedError(f"it has more than {MAX_OPERATIONS} operations")
        before = [self._levels[name] for name in sources if name in self._levels]
        level = max(before, default=-1)
        self._readers.update(name for name in sources if name in self._levels)
        most = max((self._readers[name] for name in sources), default=0)
        if most > MAX_READERS:
            raise ModelRefusedError(f"more than {MAX_READERS} operations read one result")
        self._steps += sum(self._behind.get(name, 0).bit_count() for name in sources)
        if self._steps > MAX_STEPS:
            raise ModelRefusedError(f"its sizes are calculated in more than {MAX_STEPS} steps")
        parting = op in _PARTING or (op in _RESIZING and resized)
        if before:
            self._levels.update(dict.fromkeys(results, level + parting))
        if not parting:
            here = [name for name in sources if self._levels.get(name, -1) == level]
            self._join(results, [name for name in here if name in self._clusters])

    def add_size(self, sources: Sequence[str], results: Sequence[str]) -> None:
        """Add an operation whose results are known in advance; without sources for a shape."""
        behind = 1 << len(self._behind)
        for name in sources:
            behind |= self._behind.get(name, 0)
        self._behind.update(dict.fromkeys(results, behind))

    def _join(self, results: Sequence[str], sources: Sequence[str]) -> None:
        head = results[0]
        size = 1
        for root in {self._root(name) for name in sources}:
            self._clusters[root] = head
            size += self._sizes.pop(root)
        if size > MAX_CLUSTER:
            raise ModelRefusedError(
                f"it has more than {MAX_CLUSTER} operations side by side without a convolution or "
                "the like between them"
            )
        self._clusters.update(dict.fromkeys(results, head))
        self._sizes[head] = size

    def _root(self, name: str) -> str:
        while (above := self._clusters[name]) != name:
            # Half the way is left for the next search.
            self._clusters[name] = name = self._clusters[above]
        return name
