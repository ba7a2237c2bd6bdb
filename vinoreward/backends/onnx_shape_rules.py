"""Rules of ONNX operators: what they are called with, and those that move, cut, repeat or reduce.

A rule returns the shapes of a node's results, given those of what it takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.onnx_graph import MAX_RANK, SMALL, Malformed, Node, Value
from vinoreward.errors import ModelRefusedError

# TensorProto.DataType
UINT8, INT32, INT64, BOOL = 2, 6, 7, 9
FLOATS = (1, 10, 11, 16)
LEAST, GREATEST = -(1 << 31), (1 << 31) - 1
"""Whole numbers that are followed; OpenVINO calculates with 32 bits."""


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


def place_of(axis: int, rank: int) -> int:
    """Return a place from the front for an axis that may be counted from the end."""
    if not -rank <= axis < max(rank, 1):
        raise Malformed(f"axis {axis} of {rank}")
    return axis + rank if axis < 0 else axis


def places_of(axes: Sequence[int], rank: int) -> list[int]:
    """Return :func:`place_of` of each; they must be different ones."""
    found = [place_of(axis, rank) for axis in axes]
    if len(set(found)) < len(found):
        raise Malformed(f"axes {found[:MAX_RANK]} of {rank}")
    return found


def passed(call: Call) -> list[Value]:
    """The first input, as it is."""
    return call[0].moved(call[0].shape, call[0].known)


def broadcast(call: Call) -> list[Value]:
    """The shape that all inputs are broadcast to."""
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


def fitted(call: Call) -> list[Value]:
    """Broadcast to the first input's shape."""
    (result,) = broadcast(call)
    if result.shape != call[0].shape:
        raise Malformed(f"{call.node.op} of {call[0].shape} with {call[1].shape}")
    return [result]


def check_parameters(call: Call, places: Iterable[int], count: int) -> None:
    """Raise unless these inputs hold one number or ``count``, as a larger one makes all larger."""
    for place in places:
        value = call.get(place)
        if value is not None and value.size != 1 and value.shape != (count,):
            raise Malformed(f"{call.node.op} of {call[0].shape} with {value.shape}")


def exact(array: NDArray[Any]) -> NDArray[Any] | None:
    """Return an array as it can be calculated with, None if runtimes may differ."""
    if array.dtype in (np.float32, np.bool_):
        return array
    if array.dtype not in (np.int32, np.int64):
        return None
    inside = not array.size or (array.min() >= LEAST and array.max() <= GREATEST)
    return array.astype(np.int64) if inside else None


def _shape(call: Call) -> list[Value]:
    shape = call[0].shape
    cut = slice(call.integer("start", 0), call.integer("end", len(shape)))
    found = np.array(shape[cut], np.int64)
    return [Value(found.shape, found, INT64)]


def _constant(call: Call) -> list[Value]:
    if len(call.node.attributes) != 1:
        raise Malformed("a constant without one value")
    ((name, found),) = call.node.attributes.items()
    if isinstance(found, Value):
        return found.moved(found.shape, found.known)
    known = np.array(found, np.int64 if "int" in name else np.float32)
    return [Value(known.shape, known, INT64 if "int" in name else 1)]


def _filled(call: Call) -> list[Value]:
    shape = tuple(call.sizes(0))
    value = call.node.attributes.get("value", Value((1,), np.zeros(1, np.float32), 1))
    if not isinstance(value, Value) or math.prod(value.shape) != 1:
        raise Malformed("ConstantOfShape of other than one number")
    small = min(shape, default=0) >= 0 and math.prod(shape) <= SMALL
    known = None
    if small and value.known is not None:
        known = np.full(shape, value.known.reshape(-1)[0])
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
        else places_of(axes, len(shape))
    )
    if any(shape[axis] != 1 for axis in places):
        raise Malformed(f"axes {places} of {shape} left out")
    return _reshaped(call[0], tuple(s for axis, s in enumerate(shape) if axis not in places))


def _unsqueeze(call: Call) -> list[Value]:
    axes = call.numbers(1, "axes") or []
    rank = len(call[0].shape) + len(axes)
    if rank > MAX_RANK:
        raise Malformed(f"{rank} axes")
    places = places_of(axes, rank)
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
    axis = place_of(call.integer("axis", 0), len(parts[0].shape))
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
    axis = place_of(call.integer("axis", 0), len(source.shape))
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
    axes = places_of(call.numbers(3, "") or range(len(starts)), rank)
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
    axis = place_of(call.integer("axis", 0), len(source.shape))
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
    (result,) = broadcast(Call(call.node, pair, call.opset))
    known = None
    if call[0].known is not None and result.size <= SMALL:
        known = np.broadcast_to(call[0].known, result.shape)
    return call[0].moved(result.shape, known)


def _tile(call: Call) -> list[Value]:
    return [Value(tuple(size * n for size, n in zip(call[0].shape, call.sizes(1), strict=True)))]


def _range(call: Call) -> list[Value]:
    ends = [call.constant(place) for place in range(3)]
    if not all(end.size == 1 and end.dtype.kind == "i" and exact(end) is not None for end in ends):
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


def _arg(call: Call) -> list[Value]:
    shape = call[0].shape
    place = place_of(call.integer("axis", 0), len(shape))
    keep = call.integer("keepdims", 1)
    found = tuple(1 if a == place else s for a, s in enumerate(shape) if keep or a != place)
    return [Value(found, kind=INT64)]


def _top_k(call: Call) -> list[Value]:
    shape = list(call[0].shape)
    place = place_of(call.integer("axis", -1), len(shape))
    (count,) = call.sizes(1)
    if not 1 <= count <= shape[place]:
        raise Malformed(f"the {count} largest of {shape[place]}")
    shape[place] = count
    call.work = 32 * call[0].size
    return [Value(tuple(shape)), Value(tuple(shape), kind=INT64)]


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
    found = tuple(1 if a in axes else s for a, s in enumerate(shape) if keep or a not in axes)
    known = None if call[0].known is None else exact(call[0].known)
    if known is not None and known.dtype == np.int64 and call.node.op in _REDUCED:
        function: Any = _REDUCED[call.node.op]
        # As floats they do not overflow.
        result = function(known.astype(np.float64), axis=tuple(axes), keepdims=bool(keep))
        inside = np.all(np.abs(result) <= GREATEST)
        dtype = np.asarray(call[0].known).dtype
        return [Value(found, np.asarray(result).astype(dtype) if inside else None)]
    return [Value(found)]


# Of versions 13 to 17, where they are an attribute.
_MISREAD = ("ReduceL1", "ReduceLogSum", "ReduceLogSumExp")
_REDUCED = {"ReduceProd": np.prod, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min}
_REDUCTIONS = (
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare",
)  # fmt: skip

SHAPE_RULES: dict[str, Rule] = {
    **dict.fromkeys(_REDUCTIONS, _reduce),
    **dict.fromkeys(("DepthToSpace", "SpaceToDepth"), _depth_to_space),
    "Resize": _resize,
    **dict.fromkeys(("ArgMax", "ArgMin"), _arg),
    "Identity": passed,
    "Shape": _shape,
    "Size": lambda call: [Value((), np.array(call[0].size, np.int64), INT64)],
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
}
"""Rules by operator."""
