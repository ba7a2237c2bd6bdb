"""The shape that each allowed ONNX operator returns, given the shapes of what it takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.onnx_graph import MAX_RANK, SMALL, Constant, Malformed, Node
from vinoreward.errors import ModelRefusedError

MAX_SIDE = 1 << 26
"""Positions along one axis, padding included."""
MAX_PATCHES = 1 << 29
"""Numbers that a convolution may copy for its windows, where a kernel copies them all."""


@dataclass
class Value:
    """What is known of a result.

    Attributes:
        shape: its sizes.
        known: its values, where it is small and constant.
        kind: of its elements, as in :class:`Constant`; 0 is that of the operator's first input.
        limits: least and greatest of many constant whole numbers.
    """

    shape: tuple[int, ...]
    known: NDArray[Any] | None = None
    kind: int = 0
    limits: tuple[int, int] | None = None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def moved(self, shape: tuple[int, ...], known: NDArray[Any] | None) -> list[Value]:
        """Return some or all of these elements in another shape, as an operator's results."""
        return [Value(shape, known, self.kind, self.limits)]

    def between(self) -> tuple[int, int] | None:
        """Return the least and the greatest of constant whole numbers, None if unknown."""
        if self.known is not None and self.known.size and self.known.dtype.kind in "iu":
            return int(self.known.min()), int(self.known.max())
        return self.limits


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

    def fixed(self, name: str, *allowed: Any) -> None:
        """Raise ModelRefusedError unless an attribute is as allowed; the first is the default."""
        found = self.node.attributes.get(name, allowed[0])
        if found not in allowed:
            raise ModelRefusedError(f"its operator {self.node.op} has {name}={found!r:.60}")

    def numbers(self, place: int, attribute: str) -> list[int] | None:
        """Return whole numbers that are an attribute or a constant input; None where neither is."""
        if attribute in self.node.attributes:
            return self.integers(attribute)
        value = self.get(place)
        if value is None:
            return None
        return self.sizes(place)

    def sizes(self, place: int) -> list[int]:
        """Return the whole numbers of a constant input."""
        known = self.constant(place)
        if known.dtype.kind not in "iu":
            raise Malformed(f"{self.node.op} with a size that is no whole number")
        return [int(item) for item in known.reshape(-1)]

    def constant(self, place: int) -> NDArray[Any]:
        """Return the values of an input that a size is made of; they must be constant."""
        known = self[place].known
        if known is None:
            raise ModelRefusedError(
                f"the size of a result of {self.node.op} depends on what is in the picture"
            )
        return known


Rule = Callable[[Call], "list[Value]"]


# --- elementwise -------------------------------------------------------------------------------


# TensorProto.DataType
_UINT8, _INT32, _INT64, _BOOL = 2, 6, 7, 9
_FLOATS = (1, 10, 11, 16)
_LEAST, _GREATEST = -(1 << 31), (1 << 31) - 1
"""Whole numbers that are followed; OpenVINO calculates with 32 bits."""


def _same(call: Call) -> list[Value]:
    if "axis" in call.node.attributes:
        _axis(call.integer("axis", 0), len(call[0].shape))
    _check_parameters(call, range(1, len(call.inputs)), 1)
    return [Value(call[0].shape)]


def _check_parameters(call: Call, places: Iterable[int], count: int) -> None:
    """Raise unless these inputs hold one number or ``count``, as a larger one makes all larger."""
    for place in places:
        value = call.get(place)
        if value is not None and value.size != 1 and value.shape != (count,):
            raise Malformed(f"{call.node.op} of {call[0].shape} with {value.shape}")


def _truth(call: Call) -> list[Value]:
    return [Value(call[0].shape, kind=_BOOL)]


def _passed(call: Call) -> list[Value]:
    return call[0].moved(call[0].shape, call[0].known)


def _normalized_by_channel(call: Call) -> list[Value]:
    """Batch, instance and group normalization."""
    call.fixed("training_mode", 0)
    shape = call[0].shape
    groups = call.integer("num_groups", 1)
    if groups < 1 or shape[1] % groups:
        raise Malformed(f"{call.node.op} of {shape} in {groups} groups")
    _check_parameters(call, range(1, len(call.inputs)), shape[1])
    return [Value(shape)]


def _response(call: Call) -> list[Value]:
    size, channels = call.integer("size", 0), call[0].shape[1]
    if not 1 <= size <= channels:
        raise ModelRefusedError(f"its operator LRN looks at {size} of {channels} channels")
    return [Value(call[0].shape)]


def _summed_up(call: Call) -> list[Value]:
    (axis,) = call.sizes(1)
    _axis(axis, len(call[0].shape))
    return [Value(call[0].shape)]


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


def _compared(call: Call) -> list[Value]:
    (result,) = _broadcast(call)
    return [Value(result.shape, kind=_BOOL)]


def _fitted(call: Call) -> list[Value]:
    """Broadcast to the first input's shape."""
    (result,) = _broadcast(call)
    if result.shape != call[0].shape:
        raise Malformed(f"{call.node.op} of {call[0].shape} with {call[1].shape}")
    return [result]


def _calculated(function: Callable[..., Any], kind: int = 0) -> Rule:
    """Broadcast, and calculate where all inputs are small constants.

    Only what every runtime calculates alike is known: single floats, and whole numbers that stay
    within 32 bits.
    """

    def rule(call: Call) -> list[Value]:
        (result,) = _broadcast(call)
        result.kind = kind or call[len(call.inputs) - 1].kind
        known = [value.known for value in call.inputs if value is not None]
        arrays = [_exact(array) for array in known if array is not None]
        numbers = [array for array in arrays if array is not None]
        if len(numbers) == len(call.inputs) and result.size <= SMALL:
            with np.errstate(all="ignore"):
                found = np.asarray(function(*numbers))
            same = {array.dtype for array in known[-2:] if array is not None}
            if _exact(found) is not None and len(same) == 1:
                result.known = found if kind else found.astype(same.pop())
        return [result]

    return rule


def _exact(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return an array as it can be calculated with, None if runtimes may differ."""
    if array.dtype in (np.float32, np.bool_):
        return array
    if array.dtype not in (np.int32, np.int64):
        return None
    inside = not array.size or (array.min() >= _LEAST and array.max() <= _GREATEST)
    return array.astype(np.int64) if inside else None


def _divided(function: Callable[..., Any]) -> Rule:
    """Div and Mod: of whole numbers only by constants that do not end the process."""
    calculated = _calculated(function)

    def rule(call: Call) -> list[Value]:
        call.fixed("fmod", 0)
        if call[0].kind in _FLOATS or call[1].kind in _FLOATS:
            (result,) = _broadcast(call)
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
    known = None if call[0].known is None else _exact(call[0].known)
    # Whole numbers are cut off, which is what a size is made of; floats hold 24 bits of them.
    to = {1: np.float32, _INT32: np.int32, _INT64: np.int64, _BOOL: np.bool_}.get(kind)
    if known is None or to is None or not np.all(np.abs(known) <= 1 << 24):
        if kind == call[0].kind:
            return _passed(call)
        return [Value(call[0].shape, kind=kind)]
    return [Value(call[0].shape, known.astype(to), kind)]


def _cast_like(call: Call) -> list[Value]:
    return [Value(call[0].shape, kind=call[1].kind)]


# --- shapes ------------------------------------------------------------------------------------


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < max(rank, 1):
        raise Malformed(f"axis {axis} of {rank}")
    return axis + rank if axis < 0 else axis


def _axes(axes: Sequence[int], rank: int) -> list[int]:
    found = [_axis(axis, rank) for axis in axes]
    if len(set(found)) < len(found):
        raise Malformed(f"axes {found[:MAX_RANK]} of {rank}")
    return found


def _shape(call: Call) -> list[Value]:
    shape = call[0].shape
    cut = slice(call.integer("start", 0), call.integer("end", len(shape)))
    found = np.array(shape[cut], np.int64)
    return [Value(found.shape, found, _INT64)]


def _size(call: Call) -> list[Value]:
    return [Value((), np.array(call[0].size, np.int64), _INT64)]


def _constant(call: Call) -> list[Value]:
    if len(call.node.attributes) != 1:
        raise Malformed("a constant without one value")
    ((name, found),) = call.node.attributes.items()
    if isinstance(found, Constant):
        return [Value(found.shape, found.values, found.kind, found.limits)]
    known = np.array(found, np.int64 if "int" in name else np.float32)
    return [Value(known.shape, known, _INT64 if "int" in name else 1)]


def _filled(call: Call) -> list[Value]:
    shape = tuple(call.sizes(0))
    value = call.node.attributes.get("value", Constant((1,), 1, np.zeros(1, np.float32)))
    if not isinstance(value, Constant) or math.prod(value.shape) != 1:
        raise Malformed("ConstantOfShape of other than one number")
    small = min(shape, default=0) >= 0 and math.prod(shape) <= SMALL
    known = None
    if small and value.values is not None:
        known = np.full(shape, value.values.reshape(-1)[0])
    return [Value(shape, known, value.kind)]


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


def _flatten(call: Call) -> list[Value]:
    shape = call[0].shape
    axis = call.integer("axis", 1)
    if not -len(shape) <= axis <= len(shape):
        raise Malformed(f"axis {axis} of {len(shape)}")
    axis = axis + len(shape) if axis < 0 else axis
    return _reshaped(call[0], (math.prod(shape[:axis]), math.prod(shape[axis:])))


def _squeeze(call: Call) -> list[Value]:
    shape = call[0].shape
    axes = call.numbers(1, "axes")
    places = (
        [axis for axis, size in enumerate(shape) if size == 1]
        if axes is None
        else _axes(axes, len(shape))
    )
    if any(shape[axis] != 1 for axis in places):
        raise Malformed(f"axes {places} of {shape} left out")
    return _reshaped(call[0], tuple(s for axis, s in enumerate(shape) if axis not in places))


def _unsqueeze(call: Call) -> list[Value]:
    axes = call.numbers(1, "axes") or []
    rank = len(call[0].shape) + len(axes)
    if rank > MAX_RANK:
        raise Malformed(f"{rank} axes")
    places = _axes(axes, rank)
    left = iter(call[0].shape)
    return _reshaped(call[0], tuple(1 if axis in places else next(left) for axis in range(rank)))


def _transpose(call: Call) -> list[Value]:
    source = call[0]
    order = call.integers("perm", list(range(len(source.shape)))[::-1])
    if sorted(order) != list(range(len(source.shape))):
        raise Malformed(f"axes {order[:MAX_RANK]} of {len(source.shape)}")
    shape = tuple(source.shape[axis] for axis in order)
    return source.moved(shape, None if source.known is None else source.known.transpose(order))


def _concat(call: Call) -> list[Value]:
    parts = [call[place] for place in range(len(call.inputs))]
    axis = _axis(call.integer("axis", 0), len(parts[0].shape))
    shape = list(parts[0].shape)
    shape[axis] = sum(part.shape[axis] for part in parts)
    for part in parts:
        if part.shape[:axis] + part.shape[axis + 1 :] != (*shape[:axis], *shape[axis + 1 :]):
            raise Malformed("a concatenation of other shapes")
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


def _split(call: Call) -> list[Value]:
    source, count = call[0], len(call.node.outputs)
    axis = _axis(call.integer("axis", 0), len(source.shape))
    sizes = call.numbers(1, "split")
    if sizes is None:
        sizes = [source.shape[axis] // count] * count
    if call.integer("num_outputs", count) != count:
        raise Malformed(f"a split into other than {count} results")
    if sum(sizes) != source.shape[axis] or len(sizes) != count or min(sizes) < 1:
        raise Malformed(f"a split of {source.shape} into {sizes[:MAX_RANK]}")
    return [Value((*source.shape[:axis], size, *source.shape[axis + 1 :])) for size in sizes]


def _slice(call: Call) -> list[Value]:
    source = call[0]
    starts, ends = call.sizes(1), call.sizes(2)
    rank = len(source.shape)
    axes = _axes(call.numbers(3, "") or range(len(starts)), rank)
    steps = call.numbers(4, "") or [1] * len(starts)
    cuts = [slice(None)] * rank
    for start, end, place, step in zip(starts, ends, axes, steps, strict=True):
        size = source.shape[place]
        if step < 0 and start < -size:  # the runtimes see one number there, Python none
            raise Malformed(f"a slice from {start} of {size} backwards")
        # Ends before the start of an axis, as exporters write them for a reversal.
        last = None if step < 0 and end < -size else end
        cuts[place] = slice(start, last, step)
    shape = tuple(
        len(range(*cut.indices(size))) for cut, size in zip(cuts, source.shape, strict=True)
    )
    return source.moved(shape, None if source.known is None else source.known[tuple(cuts)])


def _gather(call: Call) -> list[Value]:
    source, places = call[0], call[1]
    axis = _axis(call.integer("axis", 0), len(source.shape))
    size = source.shape[axis]
    _check_places(call, places, -size, size)
    shape = (*source.shape[:axis], *places.shape, *source.shape[axis + 1 :])
    known = None
    if source.known is not None and places.known is not None and math.prod(shape) <= SMALL:
        known = np.take(source.known, places.known, axis)
    return source.moved(shape, known)


def _check_places(call: Call, places: Value, least: int, end: int) -> None:
    """Raise unless constant indices are within a tensor; not every kernel looks."""
    between = places.between()
    if between is None:
        raise ModelRefusedError(
            f"the places that {call.node.op} looks at depend on what is in the picture"
        )
    if between[0] < least or between[1] >= end:
        raise Malformed(f"{call.node.op} at places {between[0]} to {between[1]} of {end}")


def _gather_nd(call: Call) -> list[Value]:
    call.fixed("batch_dims", 0)
    return [Value((*call[1].shape[:-1], *_part(call)))]


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


def _expand(call: Call) -> list[Value]:
    pair = [call[0], Value(tuple(call.sizes(1)))]
    (result,) = _broadcast(Call(call.node, pair, call.opset))
    known = None
    if call[0].known is not None and result.size <= SMALL:
        known = np.broadcast_to(call[0].known, result.shape)
    return call[0].moved(result.shape, known)


def _tile(call: Call) -> list[Value]:
    return [Value(tuple(size * n for size, n in zip(call[0].shape, call.sizes(1), strict=True)))]


def _range(call: Call) -> list[Value]:
    ends = [call.constant(place) for place in range(3)]
    if not all(end.size == 1 and end.dtype.kind == "i" and _exact(end) is not None for end in ends):
        raise ModelRefusedError("its operator Range counts other than whole numbers of 32 bits")
    count = len(range(*(int(end.reshape(-1)[0]) for end in ends)))
    known = None
    if count <= SMALL:
        start, step = ends[0].reshape(-1)[0], ends[2].reshape(-1)[0]
        known = start + step * np.arange(count, dtype=ends[0].dtype)
    return [Value((count,), known)]


def _pad(call: Call) -> list[Value]:
    rank = len(call[0].shape)
    pads = call.sizes(1)
    axes = _axes(call.numbers(3, "") or range(rank), rank)
    if len(pads) != 2 * len(axes) or min(pads, default=0) < 0:
        raise Malformed(f"Pad of {call[0].shape} by {pads[: 2 * MAX_RANK]}")
    call.fixed("mode", "constant", "reflect", "edge", "wrap")
    mode = call.text("mode", "constant")
    _check_parameters(call, (2,), 1)
    shape = list(call[0].shape)
    for place, axis in enumerate(axes):
        both = pads[place], pads[place + len(axes)]
        if mode in ("reflect", "wrap") and max(both) > shape[axis] - (mode == "reflect"):
            raise Malformed(f"Pad of {call[0].shape} by {pads} with {mode}")
        shape[axis] += sum(both)
    return [Value(tuple(shape))]


def _resize(call: Call) -> list[Value]:
    call.fixed("keep_aspect_ratio_policy", "stretch")
    call.fixed(
        "coordinate_transformation_mode",
        *(
            "half_pixel",
            "half_pixel_symmetric",
            "pytorch_half_pixel",
            "align_corners",
            "asymmetric",
        ),
        "tf_half_pixel_for_nn",
    )
    source = call[0].shape
    axes = _axes(call.integers("axes", list(range(len(source)))), len(source))
    shape = list(source)
    sizes, scales = (_given(call, place) for place in (3, 2))
    if (sizes is None) == (scales is None):
        raise Malformed("Resize with sizes and scales, or neither")
    if sizes is not None:
        for axis, size in zip(axes, call.sizes(3), strict=True):
            shape[axis] = size
    elif scales is not None:
        if scales.dtype != np.float32:
            raise Malformed("Resize with scales that are no single floats")
        for axis, scale in zip(axes, scales.reshape(-1), strict=True):
            # Rounded as one runtime does it or the other, it must be the same.
            found = {math.floor(source[axis] * (float(scale) + more)) for more in (0, 2e-6)}
            found.add(math.floor(np.float32(source[axis]) * scale))
            if len(found) > 1:
                raise ModelRefusedError(f"Resize of {source[axis]} by {scale} may be rounded")
            shape[axis] = found.pop()
    call.work = 16 * (math.prod(shape) + call[0].size)
    return [Value(tuple(shape))]


def _given(call: Call, place: int) -> NDArray[Any] | None:
    """Return a constant input, None where it is left out or empty, as exporters do."""
    value = call.get(place)
    return None if value is None or not value.size else call.constant(place)


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
    call.fixed("noop_with_empty_axes", 0)
    if call.node.op in _MISREAD and call.opset >= 13 and "axes" in call.node.attributes:
        raise ModelRefusedError(f"OpenVINO does not see the axes of its operator {call.node.op}")
    call.fixed("keepdims", 1, 0)
    named = call.numbers(1, "axes")
    if named is not None and not named:
        raise Malformed(f"{call.node.op} over no axes")
    axes = _axes(named or range(len(shape)), len(shape))
    keep = call.integer("keepdims", 1)
    found = tuple(1 if a in axes else s for a, s in enumerate(shape) if keep or a not in axes)
    known = None if call[0].known is None else _exact(call[0].known)
    if known is not None and known.dtype == np.int64 and call.node.op in _REDUCED:
        function: Any = _REDUCED[call.node.op]
        # As floats they do not overflow.
        result = function(known.astype(np.float64), axis=tuple(axes), keepdims=bool(keep))
        exact = np.all(np.abs(result) <= _GREATEST)
        dtype = np.asarray(call[0].known).dtype
        return [Value(found, np.asarray(result).astype(dtype) if exact else None)]
    return [Value(found)]


# Of versions 13 to 17, where they are an attribute.
_MISREAD = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
_REDUCED = {"ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}


def _arg(call: Call) -> list[Value]:
    shape = call[0].shape
    place = _axis(call.integer("axis", 0), len(shape))
    keep = call.integer("keepdims", 1)
    found = tuple(1 if a == place else s for a, s in enumerate(shape) if keep or a != place)
    return [Value(found, kind=_INT64)]


def _top_k(call: Call) -> list[Value]:
    shape = list(call[0].shape)
    place = _axis(call.integer("axis", -1), len(shape))
    (count,) = call.sizes(1)
    if not 1 <= count <= shape[place]:
        raise Malformed(f"the {count} largest of {shape[place]}")
    shape[place] = count
    call.work = 32 * call[0].size
    return [Value(tuple(shape)), Value(tuple(shape), kind=_INT64)]


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
    automatic = call.text("auto_pad", "NOTSET")
    call.fixed("auto_pad", "NOTSET", "VALID", *_SAME)
    call.fixed("ceil_mode", 0, 1)
    if automatic != "NOTSET" and (
        any(pads) or max(dilations, default=1) > 1 or call.integer("ceil_mode", 0)
    ):
        raise ModelRefusedError(
            f"its operator {call.node.op} has auto_pad, and pads, dilations or ceil_mode"
        )
    if not (len(kernel) == len(strides) == len(dilations) == len(pads) // 2 == count):
        raise Malformed(f"{call.node.op} with a window of another rank")
    if min(*kernel, *strides, *dilations) < 1 or min(pads) < 0:
        raise Malformed(f"{call.node.op} with a window that is none")
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


_SAME = ("SAME_UPPER", "SAME_LOWER")


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
    _check_parameters(call, single, 1)
    _check_parameters(call, several, weights.shape[0])
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
    _check_parameters(call, (2,), weights[1] * group)
    call.fixed("auto_pad", "NOTSET")
    if "output_shape" in call.node.attributes:
        raise ModelRefusedError("its operator ConvTranspose has an output_shape")
    strides = call.integers("strides", [1] * count)
    dilations = call.integers("dilations", [1] * count)
    pads = call.integers("pads", [0] * 2 * count)
    extra = call.integers("output_padding", [0] * count)
    if not (len(strides) == len(dilations) == len(extra) == len(pads) // 2 == count):
        raise Malformed(f"{call.node.op} with a window of another rank")
    if min(*strides, *dilations) < 1 or min(*pads, *extra) < 0:
        raise Malformed(f"{call.node.op} with a window that is none")
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
    return [found, Value(found.shape, kind=_INT64)][: max(1, len(call.node.outputs))]


def _global_pool(call: Call) -> list[Value]:
    return [Value((*call[0].shape[:2], *([1] * (len(call[0].shape) - 2))))]


def _matmul(call: Call) -> list[Value]:
    one, two = call[0].shape, call[3 if call.node.op == "QLinearMatMul" else 1].shape
    others = (1, 2, 4, 5, 6, 7) if call.node.op == "QLinearMatMul" else (2, 3)
    _check_parameters(call, others, two[-1] if two else 1)
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
    call.fixed("transA", 0, 1)
    call.fixed("transB", 0, 1)
    one = one[::-1] if call.integer("transA", 0) else one
    two = two[::-1] if call.integer("transB", 0) else two
    if len(one) != 2 or len(two) != 2:
        raise Malformed(f"a product of {one} and {two}")
    (result,) = _product(call, one, two)
    if (added := call.get(2)) is not None:
        _fitted(Call(call.node, [result, added], call.opset))
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
    axis = _axis(call.integer("axis", -1), len(call[0].shape))
    _fitted(call)
    one = tuple(1 if place >= axis else size for place, size in enumerate(call[0].shape))
    return [Value(call[0].shape), Value(one), Value(one)][: max(1, len(call.node.outputs))]


def _quantized(call: Call) -> list[Value]:
    call.fixed("block_size", 0)
    size = call[1].size
    if size != 1:
        size = call[0].shape[_axis(call.integer("axis", 1), len(call[0].shape))]
    _check_parameters(call, (1, 2), size)
    if call.node.op == "DequantizeLinear":
        kind = call[1].kind
    else:
        zero = call.get(2)
        kind = zero.kind if zero is not None else _UINT8
    return [Value(call[0].shape, kind=call.integer("output_dtype", 0) or kind)]


def _quantized_dynamically(call: Call) -> list[Value]:
    return [Value(call[0].shape, kind=_UINT8), Value((), kind=1), Value((), kind=_UINT8)]


def _as(kind: int, rule: Rule) -> Rule:
    """Return the rule with results of another kind than its first input."""

    def changed(call: Call) -> list[Value]:
        return [Value(result.shape, kind=kind) for result in rule(call)]

    return changed


_ELEMENTWISE = (
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Celu", "Clip", "Cos", "Cosh",
    "Dropout", "Elu", "Erf", "Exp", "Gelu", "HardSigmoid", "HardSwish", "Hardmax",
    "LeakyRelu", "Log", "LogSoftmax", "LpNormalization", "MeanVarianceNormalization", "Mish",
    "Neg", "Not", "Reciprocal",
    "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softmax", "Softplus",
    "Softsign", "Sqrt", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu",
)  # fmt: skip
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

RULES: dict[str, Rule] = {
    **dict.fromkeys(_ELEMENTWISE, _same),
    **dict.fromkeys(("Mean", "Pow"), _broadcast),
    **dict.fromkeys(("And", "GreaterOrEqual", "LessOrEqual", "Or", "Xor"), _compared),
    **dict.fromkeys(("IsInf", "IsNaN"), _truth),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), _quantized),
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("Conv", "QLinearConv"), _convolution),
    **dict.fromkeys(("MatMul", "QLinearMatMul"), _matmul),
    "ConvInteger": _as(_INT32, _convolution),
    "MatMulInteger": _as(_INT32, _matmul),
    **dict.fromkeys(("AveragePool", "MaxPool", "LpPool"), _pool),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"), _global_pool),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _depth_to_space),
    "Resize": _resize,
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "Add": _calculated(np.add),
    "Sub": _calculated(np.subtract),
    "Mul": _calculated(np.multiply),
    "Div": _divided(np.floor_divide),
    "Mod": _divided(np.mod),
    "Max": _calculated(_several(np.maximum)),
    "Min": _calculated(_several(np.minimum)),
    "Sum": _calculated(_several(np.add)),
    "Where": _calculated(np.where),
    "Equal": _calculated(np.equal, _BOOL),
    "Less": _calculated(np.less, _BOOL),
    "Greater": _calculated(np.greater, _BOOL),
    "PRelu": _fitted,
    "Floor": _calculated(np.floor),
    "Ceil": _calculated(np.ceil),
    "Identity": _passed,
    "Cast": _cast,
    "CastLike": _cast_like,
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
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "Expand": _expand,
    "Tile": _tile,
    "Range": _range,
    "Pad": _pad,
    "TopK": _top_k,
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
