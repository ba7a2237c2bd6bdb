"""What an ONNX network would cost, found without running it: shapes are followed, node by node.

A graph is a program. A few hundred bytes can ask for a loop of 10^12 turns or a tensor of a
terabyte, and the runtimes obey, some of it while they read the file. So before a runtime sees it
each node must be one of the operators known here, none of which loops or branches, and each result
must stay within the limits. What the runtimes may understand in two ways is refused, as a size that
is followed wrongly is no limit. The batch is the one that will run, so every size is a number.
"""

from __future__ import annotations

from collections.abc import Sequence

from vinoreward.backends.compile_cost import CompileCost
from vinoreward.backends.onnx_graph import MAX_RANK, Graph, Malformed, Node
from vinoreward.backends.onnx_operators import check_operators
from vinoreward.backends.onnx_rules import RULES
from vinoreward.backends.onnx_values import Call, Value
from vinoreward.errors import ModelRefusedError

MAX_ELEMENTS = 1 << 26
"""Numbers in one result per picture of the batch: 256 MiB of float32."""
MAX_TOTAL = 1 << 31
"""Numbers in all results together, per picture."""
MAX_WORK = 10**12
"""Multiplications and additions per picture; a ViT-H/14 takes a third of it."""
MAX_ROWS = 16
"""Pictures of a batch for which the limits grow."""


def check_graph(graph: Graph, shape: Sequence[int], batches: Sequence[int]) -> None:
    """Raise unless every result of the graph stays within the limits.

    Args:
        graph: as read.
        shape: of one picture, without the batch, as the graph takes it. Used for the sizes that
            the graph leaves open.
        batches: sizes of batches that will be run; a graph with a fixed batch has its own.

    Raises:
        Malformed: operators whose inputs do not fit.
        ModelRefusedError: an operator that is not known here, or too much memory or work.
    """
    check_operators(graph)
    for batch in batches:
        _follow(graph, shape, batch)


def _follow(graph: Graph, shape: Sequence[int], batch: int) -> None:
    values: dict[str, Value] = {
        name: Value(constant.shape, constant.values, constant.kind, constant.limits)
        for name, constant in graph.constants.items()
    }
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
