"""Shape rules of elementwise ONNX operators and network layers; importing this loads all rules."""

from __future__ import annotations

import functools
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
    MAX_OPSET,
    MIN_OPSET,
    OPERATORS,
    UINT8,
    Call,
    Rule,
    broadcast,
    check_parameters,
    exact,
    fitted,
    operators,
    passed,
    place_of,
)
from vinoreward.errors import ModelRefusedError

__all__ = ["MAX_OPSET", "MIN_OPSET", "OPERATORS", "Call"]

MAX_SIDE = 1 << 26
"""Elements along one axis, padding included."""
MAX_PATCHES = 1 << 29
"""Elements that a convolution kernel may copy for its windows (im2col)."""
_WINDOW = "auto_pad dilations group kernel_shape pads strides"


# --- elementwise -------------------------------------------------------------------------------


@operators(
    """Abs Acos Acosh Asin Asinh Atan Atanh Cos Cosh Erf Exp HardSwish@14 Log Mish@18 Neg Not
    Reciprocal Relu Round Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Tan Tanh: 1;
    Celu@12 Elu LeakyRelu Swish@24 ThresholdedRelu: 1 alpha;
    Clip: 3;
    Dropout: 1 3@12 ratio<12 seed@12;
    Gelu@20: 1 approximate;
    HardSigmoid: 1 alpha beta;
    Hardmax LogSoftmax Softmax: 1 axis;
    LpNormalization: 1 axis p;
    MeanVarianceNormalization: 1 axes;
    Selu: 1 alpha gamma;
    Trilu@14: 2 upper"""
)
def _same(call: Call) -> list[Value]:
    if "axis" in call.node.attributes:
        place_of(call.integer("axis", 0), len(call[0].shape))
    check_parameters(call, range(1, len(call.inputs)), 1)
    return [Value(call[0].shape)]


@operators(
    """BatchNormalization: 5 epsilon momentum training_mode@14;
    GroupNormalization@21: 3 epsilon num_groups stash_type;
    InstanceNormalization: 3 epsilon"""
)
def _normalized_by_channel(call: Call) -> list[Value]:
    """Batch, instance and group normalization."""
    call.fixed("training_mode", 0)
    shape = call[0].shape
    groups = call.integer("num_groups", 1)
    if groups < 1 or shape[1] % groups:
        raise Malformed(f"{call.node.op} of {shape} in {groups} groups")
    check_parameters(call, range(1, len(call.inputs)), shape[1])
    return [Value(shape)]


@operators("LRN: 1 alpha beta bias size")
def _response(call: Call) -> list[Value]:
    size, channels = call.integer("size", 0), call[0].shape[1]
    if not 1 <= size <= channels:
        raise ModelRefusedError(f"its operator LRN reads {size} of {channels} channels")
    return [Value(call[0].shape)]


@operators("CumSum: 2 exclusive reverse")
def _cumulative(call: Call) -> list[Value]:
    (axis,) = call.sizes(1)
    place_of(axis, len(call[0].shape))
    return [Value(call[0].shape)]


def _calculated(function: Callable[..., Any], kind: int = 0) -> Rule:
    """Broadcast; calculate the values if all inputs are small constants.

    Values are calculated only where all runtimes agree: float32, and integers within 32 bits.
    """

    def rule(call: Call) -> list[Value]:
        (result,) = broadcast(call)
        result.kind = kind or call[len(call.inputs) - 1].kind
        known = [value.known for value in call.inputs if value is not None]
        arrays = [exact(array) for array in known if array is not None]
        numbers = [array for array in arrays if array is not None]
        if len(numbers) == len(call.inputs) and result.size <= SMALL:
            with np.errstate(all="ignore"):
                answer = np.asarray(function(*numbers))
            dtypes = {array.dtype for array in known[-2:] if array is not None}
            if exact(answer) is not None and len(dtypes) == 1:
                result.known = answer if kind else answer.astype(dtypes.pop())
        return [result]

    return rule


def _divided(function: Callable[..., Any]) -> Rule:
    """Div and Mod: integers only by positive constants, as others can end the process."""
    calculated = _calculated(function)

    def rule(call: Call) -> list[Value]:
        call.fixed("fmod", 0)
        if call[0].kind in FLOATS or call[1].kind in FLOATS:
            (result,) = broadcast(call)
            return [result]
        between = call[1].between()
        if between is None or between[0] < 1:
            raise ModelRefusedError(
                f"its operator {call.node.op} divides integers by numbers that may be less than 1"
            )
        results = calculated(call)
        dividend = call[0].between()
        if dividend is None or dividend[0] < 0:  # runtimes round negative quotients differently
            results[0].known = None
        return results

    return rule


def _several(function: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    return lambda *arrays: functools.reduce(function, arrays)


@operators("Cast: 1 round_mode@24 saturate@19 to")
def _cast(call: Call) -> list[Value]:
    kind = call.integer("to", 0)
    known = None if call[0].known is None else exact(call[0].known)
    # float32 holds integers of up to 24 bits exactly.
    to = {1: np.float32, INT32: np.int32, INT64: np.int64, BOOL: np.bool_}.get(kind)
    if known is None or to is None or not np.all(np.abs(known) <= 1 << 24):
        if kind == call[0].kind:
            return passed(call)
        return [Value(call[0].shape, kind=kind)]
    return [Value(call[0].shape, known.astype(to), kind)]


# --- networks ----------------------------------------------------------------------------------


_SAME = ("SAME_UPPER", "SAME_LOWER")


def _check_side(size: int, call: Call) -> None:
    """Refuse a padded axis that some kernels would copy into memory."""
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
        raise Malformed(f"{call.node.op} with a window without positive sizes")
    return strides, dilations, pads


def _windows(call: Call, kernel: Sequence[int], *, pool: bool) -> list[int]:
    """Return the spatial sizes of the result of a sliding window."""
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
    result = []
    for axis, size in enumerate(sizes):
        if automatic in _SAME:
            result.append(-(-size // strides[axis]))
            continue
        extent = dilations[axis] * (kernel[axis] - 1) + 1
        if pool and max(pads[axis], pads[axis + count]) >= extent:
            raise Malformed(f"{call.node.op} with a window that may see nothing but its padding")
        padded = size + pads[axis] + pads[axis + count]
        _check_side(padded, call)
        room = padded - extent
        if room < 0:
            raise Malformed(f"{call.node.op} with a window larger than its input")
        steps = room // strides[axis]
        if call.integer("ceil_mode", 0) and room % strides[axis]:
            steps += 1
            if steps * strides[axis] >= size + pads[axis]:  # some runtimes leave it out
                raise ModelRefusedError(f"a last window of {call.node.op} is all padding")
        result.append(steps + 1)
    return result


@operators(f"Conv: 3 {_WINDOW}; ConvInteger: 4 {_WINDOW}; QLinearConv: 9 {_WINDOW}")
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
    # Input and result have one scale and zero point, the weights one per channel.
    single, several = ((1, 2, 6, 7), (4, 5, 8)) if quantized else ((), (2, 3))
    check_parameters(call, single, 1)
    check_parameters(call, several, weights.shape[0])
    call.work = 2 * math.prod(shape) * math.prod(weights.shape[1:])
    if call.node.op != "Conv":
        _check_patches(math.prod(spatial) * math.prod(weights.shape[1:]), call)
    return [Value(shape, kind=INT32 if call.node.op == "ConvInteger" else 0)]


def _check_kernel(call: Call, weights: tuple[int, ...]) -> None:
    if tuple(call.integers("kernel_shape", list(weights[2:]))) != weights[2:]:
        raise Malformed(f"{call.node.op} with weights {weights} and another kernel_shape")


@operators(f"ConvTranspose: 3 {_WINDOW} output_padding output_shape")
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


@operators(
    """AveragePool: 1 auto_pad ceil_mode count_include_pad dilations@19 kernel_shape pads strides;
    LpPool: 1 auto_pad ceil_mode@18 dilations@18 kernel_shape p pads strides;
    MaxPool: 1 auto_pad ceil_mode dilations kernel_shape pads storage_order strides"""
)
def _pool(call: Call) -> list[Value]:
    kernel = call.integers("kernel_shape")
    result = Value((*call[0].shape[:2], *_windows(call, kernel, pool=True)))
    call.work = result.size * math.prod(kernel)
    return [result, Value(result.shape, kind=INT64)][: max(1, len(call.node.outputs))]


@operators("GlobalAveragePool GlobalMaxPool: 1; GlobalLpPool: 1 p")
def _global_pool(call: Call) -> list[Value]:
    return [Value((*call[0].shape[:2], *([1] * (len(call[0].shape) - 2))))]


@operators("MatMul: 2; MatMulInteger: 4; QLinearMatMul: 8")
def _matmul(call: Call) -> list[Value]:
    one, two = call[0].shape, call[3 if call.node.op == "QLinearMatMul" else 1].shape
    others = (1, 2, 4, 5, 6, 7) if call.node.op == "QLinearMatMul" else (2, 3)
    check_parameters(call, others, two[-1] if two else 1)
    (result,) = _product(call, one, two)
    result.kind = INT32 if call.node.op == "MatMulInteger" else 0
    return [result]


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


@operators("Gemm: 3 alpha beta transA transB")
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


@operators("Einsum@12: any equation")
def _einsum(call: Call) -> list[Value]:
    terms, arrow, wanted = call.text("equation", "").replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    if terms.count(",") > 1:  # runtimes may expand the product of more than two
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


@operators(
    """LayerNormalization@17: 3 axis epsilon stash_type;
    RMSNormalization@23: 2 axis epsilon stash_type"""
)
def _normalized(call: Call) -> list[Value]:
    axis = place_of(call.integer("axis", -1), len(call[0].shape))
    fitted(call)
    one = tuple(1 if place >= axis else size for place, size in enumerate(call[0].shape))
    return [Value(call[0].shape), Value(one), Value(one)][: max(1, len(call.node.outputs))]


@operators(
    """DequantizeLinear: 3 axis@13 block_size@21 output_dtype@23;
    QuantizeLinear: 3 axis@13 block_size@21 output_dtype@21 precision@23 saturate@19"""
)
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


@operators("DynamicQuantizeLinear: 1")
def _quantized_dynamically(call: Call) -> list[Value]:
    return [Value(call[0].shape, kind=UINT8), Value((), kind=1), Value((), kind=UINT8)]


@operators("""And GreaterOrEqual@12 LessOrEqual@12 Or Xor: 2;
    IsInf: 1 detect_negative detect_positive; IsNaN: 1""")
def _compared(call: Call) -> list[Value]:
    return [Value(broadcast(call)[0].shape, kind=BOOL)]


@operators("CastLike@15: 2 round_mode@24 saturate@19")
def _cast_like(call: Call) -> list[Value]:
    return [Value(call[0].shape, kind=call[1].kind)]


operators("Mean: any; Pow: 2")(broadcast)
operators("PRelu: 2")(fitted)
operators("Div: 2")(_divided(np.floor_divide))
operators("Mod: 2 fmod")(_divided(np.mod))
for _form, _function, _kind in (
    ("Add: 2", np.add, 0),
    ("Sub: 2", np.subtract, 0),
    ("Mul: 2", np.multiply, 0),
    ("Max: any", _several(np.maximum), 0),
    ("Min: any", _several(np.minimum), 0),
    ("Sum: any", _several(np.add), 0),
    ("Where: 3", np.where, 0),
    ("Floor: 1", np.floor, 0),
    ("Ceil: 1", np.ceil, 0),
    ("Equal: 2", np.equal, BOOL),
    ("Less: 2", np.less, BOOL),
    ("Greater: 2", np.greater, BOOL),
):
    operators(_form)(_calculated(_function, _kind))
