"""Reading an ONNX graph without running, converting or trusting anything in it.

ONNX files are protobuf messages. This is a reader in pure Python of what the checks need, because
neither OpenVINO nor a light install has one that only reads. A field that stands twice, of which
some libraries take the last and others merge both, is refused or read in full.
"""

from __future__ import annotations

import contextlib
import itertools
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ModelRefusedError

MAX_FIELDS = 1_000_000
"""Protobuf fields and packed numbers that are read; a ViT-L has about 50,000."""
MAX_NODES = 20_000
SMALL = 4096
"""Constants of up to so many elements are read with their values: shapes, axes, sizes."""
MAX_RANK = 10

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MODEL = {1: 0, 2: 2, 3: 2, 4: 2, 5: 0, 6: 2, 7: 2, 8: 2, 14: 2, 20: 2, 25: 2, 26: 2}
# TensorProto.DataType: bits of one element, and its NumPy dtype where values are read.
_BITS = {
    1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64,
    15: 128, 16: 16, 17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4,
}  # fmt: skip
_NUMPY = {
    1: "<f4", 2: "u1", 3: "i1", 4: "<u2", 5: "<i2", 6: "<i4", 7: "<i8", 9: "?", 10: "<f2",
    11: "<f8", 12: "<u4", 13: "<u8",
}  # fmt: skip


@dataclass
class Value:
    """What is known of a tensor in the file, or of a result."""

    shape: tuple[int, ...]
    known: NDArray[Any] | None = None
    """Its values, if it is small and constant."""
    kind: int = 0
    """``TensorProto.DataType`` of the elements; 0 is that of the operator's first input."""
    limits: tuple[int, int] | None = None
    """Least and greatest of many constant integers, such as indices for ``Gather``."""

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    def moved(self, shape: tuple[int, ...], known: NDArray[Any] | None) -> list[Value]:
        """Return an operator's result that has some or all of these elements in another shape."""
        return [Value(shape, known, self.kind, self.limits)]

    def between(self) -> tuple[int, int] | None:
        """Return the least and the greatest of constant integers, None if unknown."""
        if self.known is not None and self.known.size and self.known.dtype.kind in "iu":
            return int(self.known.min()), int(self.known.max())
        return self.limits


@dataclass(frozen=True)
class Node:
    """One operation. Attributes are ints, floats, strings, lists of these, or constants."""

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any]


@dataclass
class Graph:
    """A graph with its nodes in the order of execution."""

    nodes: list[Node] = field(default_factory=list)
    constants: dict[str, Value] = field(default_factory=dict)
    inputs: dict[str, tuple[int | None, ...]] = field(default_factory=dict)
    """Shapes by name, None for open sizes; initializers are left out."""
    kinds: dict[str, int] = field(default_factory=dict)
    """As :class:`Value` has it, by input; 0 where the file does not say."""
    opset: int = -1
    """-1 where the file does not say."""


class Malformed(ValueError):
    """The bytes are not a network that can be read."""


class NotSupported(ModelRefusedError):
    """A network that would do if it were exported otherwise; the message says how."""


class _Reader:
    """Reads messages and counts their fields, up to a limit."""

    def __init__(self) -> None:
        self._fields = 0

    def fields(self, data: memoryview) -> Iterator[tuple[int, int, Any]]:
        """Yield ``(number, wire type, value)``: an int, or a view of the bytes."""
        place, end = 0, len(data)
        while place < end:
            self.count()
            tag, place = varint(data, place)
            kind, value = tag & 7, 0
            if kind == _VARINT:
                value, place = varint(data, place)
                yield tag >> 3, kind, value
                continue
            if kind == _BYTES:
                size, place = varint(data, place)
            elif kind in (_FIXED64, _FIXED32):
                size = 8 if kind == _FIXED64 else 4
            else:
                raise Malformed(f"a field of wire type {kind}")
            if place + size > end:
                raise Malformed("a field is longer than its message")
            yield tag >> 3, kind, data[place : place + size]
            place += size

    def parts(self, data: memoryview) -> defaultdict[int, list[memoryview]]:
        """Return strings and messages by field number; other fields are skipped."""
        parts: defaultdict[int, list[memoryview]] = defaultdict(list)
        for number, kind, value in self.fields(data):
            if kind == _BYTES:
                parts[number].append(value)
        return parts

    def packed(self, data: memoryview) -> Iterator[int]:
        """Yield the numbers of a packed field."""
        place = 0
        while place < len(data):
            self.count()
            value, place = varint(data, place)
            yield value

    def count(self) -> None:
        """Count one more field or number."""
        self._fields += 1
        if self._fields > MAX_FIELDS:
            raise ModelRefusedError(f"it has more than {MAX_FIELDS} fields and numbers in lists")


def varint(data: memoryview | bytes, place: int) -> tuple[int, int]:
    """Return the protobuf number at ``place`` and where it ends."""
    value = shift = 0
    while place < len(data) and shift < 70:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place += 1
        shift += 7
        if byte < 0x80:
            return value, place
    raise Malformed("a number that does not end")


def read_graph(data: bytes) -> Graph:
    """Return the graph of an ONNX file.

    Raises:
        Malformed: it is not an ONNX model.
        ModelRefusedError: it has data in other files, functions, subgraphs, sparse tensors or
            operators of other domains.
    """
    if data[4:8] == b"ORTM":
        raise Malformed("it begins as a file of ONNX Runtime's own format")
    reader, graph = _Reader(), Graph()
    for number, kind, value in reader.fields(memoryview(data)):
        if _MODEL.get(number) != kind:
            raise Malformed(f"field {number} of wire type {kind}, which a model does not have")
        if number == 7:
            _read_graph(reader, value, graph)
        elif number == 8:
            _read_opset(reader, value, graph)
        elif number in (20, 25):
            what = "functions" if number == 25 else "training graphs"
            raise ModelRefusedError(f"it holds {what} of its own")
    if not graph.nodes and not graph.inputs:
        raise Malformed("no graph")
    return graph


# What runtimes get of each message: its fields, and the message that a field holds.
_KEPT: dict[str, dict[int, str]] = {
    "model": {1: "", 7: "graph", 8: "opset"},
    "opset": dict.fromkeys((1, 2), ""),
    "graph": {1: "node", 2: "", 5: "tensor", 11: "value", 12: "value"},
    "node": {**dict.fromkeys((1, 2, 3, 4, 7), ""), 5: "attribute"},
    "attribute": {**dict.fromkeys((1, 2, 3, 4, 7, 8, 9, 20), ""), 5: "tensor"},
    "tensor": dict.fromkeys((1, 2, 4, 5, 7, 8, 9, 10, 11), ""),
    "value": {1: "", 2: "type"},
    "type": {1: "tensor type"},
    "tensor type": {1: "", 2: "shape"},
    "shape": {1: "size"},
    "size": dict.fromkeys((1, 2), ""),
}


def rewrite(data: bytes) -> bytes:
    """Return an ONNX file that :func:`read_graph` has read, without what a network does not need.

    Doc strings, metadata, the producer's name, places of data in other files and unknown fields go:
    a runtime could take them for a file of another kind.
    """
    return b"".join(_kept(_Reader(), memoryview(data), "model"))


def _kept(reader: _Reader, data: memoryview, message: str) -> Iterator[bytes | memoryview]:
    fields = _KEPT[message]
    for number, kind, value in reader.fields(data):
        inner = fields.get(number)
        if inner is None or (inner and kind != _BYTES):
            continue
        parts = [*_kept(reader, value, inner)] if inner else [value]
        yield _varint(number << 3 | kind)
        if kind == _VARINT:
            yield _varint(value)
            continue
        if kind == _BYTES:
            yield _varint(sum(map(len, parts)))
        yield from parts


def _varint(value: int) -> bytes:
    """Return a number as protobuf writes it."""
    written = bytearray()
    while value > 0x7F:
        written.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*written, value])


def read_metadata(data: bytes) -> dict[str, str]:
    """Return the metadata of an ONNX file, whatever its graph holds; none if it is not one."""
    metadata: dict[str, str] = {}
    reader = _Reader()
    with contextlib.suppress(Malformed):
        for number, kind, value in reader.fields(memoryview(data)):
            if number == 14 and kind == _BYTES:
                pair = reader.parts(value)
                key, text = (b"".join(pair[n][-1:]).decode("utf-8", "replace") for n in (1, 2))
                metadata[key] = text
    return metadata


def _read_graph(reader: _Reader, data: memoryview, graph: Graph) -> None:
    inputs: dict[str, tuple[int | None, ...]] = {}
    for number, kind, value in reader.fields(data):
        if kind != _BYTES:
            continue
        if number == 1:
            if len(graph.nodes) >= MAX_NODES:
                raise ModelRefusedError(f"it has more than {MAX_NODES} operations")
            graph.nodes.append(_read_node(reader, value))
        elif number == 5:
            name, constant = _read_tensor(reader, value)
            if name in graph.constants:
                raise Malformed(f"the tensor {_shown(name)} twice")
            graph.constants[name] = constant
        elif number == 11:
            name, shape, graph.kinds[name] = _read_input(reader, value)
            if name in inputs:
                raise Malformed(f"the input {_shown(name)} twice")
            inputs[name] = shape
        elif number == 12:
            _read_input(reader, value)  # its name is shown in messages
        elif number == 2:
            _text(value)
        elif number == 15:
            raise ModelRefusedError("it holds sparse tensors")
    graph.inputs |= {name: shape for name, shape in inputs.items() if name not in graph.constants}


def _read_node(reader: _Reader, data: memoryview) -> Node:
    parts = reader.parts(data)
    inputs, outputs, ops, domains = ([_text(text) for text in parts[n]] for n in (1, 2, 4, 7))
    for domain in set(domains) - {"", "ai.onnx"}:
        raise ModelRefusedError(f"it holds operators of the domain {_shown(domain)}")
    if len(ops) != 1:
        raise Malformed(f"a node with {len(ops)} operators")
    attributes: dict[str, Any] = {}
    for part in parts[5]:
        name, value = _read_attribute(reader, part, ops[0])
        if name in attributes:
            raise Malformed(f"the attribute {name!r} twice")
        attributes[name] = value
    return Node(ops[0], tuple(inputs), tuple(outputs), attributes)


def _read_attribute(reader: _Reader, data: memoryview, op: str) -> tuple[str, Any]:
    name, kinds = "", []
    single: dict[int, Any] = {}
    several: dict[int, list[Any]] = {7: [], 8: [], 9: []}
    tensor: Value | None = None
    for number, kind, value in reader.fields(data):
        if number == 1 and kind == _BYTES:
            name = _text(value)
        elif number == 20 and kind == _VARINT:
            kinds.append(value)
        elif number == 3 and kind == _VARINT:
            single[2] = _signed(value)
        elif number == 2 and kind == _FIXED32:
            single[1] = float(np.frombuffer(value, "<f4")[0])
        elif number == 4 and kind == _BYTES:
            single[3] = bytes(value).decode("utf-8", "backslashreplace")
        elif number == 5 and kind == _BYTES:
            if tensor is not None:
                raise Malformed(f"the tensor {name!r} in two parts")
            tensor = _read_tensor(reader, value)[1]
        elif number in (7, 8) and kind in (_VARINT, _FIXED32, _BYTES):
            several[number] += _numbers(reader, number, kind, value)
            if len(several[number]) > SMALL:
                raise ModelRefusedError(
                    f"its operator {_shown(op)} holds more than {SMALL} numbers"
                )
        elif number == 9 and kind == _BYTES:
            several[9].append(bytes(value).decode("utf-8", "backslashreplace"))
        elif number in (6, 11):
            raise ModelRefusedError(f"its operator {_shown(op)} holds a graph of its own")
        elif number in (10, 14, 15, 22, 23):
            raise ModelRefusedError(
                f"its operator {_shown(op)} holds more than numbers and strings"
            )
    if len(kinds) != 1:
        raise Malformed(f"the attribute {name!r} of {len(kinds)} types")
    kind = kinds[0]  # AttributeProto.AttributeType
    if kind in (1, 2, 3):
        return name, single.get(kind, (0.0, 0, "")[kind - 1])
    if kind == 4 and tensor is not None:
        return name, tensor
    if kind in (6, 7, 8):
        return name, several[kind + 1]
    raise Malformed(f"the attribute {name!r} of type {kind}")


def _numbers(reader: _Reader, number: int, kind: int, value: Any) -> list[Any]:
    """Return repeated numbers, packed or one by one: floats of field 7, integers of field 8."""
    if number == 7:
        if kind == _VARINT or len(value) % 4:
            raise Malformed("floats of the wrong size")
        return [float(item) for item in np.frombuffer(value[: 4 * SMALL + 4], "<f4")]
    if kind == _VARINT:
        return [_signed(value)]
    if kind != _BYTES:
        raise Malformed("integers of the wrong wire type")
    return [_signed(item) for item in itertools.islice(reader.packed(value), SMALL + 1)]


def _read_tensor(reader: _Reader, data: memoryview) -> tuple[str, Value]:
    name, kinds = "", []
    shape: list[int] = []
    raw: memoryview | None = None
    stored: list[tuple[int, int, Any]] = []
    for number, kind, value in reader.fields(data):
        if number == 1 and kind in (_VARINT, _BYTES):
            for item in [value] if kind == _VARINT else reader.packed(value):
                shape.append(_signed(item))
                if shape[-1] < 0 or len(shape) > MAX_RANK:
                    raise Malformed(f"a tensor of shape {shape}")
        elif number == 2 and kind == _VARINT:
            kinds.append(value)
        elif number == 8 and kind == _BYTES:
            name = _text(value)
        elif number == 9 and kind == _BYTES:
            if raw is not None:
                raise Malformed("a tensor in two parts")
            raw = value
        elif number == 13 or (number == 14 and value != 0):
            raise NotSupported(
                "it keeps weights in other files (external data). Expected one file; export it "
                "with its weights inside the file: torch.onnx.export(..., external_data=False), or "
                "onnx.save(onnx.load(path), other_path)"
            )
        elif number in (4, 5, 6, 7, 10, 11):
            stored.append((number, kind, value))
    if len(kinds) != 1 or kinds[0] not in _BITS:
        raise Malformed(f"the tensor {_shown(name)} of type {kinds[:9]}")
    bits, count = _BITS[kinds[0]], math.prod(shape)
    if count > SMALL:
        # A tensor cannot be larger than the bytes it has in the file.
        if raw is not None:
            available = 8 * len(raw)
        else:
            available = 128 * sum(len(v) if wire == _BYTES else 1 for _, wire, v in stored)
        if count * bits > available:
            raise Malformed(f"the tensor {_shown(name)} of shape {shape} in {available // 8} bytes")
        limits = None
        if raw is not None and kinds[0] in (6, 7):
            values = np.frombuffer(raw[: count * bits // 8], _NUMPY[kinds[0]])
            limits = int(values.min()), int(values.max())
        return name, Value(tuple(shape), None, kinds[0], limits)
    known = _values(reader, kinds[0], shape, raw, stored)
    return name, Value(tuple(shape), known, kinds[0])


def _values(
    reader: _Reader,
    kind: int,
    shape: list[int],
    raw: memoryview | None,
    stored: list[tuple[int, int, Any]],
) -> NDArray[Any] | None:
    """Return a small tensor's values; None for a dtype that shapes never have."""
    dtype = _NUMPY.get(kind)
    if dtype is None:
        return None
    count = math.prod(shape)
    values: NDArray[Any]
    if raw is not None:
        if len(raw) != count * np.dtype(dtype).itemsize:
            raise Malformed(f"a tensor of shape {shape} in {len(raw)} bytes")
        return np.frombuffer(raw, dtype).reshape(shape)
    if kind in (1, 11):
        number = 4 if kind == 1 else 10
        parts = [value for place, wire, value in stored if place == number and wire != _VARINT]
        if sum(map(len, parts)) != count * np.dtype(dtype).itemsize:
            raise Malformed(f"a tensor of shape {shape} with {sum(map(len, parts))} bytes")
        values = np.frombuffer(b"".join(parts), dtype)
    else:
        items: list[int] = []
        for _, wire, value in stored:
            numbers = [value] if wire == _VARINT else reader.packed(value)
            items += itertools.islice(numbers, SMALL + 1)
            if len(items) > count:
                raise Malformed(f"a tensor of shape {shape} with more numbers")
        if kind == 10:  # float16, stored as bit patterns
            return None
        values = np.array([_signed(item) for item in items], np.int64).astype(dtype)
    if values.size != count:
        raise Malformed(f"a tensor of shape {shape} with {values.size} numbers")
    return values.reshape(shape)


def _read_input(reader: _Reader, data: memoryview) -> tuple[str, tuple[int | None, ...], int]:
    parts = reader.parts(data)
    names = ["", *map(_text, parts[1])]
    kinds: list[int] = []
    shape: list[int | None] = []
    # TypeProto, its tensor_type, its shape, its sizes
    for tensor in (tensor for form in parts[2] for tensor in reader.parts(form)[1]):
        kinds += [item for part, wire, item in reader.fields(tensor) if (part, wire) == (1, 0)]
        for size in (size for sizes in reader.parts(tensor)[2] for size in reader.parts(sizes)[1]):
            # A number, or the name of an open size; the runtimes take the last.
            given = [item for item in reader.fields(size) if item[0] in (1, 2)]
            if len(given) > 1:
                raise Malformed("an input's size given twice")
            fixed = [_signed(item) for part, wire, item in given if part == 1 and not wire]
            shape.append(fixed[0] if fixed and fixed[0] > 0 else None)
    return names[-1], tuple(shape), kinds[0] if len(kinds) == 1 else 0


def _read_opset(reader: _Reader, data: memoryview, graph: Graph) -> None:
    domain, version = "", 0
    for number, kind, value in reader.fields(data):
        if number == 1 and kind == _BYTES:
            domain = _text(value)
        elif number == 2 and kind == _VARINT:
            version = value
    if domain in ("", "ai.onnx"):
        if graph.opset >= 0:
            raise Malformed("two versions of the standard operators")
        graph.opset = version


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _text(data: memoryview) -> str:
    """Return a name; runtimes fail on one that is not UTF-8."""
    try:
        return bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise Malformed("a name that is not UTF-8") from error


def _shown(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
