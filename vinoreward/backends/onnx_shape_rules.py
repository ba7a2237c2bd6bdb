"""The list of allowed ONNX operators, and shape rules of those that move, cut, repeat or reduce.

A rule infers the shapes of a node's results from those of its inputs, see :func:`operators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.onnx_graph import MAX_RANK, SMALL, Malformed, Node, Value
from vinoreward.errors import ModelRefusedError

# TensorProto.DataType
UINT8, INT32, INT64, BOOL = 2, 6, 7, 9
FLOATS = (1, 10, 11, 16)
LEAST, GREATEST = -(1 << 31), (1 << 31) - 1
"""Integers that rules calculate with; OpenVINO has 32 bits."""


class Call:
    """One node with its inputs; ``work`` are the multiplications and additions it takes."""

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
        """Return an input, None if it is left out."""
        return self.inputs[place] if place < len(self.inputs) else None

    def _attribute(self, name: str, default: Any, kind: type, item: type | None = None) -> Any:
        value = self.node.attributes.get(name, default)
        fits = type(value) is kind
        if not fits or (item and any(type(each) is not item for each in value)):
            raise Malformed(f"{self.node.op} with {name}={value!r:.60}")
        return value

    def integer(self, name: str, default: int) -> int:
        """Return an attribute that is an integer."""
        return int(self._attribute(name, default, int))

    def integers(self, name: str, default: list[int] | None = None) -> list[int]:
        """Return an attribute that is a list of integers."""
        return list(self._attribute(name, default, list, int))

    def text(self, name: str, default: str) -> str:
        """Return an attribute that is a string."""
        return str(self._attribute(name, default, str))

    def fixed(self, name: str, *allowed: Any) -> None:
        """Raise ModelRefusedError unless an attribute is as allowed; the first is the default."""
        value = self.node.attributes.get(name, allowed[0])
        if value not in allowed:
            raise ModelRefusedError(f"its operator {self.node.op} has {name}={value!r:.60}")

    def numbers(self, place: int, attribute: str) -> list[int] | None:
        """Return the integers of an attribute or a constant input; None if neither is there."""
        if attribute in self.node.attributes:
            return self.integers(attribute)
        return None if self.get(place) is None else self.sizes(place)

    def sizes(self, place: int) -> list[int]:
        """Return the integers of a constant input."""
        known = self.constant(place)
        if known.dtype.kind not in "iu":
            raise Malformed(f"{self.node.op} with a size that is no integer")
        return [int(item) for item in known.reshape(-1)]

    def constant(self, place: int) -> NDArray[Any]:
        """Return the values of an input, which must be constant."""
        known = self[place].known
        if known is None:
            raise ModelRefusedError(
                f"the size of a result of {self.node.op} depends on what is in the picture"
            )
        return known


Rule = Callable[[Call], "list[Value]"]

MIN_OPSET, MAX_OPSET = 11, 28
"""The versions of the standard operators that are supported."""


class Operator(NamedTuple):
    """An allowed operator of the standard domain."""

    since: int
    """Its first version."""
    inputs: list[tuple[float, int]]
    """The most inputs that it takes, each with the version since which."""
    attributes: dict[str, range]
    """The versions that have each attribute."""
    rule: Rule


# GatherElements and ScatterElements are left out: OpenVINO reads and writes wherever their indices
# point, even outside the tensor.
OPERATORS: dict[str, Operator] = {}


def operators(table: str) -> Callable[[Rule], Rule]:
    """Register a rule for the operators of a table, as ONNX defines them.

    A row is ``names: most inputs and attributes``; rows end with ``;``. ``@18`` means since version
    18, ``<13`` before 13.
    """

    def register(rule: Rule) -> Rule:
        for row in table.split(";"):
            names, _, form = row.partition(":")
            inputs: list[tuple[float, int]] = []
            attributes = {}
            for name, versions in map(_versions, form.split()):
                if name == "any" or name.isdigit():
                    inputs.append((math.inf if name == "any" else int(name), versions.start))
                else:
                    attributes[name] = versions
            for name, versions in map(_versions, names.split()):
                OPERATORS[name] = Operator(versions.start, inputs, attributes, rule)
        return rule

    return register


def _versions(word: str) -> tuple[str, range]:
    word, _, before = word.partition("<")
    name, _, since = word.partition("@")
    return name, range(int(since or MIN_OPSET), int(before or MAX_OPSET + 1))


def place_of(axis: int, rank: int) -> int:
    """Return an axis counted from the front; it may be given from the end."""
    if not -rank <= axis < max(rank, 1):
        raise Malformed(f"axis {axis} of {rank}")
    return axis + rank if axis < 0 else axis


def places_of(axes: Sequence[int], rank: int) -> list[int]:
    """Return :func:`place_of` of each; no axis may stand twice."""
    places = [place_of(axis, rank) for axis in axes]
    if len(set(places)) < len(places):
        raise Malformed(f"axes {places[:MAX_RANK]} of {rank}")
    return places


@operators("Identity: 1")
def passed(call: Call) -> list[Value]:
    """Return the first input unchanged."""
    return call[0].moved(call[0].shape, call[0].known)


def broadcast(call: Call) -> list[Value]:
    """Return the shape that all inputs are broadcast to."""
    shapes = [value.shape for value in call.inputs if value is not None]
    # numpy.broadcast_shapes fails on sizes beyond NumPy's own limits.
    rank = max(map(len, shapes))
    shape = []
    for axis in range(-rank, 0):
        sizes = {each[axis] for each in shapes if len(each) >= -axis} - {1}
        if len(sizes) > 1:
            raise Malformed(f"{call.node.op} of shapes {shapes}"[:200])
        shape.append(sizes.pop() if sizes else 1)
    return [Value(tuple(shape))]


def fitted(call: Call) -> list[Value]:
    """Return the first input's shape, to which all others must be broadcast."""
    (result,) = broadcast(call)
    if result.shape != call[0].shape:
        raise Malformed(f"{call.node.op} of {call[0].shape} with {call[1].shape}")
    return [result]


def check_parameters(call: Call, places: Iterable[int], count: int) -> None:
    """Raise unless these inputs have one element or ``count``; more would enlarge the result."""
    for place in places:
        value = call.get(place)
        if value is not None and value.size != 1 and value.shape != (count,):
            raise Malformed(f"{call.node.op} of {call[0].shape} with {value.shape}")


def exact(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return an array in a dtype to calculate with; None if runtimes may differ."""
    if array.dtype in (np.float32, np.bool_):
        return array
    if array.dtype not in (np.int32, np.int64):
        return None
    inside = not array.size or (array.min() >= LEAST and array.max() <= GREATEST)
    return array.astype(np.int64) if inside else None


@operators("Shape: 1 end@15 start@15")
def _shape(call: Call) -> list[Value]:
    shape = call[0].shape
    part = shape[call.integer("start", 0) : call.integer("end", len(shape))]
    return [Value((len(part),), np.array(part, np.int64), INT64)]


@operators("Size: 1")
def _size(call: Call) -> list[Value]:
    return [Value((), np.array(call[0].size, np.int64), INT64)]


@operators("Constant: 0 value value_float@12 value_floats@12 value_int@12 value_ints@12")
def _constant(call: Call) -> list[Value]:
    if len(call.node.attributes) != 1:
        raise Malformed("a constant without one value")
    ((name, value),) = call.node.attributes.items()
    if isinstance(value, Value):
        return value.moved(value.shape, value.known)
    known = np.array(value, np.int64 if "int" in name else np.float32)
    return [Value(known.shape, known, INT64 if "int" in name else 1)]


@operators("ConstantOfShape: 1 value")
def _filled(call: Call) -> list[Value]:
    shape = tuple(call.sizes(0))
    value = call.node.attributes.get("value", Value((1,), np.zeros(1, np.float32), 1))
    if not isinstance(value, Value) or math.prod(value.shape) != 1:
        raise Malformed("ConstantOfShape with more or less than one number")
    small = min(shape, default=0) >= 0 and math.prod(shape) <= SMALL
    known = None
    if small and value.known is not None:
        known = np.full(shape, value.known.reshape(-1)[0])
    return [Value(shape, known, value.kind)]


@operators("Reshape: 2 allowzero@14")
def _reshape(call: Call) -> list[Value]:
    source, wanted = call[0], call.sizes(1)
    call.fixed("allowzero", 0, 1)
    if not call.integer("allowzero", 0):
        wanted = [source.shape[axis] if size == 0 else size for axis, size in enumerate(wanted)]
    if wanted.count(-1) == 1:
        rest = -math.prod(wanted)
        wanted = [source.size // rest if size == -1 else size for size in wanted]
    return _reshaped(source, tuple(wanted))


def _reshaped(source: Value, shape: tuple[int, ...]) -> list[Value]:
    if math.prod(shape) != source.size:
        raise Malformed(f"{source.shape} reshaped to {shape[:MAX_RANK]}")
    return source.moved(shape, None if source.known is None else source.known.reshape(shape))


@operators("Flatten: 1 axis")
def _flatten(call: Call) -> list[Value]:
    shape = call[0].shape
    axis = call.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise Malformed(f"axis {axis} of {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return _reshaped(call[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))


@operators("Squeeze: 1 2@13 axes<13")
def _squeeze(call: Call) -> list[Value]:
    shape = call[0].shape
    axes = call.numbers(1, "axes")
    if axes is None:
        axes = [axis for axis, size in enumerate(shape) if size == 1]
    axes = places_of(axes, len(shape))
    if any(shape[axis] != 1 for axis in axes):
        raise Malformed(f"Squeeze of axes {axes} of {shape}")
    return _reshaped(call[0], tuple(s for axis, s in enumerate(shape) if axis not in axes))


@operators("Unsqueeze: 1 2@13 axes<13")
def _unsqueeze(call: Call) -> list[Value]:
    axes = call.numbers(1, "axes") or []
    rank = len(call[0].shape) + len(axes)
    if rank > MAX_RANK:
        raise Malformed(f"{rank} axes")
    places = places_of(axes, rank)
    sizes = iter(call[0].shape)
    return _reshaped(call[0], tuple(1 if axis in places else next(sizes) for axis in range(rank)))


@operators("Transpose: 1 perm")
def _transpose(call: Call) -> list[Value]:
    source = call[0]
    order = call.integers("perm", list(range(len(source.shape)))[::-1])
    if sorted(order) != list(range(len(source.shape))):
        raise Malformed(f"axes {order[:MAX_RANK]} of {len(source.shape)}")
    shape = tuple(source.shape[axis] for axis in order)
    return source.moved(shape, None if source.known is None else source.known.transpose(order))


@operators("Concat: any axis")
def _concat(call: Call) -> list[Value]:
    parts = [call[place] for place in range(len(call.inputs))]
    axis = place_of(call.integer("axis", 0), len(parts[0].shape))
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    for part in parts:
        if part.shape[:axis] + part.shape[axis + 1 :] != (*shape[:axis], *shape[axis + 1 :]):
            raise Malformed("a concatenation of shapes that do not fit")
    known = None
    arrays = [part.known for part in parts if part.known is not None]
    same = len({array.dtype for array in arrays}) == 1
    if len(arrays) == len(parts) and same and math.prod(shape) <= SMALL:
        known = np.concatenate(arrays, axis)
    limits = None
    betweens = [between for part in parts if (between := part.between()) is not None]
    if len(betweens) == len(parts):
        limits = min(low for low, _ in betweens), max(high for _, high in betweens)
    return [Value(tuple(shape), known, limits=limits)]


@operators("Split: 1 2@13 axis num_outputs@18 split<13")
def _split(call: Call) -> list[Value]:
    source, count = call[0], len(call.node.outputs)
    axis = place_of(call.integer("axis", 0), len(source.shape))
    sizes = call.numbers(1, "split")
    if sizes is None:
        sizes = [source.shape[axis] // count] * count
    if call.integer("num_outputs", count) != count:
        raise Malformed(f"a split into other than {count} results")
    if sum(sizes) != source.shape[axis] or len(sizes) != count or min(sizes) < 1:
        raise Malformed(f"a split of {source.shape} into {sizes[:MAX_RANK]}")
    return [Value((*source.shape[:axis], size, *source.shape[axis + 1 :])) for size in sizes]


@operators("Slice: 5")
def _slice(call: Call) -> list[Value]:
    source = call[0]
    starts, ends = call.sizes(1), call.sizes(2)
    rank = len(source.shape)
    axes = places_of(call.numbers(3, "") or range(len(starts)), rank)
    steps = call.numbers(4, "") or [1] * len(starts)
    cuts = [slice(None)] * rank
    for start, end, place, step in zip(starts, ends, axes, steps, strict=True):
        size = source.shape[place]
        if step < 0 and start < -size:  # one element in the runtimes, none in Python
            raise Malformed(f"a slice from {start} of {size} backwards")
        # Exporters write an end before the start of the axis for a reversal.
        last = None if step < 0 and end < -size else end
        cuts[place] = slice(start, last, step)
    shape = tuple(
        len(range(*cut.indices(size))) for cut, size in zip(cuts, source.shape, strict=True)
    )
    return source.moved(shape, None if source.known is None else source.known[tuple(cuts)])


@operators("Gather: 2 axis")
def _gather(call: Call) -> list[Value]:
    source, places = call[0], call[1]
    axis = place_of(call.integer("axis", 0), len(source.shape))
    size = source.shape[axis]
    _check_places(call, places, -size, size)
    shape = (*source.shape[:axis], *places.shape, *source.shape[axis + 1 :])
    known = None
    if source.known is not None and places.known is not None and math.prod(shape) <= SMALL:
        known = np.take(source.known, places.known, axis)
    return source.moved(shape, known)


def _check_places(call: Call, places: Value, least: int, end: int) -> None:
    """Raise unless indices are constant and within a tensor; not every kernel checks that."""
    between = places.between()
    if between is None:
        raise ModelRefusedError(f"the indices of {call.node.op} depend on what is in the picture")
    if between[0] < least or between[1] >= end:
        raise Malformed(f"{call.node.op} at indices {between[0]} to {between[1]} of {end}")


@operators("GatherND: 2 batch_dims@12")
def _gather_nd(call: Call) -> list[Value]:
    call.fixed("batch_dims", 0)
    return [Value((*call[1].shape[:-1], *_part(call)))]


@operators("ScatterND: 3 reduction@16")
def _scatter_nd(call: Call) -> list[Value]:
    call.fixed("reduction", "none")
    if call[2].shape != (*call[1].shape[:-1], *_part(call)):
        raise Malformed(f"ScatterND of {call[2].shape} into {call[0].shape} at {call[1].shape}")
    return [Value(call[0].shape)]


def _part(call: Call) -> tuple[int, ...]:
    """Return the shape of what each index of GatherND or ScatterND points to."""
    source, places = call[0].shape, call[1]
    depth = places.shape[-1]
    if not 1 <= depth <= len(source):
        raise Malformed(f"{call.node.op} of {source} at {places.shape}")
    if places.known is None:
        _check_places(call, places, 0, min(source[:depth]))
    else:
        for axis in range(depth):
            _check_places(call, Value((), places.known[..., axis]), 0, source[axis])
    return source[depth:]


@operators("Expand: 2")
def _expand(call: Call) -> list[Value]:
    pair = [call[0], Value(tuple(call.sizes(1)))]
    (result,) = broadcast(Call(call.node, pair, call.opset))
    known = None
    if call[0].known is not None and result.size <= SMALL:
        known = np.broadcast_to(call[0].known, result.shape)
    return call[0].moved(result.shape, known)


@operators("Tile: 2")
def _tile(call: Call) -> list[Value]:
    return [Value(tuple(size * n for size, n in zip(call[0].shape, call.sizes(1), strict=True)))]


@operators("Range: 3 stash_type@27")
def _range(call: Call) -> list[Value]:
    ends = [call.constant(place) for place in range(3)]
    if not all(end.size == 1 and end.dtype.kind == "i" and exact(end) is not None for end in ends):
        raise ModelRefusedError("its operator Range takes numbers that are no 32-bit integers")
    count = len(range(*(int(end.reshape(-1)[0]) for end in ends)))
    known = None
    if count <= SMALL:
        start, step = ends[0].reshape(-1)[0], ends[2].reshape(-1)[0]
        known = start + step * np.arange(count, dtype=ends[0].dtype)
    return [Value((count,), known)]


@operators("Pad: 3 4@18 mode")
def _pad(call: Call) -> list[Value]:
    rank = len(call[0].shape)
    pads = call.sizes(1)
    axes = places_of(call.numbers(3, "") or range(rank), rank)
    if len(pads) != 2 * len(axes) or min(pads, default=0) < 0:
        raise Malformed(f"Pad of {call[0].shape} by {pads[: 2 * MAX_RANK]}")
    call.fixed("mode", "constant", "reflect", "edge", "wrap")
    mode = call.text("mode", "constant")
    check_parameters(call, (2,), 1)
    shape = list(call[0].shape)
    for place, axis in enumerate(axes):
        both = pads[place], pads[place + len(axes)]
        if mode in ("reflect", "wrap") and max(both) > shape[axis] - (mode == "reflect"):
            raise Malformed(f"Pad of {call[0].shape} by {pads} with {mode}")
        shape[axis] += sum(both)
    return [Value(tuple(shape))]


@operators(
    """Resize: 4 antialias@18 axes@18 coordinate_transformation_mode cubic_coeff_a exclude_outside
    extrapolation_value keep_aspect_ratio_policy@18 mode nearest_mode"""
)
def _resize(call: Call) -> list[Value]:
    call.fixed("keep_aspect_ratio_policy", "stretch")
    modes = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners")
    call.fixed("coordinate_transformation_mode", *modes, "asymmetric", "tf_half_pixel_for_nn")
    source = call[0].shape
    axes = places_of(call.integers("axes", list(range(len(source)))), len(source))
    shape = list(source)
    sizes, scales = (_given(call, place) for place in (3, 2))
    if (sizes is None) == (scales is None):
        raise Malformed("Resize with sizes and scales, or neither")
    if sizes is not None:
        for axis, size in zip(axes, call.sizes(3), strict=True):
            shape[axis] = size
    elif scales is not None:
        if scales.dtype != np.float32:
            raise Malformed("Resize with scales that are not float32")
        for axis, scale in zip(axes, scales.reshape(-1), strict=True):
            # The runtimes round differently; here all must give the same size.
            rounded = {math.floor(source[axis] * (float(scale) + more)) for more in (0, 2e-6)}
            rounded.add(math.floor(np.float32(source[axis]) * scale))
            if len(rounded) > 1:
                raise ModelRefusedError(
                    f"Resize of {source[axis]} by {scale} is rounded differently by runtimes"
                )
            shape[axis] = rounded.pop()
    call.work = 16 * (math.prod(shape) + call[0].size)
    return [Value(tuple(shape))]


def _given(call: Call, place: int) -> NDArray[Any] | None:
    """Return a constant input; None if it is left out, or empty as exporters write it."""
    value = call.get(place)
    return None if value is None or not value.size else call.constant(place)


@operators("DepthToSpace: 1 blocksize mode; SpaceToDepth: 1 blocksize")
def _depth_to_space(call: Call) -> list[Value]:
    batch, channels, height, width = call[0].shape
    block = call.integer("blocksize", 1)
    if block < 1:
        raise Malformed(f"blocks of {block}")
    if call.node.op == "SpaceToDepth":
        shape = (batch, channels * block**2, height // block, width // block)
    else:
        shape = (batch, channels // block**2, height * block, width * block)
    if math.prod(shape) != call[0].size:
        raise Malformed(f"{call.node.op} of {call[0].shape}")
    return [Value(shape)]


@operators("ArgMax ArgMin: 1 axis keepdims select_last_index@12")
def _arg(call: Call) -> list[Value]:
    shape = call[0].shape
    place = place_of(call.integer("axis", 0), len(shape))
    return [Value(_without(shape, [place], call.integer("keepdims", 1)), kind=INT64)]


def _without(shape: tuple[int, ...], axes: Sequence[int], keep: int) -> tuple[int, ...]:
    """Return a shape after a reduction over ``axes``, which stay as 1 if ``keep``."""
    return tuple(1 if a in axes else s for a, s in enumerate(shape) if keep or a not in axes)


@operators("TopK: 2 axis largest sorted")
def _top_k(call: Call) -> list[Value]:
    shape = list(call[0].shape)
    place = place_of(call.integer("axis", -1), len(shape))
    (count,) = call.sizes(1)
    if not 1 <= count <= shape[place]:
        raise Malformed(f"the {count} largest of {shape[place]}")
    shape[place] = count
    call.work = 32 * call[0].size
    return [Value(tuple(shape)), Value(tuple(shape), kind=INT64)]


@operators(
    """ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSumSquare: 1 2@18 axes<18 keepdims noop_with_empty_axes@18;
    ReduceSum: 1 2@13 axes<13 keepdims noop_with_empty_axes@13"""
)
def _reduce(call: Call) -> list[Value]:
    shape = call[0].shape
    call.fixed("noop_with_empty_axes", 0)
    if call.node.op in _MISREAD and call.opset >= 13 and "axes" in call.node.attributes:
        raise ModelRefusedError(f"OpenVINO does not see the axes of its operator {call.node.op}")
    call.fixed("keepdims", 1, 0)
    named = call.numbers(1, "axes")
    if named is not None and not named:
        raise Malformed(f"{call.node.op} over no axes")
    axes = places_of(named or range(len(shape)), len(shape))
    keep = call.integer("keepdims", 1)
    reduced = _without(shape, axes, keep)
    known = None if call[0].known is None else exact(call[0].known)
    if known is not None and known.dtype == np.int64 and call.node.op in _REDUCED:
        function: Any = _REDUCED[call.node.op]
        # float64 does not overflow.
        result = function(known.astype(np.float64), axis=tuple(axes), keepdims=bool(keep))
        inside = np.all(np.abs(result) <= GREATEST)
        dtype = np.asarray(call[0].known).dtype
        return [Value(reduced, np.asarray(result).astype(dtype) if inside else None)]
    return [Value(reduced)]


# In versions 13 to 17 OpenVINO ignores their attribute `axes`.
_MISREAD = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
_REDUCED = {"ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}
