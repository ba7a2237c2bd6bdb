"""What the rules of ONNX operators are called with, and what they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.onnx_graph import MAX_RANK, Malformed, Node, Value
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
