"""The shape that each allowed ONNX operator returns, given the shapes of what it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.onnx_graph import SMALL, Constant, Malformed, Node
from vinoreward.errors import ModelRefusedError

MAX_RANK = 10
MAX_SIDE = 1 << 26
"""Positions along one axis, padding included."""
MAX_PATCHES = 1 << 29
"""Numbers that a convolution may copy for its windows, where a kernel copies them all."""


@dataclass
class Value:
    """What is known of a result: its shape and, where it is small and constant, its values."""

    shape: tuple[int, ...]
    known: NDArray[Any] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


class Call:
    """One node with what is known of its inputs."""

    def __init__(self, node: Node, inputs: Sequence[Value | None], opset: int) -> None:
        self.node = node
        self.inputs = list(inputs)
        self.opset = opset
        self.work = 0

    def __getitem__(self, place: int) -> Value:
        value = self.get(place)
        if value is None:
            raise Malformed(f"{self.node.op} without its input {place}")
        return value

    def get(self, place: int) -> Value | None:
        """Return an input, None where it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def integer(self, name: str, default: int) -> int:
        """Return an attribute that is a whole number."""
        found = self.node.attributes.get(name, default)
        if type(found) is not int:
            raise Malformed(f"{self.node.op} with {name}={found!r:.60}")
        return found

    def integers(self, name: str, default: list[int] | None = None) -> list[int]:
        """Return an attribute that is a list of whole numbers."""
        found = self.node.attributes.get(name, default)
        if not isinstance(found, list) or any(type(item) is not int for item in found):
            raise Malformed(f"{self.node.op} with {name}={found!r:.60}")
        return found

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a text."""
        found = self.node.attributes.get(name, default)
        if not isinstance(found, str):
            raise Malformed(f"{self.node.op} with {name}={found!r:.60}")
        return found

    def numbers(self, place: int, attribute: str) -> list[int] | None:
        """Return whole numbers that are an attribute or a constant input; None where neither is."""
        if attribute in self.node.attributes:
            return self.integers(attribute)
        value = self.get(place)
        if value is None:
            return None
        return [int(item) for item in self.constant(place).reshape(-1)]

    def constant(self, place: int) -> NDArray[Any]:
        """Return the values of an input that a size is made of; they must be constant."""
        known = self[place].known
        if known is None:
            raise ModelRefusedError(
                f"the size of a result of {self.node.op} depends on what is in the picture"
            )
        return known


Rule = Callable[[Call], "list[Value]"]


def _small(*values: Value | None) -> bool:
    return all(value is None or value.known is not None for value in values)


# --- elementwise -------------------------------------------------------------------------------


def _same(call: Call) -> list[Value]:
    return [Value(call[0].shape) for _ in call.node.outputs]


def _passed(call: Call) -> list[Value]:
    return [Value(call[0].shape, call[0].known)]


def _broadcast(call: Call) -> list[Value]:
    shapes = [value.shape for value in call.inputs if value is not None]
    # NumPy's own function would do the same, but fails on sizes beyond its own limits.
    rank = max(map(len, shapes))
    shape = []
    for axis in range(-rank, 0):
        sizes = {found[axis] for found in shapes if len(found) >= -axis} - {1}
        if len(sizes) > 1:
            raise Malformed(f"{call.node.op} of shapes {shapes}"[:200])
        shape.append(sizes.pop() if sizes else 1)
    return [Value(tuple(shape))]


def _calculated(function: Callable[..., Any]) -> Rule:
    """Broadcast, and calculate where all inputs are small constants."""

    def rule(call: Call) -> list[Value]:
        (result,) = _broadcast(call)
        if _small(*call.inputs) and result.size <= SMALL:
            known = [value.known for value in call.inputs if value is not None]
            with np.errstate(all="ignore"):
                result.known = np.asarray(function(*known))
        return [result]

    return rule


def _divide(one: NDArray[Any], two: NDArray[Any]) -> NDArray[Any]:
    if one.dtype.kind != "f":
        return np.trunc(one / np.where(two == 0, 1, two)).astype(one.dtype)
    return np.asarray(one / two)


def _several(function: Callable[..., Any]) -> Callable[..., Any]:
    def folded(first: Any, *others: Any) -> Any:
        for other in others:
            first = function(first, other)
        return first

    return folded


def _cast(call: Call) -> list[Value]:
    (result,) = _passed(call)
    if result.known is not None:
        # TensorProto.DataType: whole numbers are cut off, which is what a size is made of.
        to = {1: np.float32, 6: np.int32, 7: np.int64, 9: np.bool_, 11: np.float64}
        kind = to.get(call.integer("to", 0))
        with np.errstate(all="ignore"):
            result.known = None if kind is None else result.known.astype(kind)
    return [result]


# --- shapes ------------------------------------------------------------------------------------


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise Malformed(f"axis {axis} of {rank}")
    return axis + rank if axis < 0 else axis


def _shape(call: Call) -> list[Value]:
    shape = call[0].shape
    found = np.array(shape[slice(call.integer("start", 0), call.node.attributes.get("end"))])
    return [Value(found.shape, found.astype(np.int64))]


def _size(call: Call) -> list[Value]:
    return [Value((), np.array(call[0].size, np.int64))]


def _constant(call: Call) -> list[Value]:
    for name, found in call.node.attributes.items():
        if name == "value" and isinstance(found, Constant):
            return [Value(found.shape, found.values)]
        if name in ("value_int", "value_float", "value_ints", "value_floats"):
            known = np.array(found, np.int64 if "int" in name else np.float32)
            return [Value(known.shape, known if known.size <= SMALL else None)]
    raise Malformed("a constant without numbers")


def _filled(call: Call) -> list[Value]:
    shape = tuple(int(size) for size in call.constant(0))
    value = call.node.attributes.get("value")
    fill = value.values if isinstance(value, Constant) else np.zeros(1, np.float32)
    small = fill is not None and 0 <= math.prod(shape) <= SMALL and min(shape, default=0) >= 0
    return [
        Value(shape, np.full(shape, fill.reshape(-1)[0]) if small and fill is not None else None)
    ]


def _reshape(call: Call) -> list[Value]:
    source = call[0]
    wanted = call.numbers(1, "shape") or []
    if not call.integer("allowzero", 0):
        wanted = [source.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if wanted.count(-1) == 1:
        rest = -math.prod(wanted)
        wanted = [source.size // rest if size == -1 else size for size in wanted]
    return _reshaped(source, tuple(wanted))


def _reshaped(source: Value, shape: tuple[int, ...]) -> list[Value]:
    if math.prod(shape) != source.size:
        raise Malformed(f"{source.shape} reshaped to {shape[:MAX_RANK]}")
    return [Value(shape, None if source.known is None else source.known.reshape(shape))]


def _flatten(call: Call) -> list[Value]:
    shape = call[0].shape
    axis = call.integer("axis", 1)
    axis = axis + len(shape) if axis < 0 else axis
    return _reshaped(call[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeeze(call: Call) -> list[Value]:
    shape = call[0].shape
    axes = call.numbers(1, "axes")
    places = (
        {axis for axis, size in enumerate(shape) if size == 1}
        if axes is None
        else {_axis(axis, len(shape)) for axis in axes}
    )
    return _reshaped(call[0], tuple(s for axis, s in enumerate(shape) if axis not in places))


def _unsqueeze(call: Call) -> list[Value]:
    axes = call.numbers(1, "axes") or []
    rank = len(call[0].shape) + len(axes)
    if rank > MAX_RANK:
        raise Malformed(f"{rank} axes")
    places = {_axis(axis, rank) for axis in axes}
    left = iter(call[0].shape)
    return _reshaped(call[0], tuple(1 if axis in places else next(left) for axis in range(rank)))


def _transpose(call: Call) -> list[Value]:
    source = call[0]
    order = call.integers("perm", list(range(len(source.shape)))[::-1])
    if sorted(order) != list(range(len(source.shape))):
        raise Malformed(f"axes {order[:MAX_RANK]} of {len(source.shape)}")
    shape = tuple(source.shape[axis] for axis in order)
    return [Value(shape, None if source.known is None else source.known.transpose(order))]


def _concat(call: Call) -> list[Value]:
    parts = [call[place] for place in range(len(call.inputs))]
    axis = _axis(call.integer("axis", 0), len(parts[0].shape))
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    for part in parts:
        if part.shape[:axis] + part.shape[axis + 1 :] != (*shape[:axis], *shape[axis + 1 :]):
            raise Malformed("a concatenation of other shapes")
    known = None
    if _small(*parts) and math.prod(shape) <= SMALL:
        known = np.concatenate([np.asarray(part.known) for part in parts], axis)
    return [Value(tuple(shape), known)]


def _split(call: Call) -> list[Value]:
    source, count = call[0], len(call.node.outputs)
    axis = _axis(call.integer("axis", 0), len(source.shape))
    sizes = call.numbers(1, "split")
    if sizes is None:
        each = -(-source.shape[axis] // count)
        sizes = [each] * (count - 1) + [source.shape[axis] - each * (count - 1)]
    if sum(sizes) != source.shape[axis] or len(sizes) != count or min(sizes) < 0:
        raise Malformed(f"a split of {source.shape} into {sizes[:MAX_RANK]}")
    return [Value((*source.shape[:axis], size, *source.shape[axis + 1 :])) for size in sizes]


def _slice(call: Call) -> list[Value]:
    source = call[0]
    starts, ends = call.numbers(1, "starts") or [], call.numbers(2, "ends") or []
    axes = call.numbers(3, "axes") or list(range(len(starts)))
    steps = call.numbers(4, "steps") or [1] * len(starts)
    cuts = [slice(None)] * len(source.shape)
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        place = _axis(axis, len(source.shape))
        # Ends before the start of an axis, as exporters write them for a reversal.
        last = None if step < 0 and end < -source.shape[place] else end
        cuts[place] = slice(start, last, step)
    shape = tuple(
        len(range(*cut.indices(size))) for cut, size in zip(cuts, source.shape, strict=True)
    )
    return [Value(shape, None if source.known is None else source.known[tuple(cuts)])]


def _gather(call: Call) -> list[Value]:
    source, places = call[0], call[1]
    axis = _axis(call.integer("axis", 0), len(source.shape))
    shape = (*source.shape[:axis], *places.shape, *source.shape[axis + 1 :])
    known = None
    if _small(source, places) and math.prod(shape) <= SMALL:
        known = np.take(np.asarray(source.known), np.asarray(places.known), axis)
    return [Value(shape, known)]


def _gather_elements(call: Call) -> list[Value]:
    return [Value(call[1].shape)]


def _gather_nd(call: Call) -> list[Value]:
    source, places, batch = call[0].shape, call[1].shape, call.integer("batch_dims", 0)
    if not 0 <= batch < len(places) or batch + places[-1] > len(source):
        raise Malformed(f"places of shape {places} in {source}")
    return [Value((*places[:-1], *source[batch + places[-1] :]))]


def _expand(call: Call) -> list[Value]:
    sizes = tuple(int(size) for size in call.constant(1).reshape(-1))
    pair = [call[0], Value(sizes)]
    (result,) = _broadcast(Call(call.node, pair, call.opset))
    if call[0].known is not None and result.size <= SMALL:
        result.known = np.broadcast_to(call[0].known, result.shape)
    return [result]


def _tile(call: Call) -> list[Value]:
    times = call.constant(1).reshape(-1)
    shape = tuple(size * int(n) for size, n in zip(call[0].shape, times, strict=True))
    return [Value(shape)]


def _range(call: Call) -> list[Value]:
    start, stop, step = (call.constant(place).reshape(-1)[0].item() for place in range(3))
    count = max(0, math.ceil((stop - start) / step))
    known = start + step * np.arange(count) if count <= SMALL else None
    return [Value((count,), known)]


def _pad(call: Call) -> list[Value]:
    rank = len(call[0].shape)
    pads = call.numbers(1, "pads") or []
    axes = [_axis(axis, rank) for axis in call.numbers(3, "axes") or range(rank)]
    shape = list(call[0].shape)
    for place, axis in enumerate(axes):
        shape[axis] += pads[place] + pads[place + len(axes)]
    return [Value(tuple(shape))]


def _resize(call: Call) -> list[Value]:
    source = call[0].shape
    # Opset 10 and Upsample have the scales second; later ones a region of interest between.
    place = 1 if call.opset < 11 or call.node.op == "Upsample" else 2
    axes = [_axis(axis, len(source)) for axis in call.integers("axes", list(range(len(source))))]
    shape = list(source)
    sizes = call.get(3)
    if sizes is not None and sizes.size:
        for axis, size in zip(axes, call.constant(3).reshape(-1), strict=True):
            shape[axis] = int(size)
    else:
        scales = call.constant(place).reshape(-1)
        for axis, scale in zip(axes, scales, strict=True):
            shape[axis] = math.floor(source[axis] * float(scale))
    call.work = 16 * math.prod(shape)
    return [Value(tuple(shape))]


def _depth_to_space(call: Call) -> list[Value]:
    batch, channels, height, width = call[0].shape
    block = call.integer("blocksize", 1)
    if block < 1:
        raise Malformed(f"blocks of {block}")
    if call.node.op == "SpaceToDepth":
        return _resized(call, batch, channels * block**2, height // block, width // block)
    return _resized(call, batch, channels // block**2, height * block, width * block)


def _resized(call: Call, *shape: int) -> list[Value]:
    if math.prod(shape) != call[0].size:
        raise Malformed(f"{call.node.op} of {call[0].shape}")
    return [Value(shape)]


def _reduce(call: Call) -> list[Value]:
    shape = call[0].shape
    axes = call.numbers(1, "axes")
    if not axes:
        axes = [] if axes is not None and call.integer("noop_with_empty_axes", 0) else None
    places = set(range(len(shape))) if axes is None else {_axis(a, len(shape)) for a in axes}
    keep = call.integer("keepdims", 1)
    found = tuple(1 if a in places else s for a, s in enumerate(shape) if keep or a not in places)
    known = None
    if call[0].known is not None and call.node.op in _REDUCED:
        function: Any = _REDUCED[call.node.op]
        known = np.asarray(function(call[0].known, axis=tuple(places), keepdims=bool(keep)))
    return [Value(found, known)]


_REDUCED = {"ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}


def _arg(call: Call) -> list[Value]:
    shape = call[0].shape
    place = _axis(call.integer("axis", 0), len(shape))
    keep = call.integer("keepdims", 1)
    return [Value(tuple(1 if a == place else s for a, s in enumerate(shape) if keep or a != place))]


def _top_k(call: Call) -> list[Value]:
    shape = list(call[0].shape)
    place = _axis(call.integer("axis", -1), len(shape))
    shape[place] = min(shape[place], int(call.constant(1).reshape(-1)[0]))
    call.work = 32 * call[0].size
    return [Value(tuple(shape)), Value(tuple(shape))]


# --- networks ----------------------------------------------------------------------------------


def _check_side(size: int, call: Call) -> None:
    """Raise ModelRefusedError for an axis that some kernels would lay out in memory."""
    if size > MAX_SIDE:
        raise ModelRefusedError(f"{call.node.op} pads its input to {size} positions")


def _check_patches(count: int, call: Call) -> None:
    if count > MAX_PATCHES:
        raise ModelRefusedError(f"{call.node.op} copies {count} numbers for its windows")


def _windows(call: Call, kernel: Sequence[int], *, pool: bool) -> list[int]:
    """Return the spatial sizes of what a sliding window gives."""
    sizes = call[0].shape[2:]
    count = len(sizes)
    strides = call.integers("strides", [1] * count)
    dilations = call.integers("dilations", [1] * count)
    pads = call.integers("pads", [0] * 2 * count)
    if not (len(kernel) == len(strides) == len(dilations) == len(pads) // 2 == count):
        raise Malformed(f"{call.node.op} with a window of another rank")
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise Malformed(f"{call.node.op} with a window that is none")
    found = []
    for axis, size in enumerate(sizes):
        if call.text("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
            found.append(-(-size // strides[axis]))
            continue
        padded = size + pads[axis] + pads[axis + count]
        # What the window is laid on exists in memory, in some kernels.
        _check_side(padded, call)
        room = padded - dilations[axis] * (kernel[axis] - 1) - 1
        if room < 0:
            raise Malformed(f"{call.node.op} with a window larger than its input")
        up = pool and call.integer("ceil_mode", 0)
        found.append((-(-room // strides[axis]) if up else room // strides[axis]) + 1)
    return found


def _convolution(call: Call) -> list[Value]:
    quantized = call.node.op == "QLinearConv"
    weights = call[3 if quantized else 1]
    if len(weights.shape) != len(call[0].shape) or len(weights.shape) < 3:
        raise Malformed(f"a convolution of {call[0].shape} with {weights.shape}")
    group = call.integer("group", 1)
    if group < 1 or weights.shape[1] * group != call[0].shape[1]:
        raise Malformed(f"a convolution of {call[0].shape} with {weights.shape}")
    spatial = _windows(call, weights.shape[2:], pool=False)
    shape = (call[0].shape[0], weights.shape[0], *spatial)
    call.work = 2 * math.prod(shape) * math.prod(weights.shape[1:])
    if call.node.op != "Conv":
        _check_patches(math.prod(spatial) * math.prod(weights.shape[1:]), call)
    return [Value(shape)]


def _transposed_convolution(call: Call) -> list[Value]:
    source, weights = call[0].shape, call[1].shape
    count = len(source) - 2
    if len(weights) != len(source) or count < 1 or weights[0] != source[1]:
        raise Malformed(f"a convolution of {source} with {weights}")
    strides = call.integers("strides", [1] * count)
    dilations = call.integers("dilations", [1] * count)
    pads = call.integers("pads", [0] * 2 * count)
    extra = call.integers("output_padding", [0] * count)
    shape = [source[0], weights[1] * call.integer("group", 1)]
    for axis in range(count):
        spread = strides[axis] * (source[2 + axis] - 1) + dilations[axis] * (weights[2 + axis] - 1)
        full = spread + 1 + extra[axis]
        _check_side(full, call)
        shape.append(full - pads[axis] - pads[axis + count])
    if "output_shape" in call.node.attributes:
        shape[2:] = call.integers("output_shape")[-count:]
    elif call.text("auto_pad", "NOTSET") in ("SAME_UPPER", "SAME_LOWER"):
        shape[2:] = [size * stride for size, stride in zip(source[2:], strides, strict=True)]
    call.work = 2 * math.prod(source) * math.prod(weights[1:])
    _check_patches(math.prod(source[2:]) * math.prod(weights[1:]), call)
    return [Value(tuple(shape))]


def _pool(call: Call) -> list[Value]:
    kernel = call.integers("kernel_shape")
    found = Value((*call[0].shape[:2], *_windows(call, kernel, pool=True)))
    call.work = found.size * math.prod(kernel)
    return [found, Value(found.shape)][: max(1, len(call.node.outputs))]


def _global_pool(call: Call) -> list[Value]:
    return [Value((*call[0].shape[:2], *([1] * (len(call[0].shape) - 2))))]


def _matmul(call: Call) -> list[Value]:
    one, two = call[0].shape, call[3 if call.node.op == "QLinearMatMul" else 1].shape
    return _product(call, one, two)


def _product(call: Call, one: tuple[int, ...], two: tuple[int, ...]) -> list[Value]:
    if not one or not two:
        raise Malformed(f"a product of {one} and {two}")
    left = (1, *one) if len(one) == 1 else one
    right = (*two, 1) if len(two) == 1 else two
    if left[-1] != right[-2]:
        raise Malformed(f"a product of {one} and {two}")
    pair = [Value(left[:-2]), Value(right[:-2])]
    (outer,) = _broadcast(Call(call.node, pair, call.opset))
    rows = () if len(one) == 1 else (left[-2],)
    columns = () if len(two) == 1 else (right[-1],)
    shape = (*outer.shape, *rows, *columns)
    call.work = 2 * math.prod(shape) * left[-1]
    return [Value(shape)]


def _gemm(call: Call) -> list[Value]:
    one, two = call[0].shape, call[1].shape
    one = one[::-1] if call.integer("transA", 0) else one
    two = two[::-1] if call.integer("transB", 0) else two
    if len(one) != 2 or len(two) != 2:
        raise Malformed(f"a product of {one} and {two}")
    return _product(call, one, two)


def _einsum(call: Call) -> list[Value]:
    terms, arrow, wanted = call.text("equation", "").replace(" ", "").partition("->")
    sizes: dict[str, int] = {}
    if terms.count(",") > 1:  # two are one product of matrices; more may be multiplied out
        raise ModelRefusedError("Einsum has more than two inputs")
    for place, term in enumerate(terms.split(",")):
        shape = call[place].shape
        if len(term) != len(shape) or (term and not term.isalpha()):
            raise Malformed(f"{terms[:60]!r} of {shape}")
        for letter, size in zip(term, shape, strict=True):
            sizes[letter] = max(size, sizes.get(letter, 1))
    if not arrow or not set(wanted) <= sizes.keys():
        raise Malformed(f"{wanted[:60]!r} out of {terms[:60]!r}")
    call.work = 2 * math.prod(sizes.values())
    return [Value(tuple(sizes[letter] for letter in wanted))]


def _normalized(call: Call) -> list[Value]:
    axis = _axis(call.integer("axis", -1), len(call[0].shape))
    one = tuple(1 if place >= axis else size for place, size in enumerate(call[0].shape))
    return [Value(call[0].shape), Value(one), Value(one)][: max(1, len(call.node.outputs))]


def _quantized_dynamically(call: Call) -> list[Value]:
    return [Value(call[0].shape), Value(()), Value(())]


_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BatchNormalization", "Celu",
    "Clip", "Cos", "Cosh", "Dropout", "Elu", "Erf", "Exp", "Gelu", "GroupNormalization",
    "HardSigmoid", "HardSwish", "Hardmax", "InstanceNormalization", "IsInf", "IsNaN", "LRN",
    "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Mish",
    "Neg", "Not", "QuantizeLinear", "DequantizeLinear", "RMSNormalization", "Reciprocal",
    "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus",
    "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu", "CumSum",
)  # fmt: skip
_BROADCAST = (
    "And", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Mean", "Or", "PRelu",
    "Pow", "Xor",
)  # fmt: skip
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _same),
    **dict.fromkeys(_BROADCAST, _broadcast),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("Conv", "ConvInteger", "QLinearConv"), _convolution),
    **dict.fromkeys(("MatMul", "MatMulInteger", "QLinearMatMul"), _matmul),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _depth_to_space),
    **dict.fromkeys(("Resize", "Upsample"), _resize),
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "Add": _calculated(np.add),
    "Sub": _calculated(np.subtract),
    "Mul": _calculated(np.multiply),
    "Div": _calculated(_divide),
    "Mod": _calculated(lambda one, two: np.mod(one, np.where(two == 0, 1, two))),
    "Max": _calculated(_several(np.maximum)),
    "Min": _calculated(_several(np.minimum)),
    "Sum": _calculated(_several(np.add)),
    "Where": _calculated(np.where),
    "Equal": _calculated(np.equal),
    "Less": _calculated(np.less),
    "Greater": _calculated(np.greater),
    "Floor": _calculated(np.floor),
    "Ceil": _calculated(np.ceil),
    "Identity": _passed,
    "Cast": _cast,
    "CastLike": _same,
    "Shape": _shape,
    "Size": _size,
    "Constant": _constant,
    "ConstantOfShape": _filled,
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterElements": _same,
    "ScatterND": _same,
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "Pad": _pad,
    "TopK": _top_k,
    "ConvTranspose": _transposed_convolution,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "LayerNormalization": _normalized,
    "DynamicQuantizeLinear": _quantized_dynamically,
}
"""Every allowed operator of the standard domain, with what it returns."""
