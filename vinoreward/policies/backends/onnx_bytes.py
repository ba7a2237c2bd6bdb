"""Writes ONNX models as bytes without the onnx package; actors need only onnxruntime.

A model is a protocol buffer. Writing one needs only numbers and length-prefixed bytes. Field
numbers are those of ``onnx.proto`` (https://github.com/onnx/onnx); a test checks the result with
the onnx package.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

IR_VERSION = 8
OPSET = 17
_TYPES = {"float32": 1, "uint8": 2, "int8": 3, "int32": 6, "int64": 7}
_FLOAT, _INT, _INTS = 1, 2, 7  # AttributeProto.AttributeType


@dataclass(frozen=True)
class Node:
    """One operator.

    Attributes:
        kind: operator type in the standard domain.
        inputs: names of its inputs.
        output: name of its output.
        attributes: integers, lists of integers, or floats.
    """

    kind: str
    inputs: Sequence[str]
    output: str
    attributes: Mapping[str, int | float | Sequence[int]] = field(default_factory=dict)


@dataclass(frozen=True)
class Value:
    """An input or output of the graph: name, numpy type and shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]


def model_bytes(
    nodes: Sequence[Node],
    inputs: Sequence[Value],
    output: Value,
    constants: Mapping[str, npt.NDArray[Any]],
) -> bytes:
    """Return an ONNX ``ModelProto``.

    Args:
        nodes: in execution order.
        inputs: of the graph.
        output: of the graph.
        constants: name to float32, uint8, int8, int32 or int64 array.
    """
    graph = b"".join(
        [
            *(_bytes(1, _node(node)) for node in nodes),
            _bytes(2, b"policy"),
            *(_bytes(5, _tensor(name, array)) for name, array in constants.items()),
            *(_bytes(11, _value(value)) for value in inputs),
            _bytes(12, _value(output)),
        ]
    )
    opset = _bytes(1, b"") + _number(2, OPSET)
    return _number(1, IR_VERSION) + _bytes(8, opset) + _bytes(7, graph)


def type_number(dtype: str) -> int:
    """Return ONNX's number for a NumPy dtype, for ``Cast``."""
    return _TYPES[dtype]


def _varint(value: int) -> bytes:
    # No negative numbers: strides, sizes and type numbers are positive.
    found = bytearray()
    while value >= 0x80:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    found.append(value)
    return bytes(found)


def _number(tag: int, value: int) -> bytes:
    return _varint(tag << 3) + _varint(value)


def _bytes(tag: int, value: bytes) -> bytes:
    return _varint(tag << 3 | 2) + _varint(len(value)) + value


def _attribute(name: str, value: int | float | Sequence[int]) -> bytes:
    start = _bytes(1, name.encode())
    if isinstance(value, int):
        return start + _number(3, value) + _number(20, _INT)
    if isinstance(value, float):
        return start + _varint(2 << 3 | 5) + struct.pack("<f", value) + _number(20, _FLOAT)
    return start + b"".join(_number(8, item) for item in value) + _number(20, _INTS)


def _node(node: Node) -> bytes:
    return b"".join(
        [
            *(_bytes(1, name.encode()) for name in node.inputs),
            _bytes(2, node.output.encode()),
            _bytes(4, node.kind.encode()),
            *(_bytes(5, _attribute(*item)) for item in node.attributes.items()),
        ]
    )


def _tensor(name: str, array: npt.NDArray[Any]) -> bytes:
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return b"".join(
        [
            *(_number(1, side) for side in array.shape),
            _number(2, _TYPES[array.dtype.name]),
            _bytes(8, name.encode()),
            _bytes(9, little.tobytes()),
        ]
    )


def _value(value: Value) -> bytes:
    sides = b"".join(_bytes(1, _number(1, side)) for side in value.shape)
    tensor = _number(1, _TYPES[value.dtype]) + _bytes(2, sides)
    return _bytes(1, value.name.encode()) + _bytes(2, _bytes(1, tensor))
