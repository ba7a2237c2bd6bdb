"""The shape that each allowed ONNX operator returns, given the shapes of what it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vinoreward.backends.onnx_graph import MAX_RANK, SMALL, Malformed, Value
from vinoreward.backends.onnx_shape_rules import (
    BOOL,
    FLOATS,
    INT32,
    INT64,
    SHAPE_RULES,
    UINT8,
    Call,
    Rule,
    broadcast,
    check_parameters,
    exact,
    fitted,
    passed,
    place_of,
)
from vinoreward.errors import ModelRefusedError

MAX_SIDE = 1 << 26
"""Positions along one axis, padding included."""
MAX_PATCHES = 1 << 29
"""Numbers that a convolution may copy for its windows, where a kernel copies them all."""


# --- elementwise -------------------------------------------------------------------------------


def _same(call: Call) -> list[Value]:
    if "axis" in call.node.attributes:
        place_of(call.integer("axis", 0), len(call[0].shape))
    check_parameters(call, range(1, len(call.inputs)), 1)
    return [Value(call[0].shape)]


def _normalized_by_channel(call: Call) -> list[Value]:
    """Batch, instance and group normalization."""
    call.fixed("training_mode", 0)
    shape = call[0].shape
    groups = call.integer("num_groups", 1)
    if groups < 1 or shape[1] % groups:
        raise Malformed(f"{call.node.op} of {shape} in {groups} groups")
    check_parameters(call, range(1, len(call.inputs)), shape[1])
    return [Value(shape)]


def _response(call: Call) -> list[Value]:
    size, channels = call.integer("size", 0), call[0].shape[1]
    if not 1 <= size <= channels:
        raise ModelRefusedError(f"its operator LRN looks at {size} of {channels} channels")
    return [Value(call[0].shape)]


def _summed_up(call: Call) -> list[Value]:
    (axis,) = call.sizes(1)
    place_of(axis, len(call[0].shape))
    return [Value(call[0].shape)]


def _calculated(function: Callable[..., Any], kind: int = 0) -> Rule:
    """Broadcast, and calculate where all inputs are small constants.

    Only what every runtime calculates alike is known: single floats, and whole numbers that stay
    within 32 bits.
    """

    def rule(call: Call) -> list[Value]:
        (result,) = broadcast(call)
        result.kind = kind or call[len(call.inputs) - 1].kind
        known = [value.known for value in call.inputs if value is not None]
        arrays = [exact(array) for array in known if array is not None]
        numbers = [array for array in arrays if array is not None]
        if len(numbers) == len(call.inputs) and result.size <= SMALL:
            with np.errstate(all="ignore"):
                found = np.asarray(function(*numbers))
            same = {array.dtype for array in known[-2:] if array is not None}
            if exact(found) is not None and len(same) == 1:
                result.known = found if kind else found.astype(same.pop())
        return [result]

    return rule


def _divided(function: Callable[..., Any]) -> Rule:
    """Div and Mod: of whole numbers only by constants that do not end the process."""
    calculated = _calculated(function)

    def rule(call: Call) -> list[Value]:
        call.fixed("fmod", 0)
        if call[0].kind in FLOATS or call[1].kind in FLOATS:
            (result,) = broadcast(call)
            return [result]
        between = call[1].between()
        if between is None or between[0] < 1:
            raise ModelRefusedError(
                f"its operator {call.node.op} divides whole numbers by what may be less than 1"
            )
        results = calculated(call)
        below = call[0].between()
        if below is None or below[0] < 0:  # the runtimes round it in other ways
            results[0].known = None
        return results

    return rule


def _several(function: Callable[..., Any]) -> Callable[..., Any]:
    def folded(first: Any, *others: Any) -> Any:
        for other in others:
            first = function(first, other)
        return first

    return folded


def _cast(call: Call) -> list[Value]:
    kind = call.integer("to", 0)
    known = None if call[0].known is None else exact(call[0].known)
    # Whole numbers are cut off, which is what a size is made of; floats hold 24 bits of them.
    to = {1: np.float32, INT32: np.int32, INT64: np.int64, BOOL: np.bool_}.get(kind)
    if known is None or to is None or not np.all(np.abs(known) <= 1 << 24):
        if kind == call[0].kind:
            return passed(call)
        return [Value(call[0].shape, kind=kind)]
    return [Value(call[0].shape, known.astype(to), kind)]


# --- networks ----------------------------------------------------------------------------------


_SAME = ("SAME_UPPER", "SAME_LOWER")


def _check_side(size: int, call: Call) -> None:
    """Raise ModelRefusedError for an axis that some kernels would lay out in memory."""
    if size > MAX_SIDE:
        raise ModelRefusedError(f"{call.node.op} pads its input to {size} positions")


def _check_patches(count: int, call: Call) -> None:
    if count > MAX_PATCHES:
        raise ModelRefusedError(f"{call.node.op} copies {count} numbers for its windows")


def _steps(call: Call, kernel: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Return the strides, dilations and pads of a sliding window."""
    count = len(call[0].shape) - 2
    strides = call.integers("strides", [1] * count)
    dilations = call.integers("dilations", [1] * count)
    pads = call.integers("pads", [0] * 2 * count)
    if not (len(kernel) == len(strides) == len(dilations) == len(pads) // 2 == count):
        raise Malformed(f"{call.node.op} with a window of another rank")
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise Malformed(f"{call.node.op} with a window that is none")
    return strides, dilations, pads


def _windows(call: Call, kernel: Sequence[int], *, pool: bool) -> list[int]:
    """Return the spatial sizes of what a sliding window gives."""
    sizes = call[0].shape[2:]
    count = len(sizes)
    strides, dilations, pads = _steps(call, kernel)
    automatic = call.text("auto_pad", "NOTSET")
    call.fixed("auto_pad", "NOTSET", "VALID", *_SAME)
    call.fixed("ceil_mode", 0, 1)
    if automatic != "NOTSET" and (
        any(pads) or max(dilations, default=1) > 1 or call.integer("ceil_mode", 0)
    ):
        raise ModelRefusedError(
            f"its operator {call.node.op} has auto_pad, and pads, dilations or ceil_mode"
        )
    found = []
    for axis, size in enumerate(sizes):
        if automatic in _SAME:
            found.append(-(-size // strides[axis]))
            continue
        extent = dilations[axis] * (kernel[axis] - 1) + 1
        if pool and max(pads[axis], pads[axis + count]) >= extent:
            raise Malformed(f"{call.node.op} with a window that may see nothing but its padding")
        padded = size + pads[axis] + pads[axis + count]
        # What the window is laid on exists in memory, in some kernels.
        _check_side(padded, call)
        room = padded - extent
        if room < 0:
            raise Malformed(f"{call.node.op} with a window larger than its input")
        steps = room // strides[axis]
        if call.integer("ceil_mode", 0) and room % strides[axis]:
            steps += 1
            if steps * strides[axis] >= size + pads[axis]:  # some runtimes leave that one out
                raise ModelRefusedError(f"a last window of {call.node.op} is all padding")
        found.append(steps + 1)
    return found


def _convolution(call: Call) -> list[Value]:
    quantized = call.node.op == "QLinearConv"
    weights = call[3 if quantized else 1]
    if len(weights.shape) != len(call[0].shape) or len(weights.shape) < 3:
        raise Malformed(f"a convolution of {call[0].shape} with {weights.shape}")
    group = call.integer("group", 1)
    if group < 1 or weights.shape[1] * group != call[0].shape[1] or weights.shape[0] % group:
        raise Malformed(f"a convolution of {call[0].shape} with {weights.shape} in {group} groups")
    _check_kernel(call, weights.shape)
    spatial = _windows(call, weights.shape[2:], pool=False)
    shape = (call[0].shape[0], weights.shape[0], *spatial)
    # Input and result have one scale and one zero point, the weights one for each channel.
    single, several = ((1, 2, 6, 7), (4, 5, 8)) if quantized else ((), (2, 3))
    check_parameters(call, single, 1)
    check_parameters(call, several, weights.shape[0])
    call.work = 2 * math.prod(shape) * math.prod(weights.shape[1:])
    if call.node.op != "Conv":
        _check_patches(math.prod(spatial) * math.prod(weights.shape[1:]), call)
    return [Value(shape)]


def _check_kernel(call: Call, weights: tuple[int, ...]) -> None:
    if tuple(call.integers("kernel_shape", list(weights[2:]))) != weights[2:]:
        raise Malformed(f"{call.node.op} with weights {weights} and another kernel_shape")


def _transposed_convolution(call: Call) -> list[Value]:
    source, weights = call[0].shape, call[1].shape
    count, group = len(source) - 2, call.integer("group", 1)
    if len(weights) != len(source) or count < 1 or weights[0] != source[1]:
        raise Malformed(f"a convolution of {source} with {weights}")
    if group < 1 or source[1] % group:
        raise Malformed(f"a convolution of {source} in {group} groups")
    _check_kernel(call, weights)
    check_parameters(call, (2,), weights[1] * group)
    call.fixed("auto_pad", "NOTSET")
    if "output_shape" in call.node.attributes:
        raise ModelRefusedError("its operator ConvTranspose has an output_shape")
    strides, dilations, pads = _steps(call, [1] * count)
    extra = call.integers("output_padding", [0] * count)
    if len(extra) != count or min(extra) < 0:
        raise Malformed(f"{call.node.op} with an output_padding of {extra[:MAX_RANK]}")
    shape = [source[0], weights[1] * group]
    for axis in range(count):
        spread = strides[axis] * (source[2 + axis] - 1) + dilations[axis] * (weights[2 + axis] - 1)
        full = spread + 1 + extra[axis]
        _check_side(full, call)
        shape.append(full - pads[axis] - pads[axis + count])
    call.work = 2 * math.prod(source) * math.prod(weights[1:])
    _check_patches(math.prod(source[2:]) * math.prod(weights[1:]), call)
    return [Value(tuple(shape))]


def _pool(call: Call) -> list[Value]:
    kernel = call.integers("kernel_shape")
    found = Value((*call[0].shape[:2], *_windows(call, kernel, pool=True)))
    call.work = found.size * math.prod(kernel)
    return [found, Value(found.shape, kind=INT64)][: max(1, len(call.node.outputs))]


def _global_pool(call: Call) -> list[Value]:
    return [Value((*call[0].shape[:2], *([1] * (len(call[0].shape) - 2))))]


def _matmul(call: Call) -> list[Value]:
    one, two = call[0].shape, call[3 if call.node.op == "QLinearMatMul" else 1].shape
    others = (1, 2, 4, 5, 6, 7) if call.node.op == "QLinearMatMul" else (2, 3)
    check_parameters(call, others, two[-1] if two else 1)
    return _product(call, one, two)


def _product(call: Call, one: tuple[int, ...], two: tuple[int, ...]) -> list[Value]:
    if not one or not two:
        raise Malformed(f"a product of {one} and {two}")
    left = (1, *one) if len(one) == 1 else one
    right = (*two, 1) if len(two) == 1 else two
    if left[-1] != right[-2]:
        raise Malformed(f"a product of {one} and {two}")
    pair = [Value(left[:-2]), Value(right[:-2])]
    (outer,) = broadcast(Call(call.node, pair, call.opset))
    rows = () if len(one) == 1 else (left[-2],)
    columns = () if len(two) == 1 else (right[-1],)
    shape = (*outer.shape, *rows, *columns)
    call.work = 2 * math.prod(shape) * left[-1]
    return [Value(shape)]


def _gemm(call: Call) -> list[Value]:
    one, two = call[0].shape, call[1].shape
    call.fixed("transA", 0, 1)
    call.fixed("transB", 0, 1)
    one = one[::-1] if call.integer("transA", 0) else one
    two = two[::-1] if call.integer("transB", 0) else two
    if len(one) != 2 or len(two) != 2:
        raise Malformed(f"a product of {one} and {two}")
    (result,) = _product(call, one, two)
    if (added := call.get(2)) is not None:
        fitted(Call(call.node, [result, added], call.opset))
    return [result]


def _einsum(call: Call) -> list[Value]:
    terms, arrow, wanted = call.text("equation", "").replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    if terms.count(",") > 1:  # two are one product of matrices; more may be multiplied out
        raise ModelRefusedError("Einsum has more than two inputs")
    for place, term in enumerate(terms.split(",")):
        shape = call[place].shape
        if len({*term}) != len(shape) or len(term) != len(shape) or not term.isascii():
            raise Malformed(f"{terms[:60]!r} of {shape}")
        for letter, size in zip(term, shape, strict=True):
            if sizes.setdefault(letter, size) != size or not letter.isalpha():
                raise Malformed(f"{terms[:60]!r} of {shape}")
    if not arrow or not set(wanted) <= sizes.keys() or len({*wanted}) != len(wanted):
        raise Malformed(f"{wanted[:60]!r} out of {terms[:60]!r}")
    call.work = 2 * math.prod(sizes.values())
    return [Value(tuple(sizes[letter] for letter in wanted))]


def _normalized(call: Call) -> list[Value]:
    axis = place_of(call.integer("axis", -1), len(call[0].shape))
    fitted(call)
    one = tuple(1 if place >= axis else size for place, size in enumerate(call[0].shape))
    return [Value(call[0].shape), Value(one), Value(one)][: max(1, len(call.node.outputs))]


def _quantized(call: Call) -> list[Value]:
    call.fixed("block_size", 0)
    size = call[1].size
    if size != 1:
        size = call[0].shape[place_of(call.integer("axis", 1), len(call[0].shape))]
    check_parameters(call, (1, 2), size)
    if call.node.op == "DequantizeLinear":
        kind = call[1].kind
    else:
        zero = call.get(2)
        kind = zero.kind if zero is not None else UINT8
    return [Value(call[0].shape, kind=call.integer("output_dtype", 0) or kind)]


def _quantized_dynamically(call: Call) -> list[Value]:
    return [Value(call[0].shape, kind=UINT8), Value((), kind=1), Value((), kind=UINT8)]


def _as(kind: int, rule: Rule) -> Rule:
    """Return the rule with results of another kind than its first input."""

    def changed(call: Call) -> list[Value]:
        return [Value(result.shape, kind=kind) for result in rule(call)]

    return changed


_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Clip", "Cos", "Cosh",
    "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Hardmax",
    "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Mish",
    "Neg", "Not", "Reciprocal", "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh",
    "Softmax", "Softplus", "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **SHAPE_RULES,
    **dict.fromkeys(_ELEMENTWISE, _same),
    **dict.fromkeys(("Mean", "Pow"), broadcast),
    **dict.fromkeys(("And", "GreaterOrEqual", "LessOrEqual", "Or", "Xor"), _as(BOOL, broadcast)),
    **dict.fromkeys(("IsInf", "IsNaN"), _as(BOOL, passed)),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantized),
    **dict.fromkeys(("Conv", "QLinearConv"), _convolution),
    **dict.fromkeys(("MatMul", "QLinearMatMul"), _matmul),
    "ConvInteger": _as(INT32, _convolution),
    "MatMulInteger": _as(INT32, _matmul),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool),
    "Add": _calculated(np.add),
    "Sub": _calculated(np.subtract),
    "Mul": _calculated(np.multiply),
    "Div": _divided(np.floor_divide),
    "Mod": _divided(np.mod),
    "Max": _calculated(_several(np.maximum)),
    "Min": _calculated(_several(np.minimum)),
    "Sum": _calculated(_several(np.add)),
    "Where": _calculated(np.where),
    "Equal": _calculated(np.equal, BOOL),
    "Less": _calculated(np.less, BOOL),
    "Greater": _calculated(np.greater, BOOL),
    "PRelu": fitted,
    "Floor": _calculated(np.floor),
    "Ceil": _calculated(np.ceil),
    "Cast": _cast,
    "CastLike": lambda call: [Value(call[0].shape, kind=call[1].kind)],
    "ConvTranspose": _transposed_convolution,
    "Gemm": _gemm,
    "Einsum": _einsum,
    **dict.fromkeys(("LayerNormalization", "RMSNormalization"), _normalized),
    "BatchNormalization": _normalized_by_channel,
    "InstanceNormalization": _normalized_by_channel,
    "GroupNormalization": _normalized_by_channel,
    "LRN": _response,
    "CumSum": _summed_up,
    "DynamicQuantizeLinear": _quantized_dynamically,
}
"""Every allowed operator of the standard domain, with what it returns."""
