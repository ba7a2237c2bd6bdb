"""The cost of an ONNX network, computed without running it: shapes are inferred node by node.

A graph is a program. A few hundred bytes can ask for a loop of 10^12 iterations or a tensor of a
terabyte, and runtimes obey, sometimes while they read the file. So before a runtime sees a file,
every operator must be on the allowed list, which has no loops and no branches, and every result
must stay within the limits. Anything that two runtimes could read differently is refused, including
attributes that an operator's version does not have: a wrongly inferred size limits nothing.

This is done by hand, in this process: a child process would cost a second per load, and no fuzz
test could run thousands of files.

Compiling has a cost too. OpenVINO fuses neighbouring elementwise operations in time that grows with
the square of their number, or the third power where all read one result: 600 additions of the same
tensor take 42 s. Real networks have a convolution or a matrix product after every few of them. For
each use of a size OpenVINO also walks through everything the size is calculated from.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from vinoreward.backends.onnx_graph import MAX_RANK, Graph, Malformed, Node, NotSupported, Value
from vinoreward.backends.onnx_rules import MAX_OPSET, MIN_OPSET, OPERATORS, Call
from vinoreward.errors import ModelRefusedError

MAX_ELEMENTS = 1 << 26
"""Numbers in one result per picture of the batch: 256 MiB of float32."""
MAX_TOTAL = 1 << 31
"""Numbers in all results together, per picture."""
MAX_WORK = 10**12
"""Multiplications and additions per picture; a ViT-H/14 takes a third of it."""
MAX_ROWS = 16
"""The limits grow with the batch up to this many pictures."""
MAX_OPERATIONS = 6000
"""Operations left after constant folding; EfficientNet-B7 has about 1,000."""
MAX_READERS = 128
"""Operations that read one result; DenseNet-264 has 65."""
MAX_CLUSTER = 128
"""Connected operations without a barrier between them; a ViT has about 10."""
MAX_STEPS = 50_000
"""Operations behind all sizes, counted for each use of a size; a Swin-L has about 6,000."""

# Operators that OpenVINO's compiler never fuses away ...
_BARRIERS = frozenset(
    """
    Conv ConvInteger ConvTranspose Einsum Gemm GroupNormalization InstanceNormalization
    LayerNormalization LogSoftmax MatMul MatMulInteger QLinearConv QLinearMatMul RMSNormalization
    Softmax
    """.split()  # noqa: SIM905 - read as words
)
# ... and those that it may drop unless they change the number of elements.
_RESIZING = frozenset(
    """
    ArgMax ArgMin AveragePool Concat DepthToSpace Expand Gather GatherND GlobalAveragePool
    GlobalLpPool GlobalMaxPool LpPool MaxPool Pad ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp
    ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Resize Slice Split Tile TopK
    """.split()  # noqa: SIM905
)


def check_graph(graph: Graph, shape: Sequence[int], batches: Sequence[int]) -> None:
    """Raise Malformed or ModelRefusedError unless every result stays within the limits.

    ``shape`` is one picture's, without the batch; it fills in sizes that the graph leaves open.
    ``batches`` are the batch sizes that will run, unless the graph fixes its own.
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
        values[name] = _bounded(Value(tuple(sizes), kind=graph.kinds[name]), rows, "the input")
    total = work = 0
    cost = CompileCost(list(graph.inputs))
    for node in graph.nodes:
        inputs = [_get(graph, values, name, node) for name in node.inputs]
        # Exporters write empty tensors for these operators. OpenVINO divides by zero for others.
        empty = any(value is not None and not value.size for value in inputs)
        if empty and node.op not in ("Concat", "Resize", "ConstantOfShape"):
            raise Malformed(f"{node.op} takes no numbers")
        call = Call(node, inputs, graph.opset)
        try:
            results = OPERATORS[node.op].rule(call)
        except (ValueError, IndexError, TypeError, ZeroDivisionError, OverflowError) as error:
            if isinstance(error, (Malformed, ModelRefusedError)):
                raise
            raise Malformed(f"{node.op}: {error}") from error
        for name, value in zip(node.outputs, results, strict=False):
            if name in values:
                raise Malformed(f"{node.op} returns {name[:60]!r}, which exists already")
            value.kind = value.kind or (inputs[0].kind if inputs and inputs[0] else 0)
            _bounded(value, rows, f"a result of {node.op}")
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
        check_totals(total, work, rows)


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


def _get(graph: Graph, values: dict[str, Value], name: str, node: Node) -> Value | None:
    if not name:
        return None
    if name not in values:
        if any(name in other.outputs for other in graph.nodes):
            raise NotSupported(
                f"its {node.op} takes {name[:60]!r}, which a later node returns. Expected nodes in "
                "the order of execution, as ONNX demands; sort them, as with topological_sort() of "
                "onnxruntime.transformers.onnx_model.OnnxModel, or export it again"
            )
        raise Malformed(f"{node.op} takes {name[:60]!r}, which no earlier node returns")
    return values[name]


def _bounded(value: Value, rows: int, what: str) -> Value:
    if len(value.shape) > MAX_RANK or min(value.shape, default=0) < 0:
        raise Malformed(f"{what} has the shape {value.shape[: MAX_RANK + 1]}")
    check_elements(value.shape, rows, what)
    if value.known is not None and value.known.shape != value.shape:
        raise Malformed(f"{what} has values of another shape")
    return value


def check_elements(shape: Sequence[int], rows: int, what: str) -> None:
    """Raise ModelRefusedError if one result for ``rows`` pictures has too many elements."""
    if math.prod(shape) > MAX_ELEMENTS * max(1, min(rows, MAX_ROWS)):
        raise ModelRefusedError(
            f"{what} has the shape {'x'.join(map(str, shape))}, more than {MAX_ELEMENTS} "
            "numbers per picture"
        )


def check_totals(elements: int, work: int, rows: int) -> None:
    """Raise ModelRefusedError if all results for ``rows`` pictures take too much memory or work."""
    rows = max(1, min(rows, MAX_ROWS))
    if elements > MAX_TOTAL * rows:
        raise ModelRefusedError(f"its results are more than {MAX_TOTAL} numbers per picture")
    if work > MAX_WORK * rows:
        raise ModelRefusedError(f"it takes more than {MAX_WORK:.0e} operations per picture")


def check_operators(graph: Graph) -> None:
    """Raise ModelRefusedError unless every node is an allowed operator in its version's form."""
    if not MIN_OPSET <= graph.opset <= MAX_OPSET:
        raise NotSupported(
            f"it uses ONNX operator version {graph.opset}. Expected {MIN_OPSET} to {MAX_OPSET}; "
            f"export it with opset ≥{MIN_OPSET}, as in torch.onnx.export(..., opset_version=17), "
            "or convert it with onnx.version_converter.convert_version"
        )
    ops = {node.op for node in graph.nodes}
    unknown = sorted(op for op in ops if op not in OPERATORS or OPERATORS[op].since > graph.opset)
    if unknown:
        shown = ", ".join(repr(name[:40]) for name in unknown[:5])
        raise ModelRefusedError(f"it has the operators {shown}, which are not among those allowed")
    for node in graph.nodes:
        operator, opset = OPERATORS[node.op], graph.opset
        for name in node.attributes:
            if opset not in operator.attributes.get(name, ()):
                raise ModelRefusedError(
                    f"its operator {node.op} has the attribute {name[:40]!r}, which version "
                    f"{opset} does not have"
                )
        most = max(count for count, since in operator.inputs if since <= opset)
        if len(node.inputs) > most:
            raise ModelRefusedError(
                f"its operator {node.op} has {len(node.inputs)} inputs; version {opset} takes "
                f"{most}"
            )


class CompileCost:
    """Estimates what a graph costs to compile; operations are added in their order.

    Each method raises ModelRefusedError when a limit is passed.
    """

    def __init__(self, inputs: Sequence[str]) -> None:
        # Of each result that depends on the picture: the barriers on the way to it.
        self._levels = dict.fromkeys(inputs, 0)
        self._readers: Counter[str] = Counter()
        self._clusters: dict[str, str] = {}  # a union-find forest of results
        self._sizes: Counter[str] = Counter()  # operations by a cluster's root
        self._behind: dict[str, int] = {}  # operations a size is calculated with, as a bit set
        self._steps = 0
        self._operations = 0

    def add(
        self, op: str, sources: Sequence[str], results: Sequence[str], *, resized: bool
    ) -> None:
        """Add an operation that is not constant; names of the file's constants do not count.

        ``resized``: its result has more or fewer elements than its first input.
        """
        self._operations += 1
        if self._operations > MAX_OPERATIONS:
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
        barrier = op in _BARRIERS or (op in _RESIZING and resized)
        if before:
            self._levels.update(dict.fromkeys(results, level + barrier))
        if not barrier:
            here = [name for name in sources if self._levels.get(name, -1) == level]
            self._join(results, [name for name in here if name in self._clusters])

    def add_size(self, sources: Sequence[str], results: Sequence[str]) -> None:
        """Add an operation whose result is a known size; a Shape has no ``sources``."""
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
                f"it has more than {MAX_CLUSTER} connected operations without a convolution or "
                "the like between them"
            )
        self._clusters.update(dict.fromkeys(results, head))
        self._sizes[head] = size

    def _root(self, name: str) -> str:
        while (above := self._clusters[name]) != name:
            # Path halving: the next search is shorter.
            self._clusters[name] = name = self._clusters[above]
        return name
