"""What callers and a service say to each other: fixed frames, and arrays in shared memory.

A frame is 32 bytes, in one packet of a local socket. Some are followed by a key or by plain JSON.
Nothing is pickled. The arrays are in a slot, memory that the caller reserves and whose descriptor
it sends with a request. A slot has no name, so a killed process leaves none behind, and no other
process can open it.
"""

from __future__ import annotations

import fcntl
import json
import math
import mmap
import os
import socket
import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vinoreward import errors
from vinoreward.backends.network import TensorSpec
from vinoreward.closing import Closing
from vinoreward.errors import ConfigError, ServiceError, SharedMemoryError
from vinoreward.files import parse_json

PROTOCOL = b"VRS1"
KEY_BYTES = 32
MAX_MESSAGE = 64 << 10
"""In bytes; a packet must fit into the socket's buffer."""
MAX_PACKET = MAX_MESSAGE + 64
SLOT_BYTES = 16 << 20
"""Most of one slot, unless a single row is larger."""
MOST_ROWS = 256

HELLO, WELCOME, REQUEST, ANSWER, ERROR, DESCRIBE, DESCRIBED, SWAP = range(1, 9)

_HEAD = struct.Struct("<4sIQQII")
_CREDENTIALS = struct.Struct("3i")
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
_LINE = 64


class Gone(Exception):
    """The other side has ended, or speaks another language."""


class Frame(NamedTuple):
    """One message."""

    kind: int
    sequence: int = 0
    """Of the request, and of its answer."""
    version: int = 0
    """Of the networks that answered; of a HELLO: 1 if the caller knows of no other caller."""
    size: int = 0
    """Rows of the batch; of a HELLO: the number of the network."""
    rows: int = 0
    """Rows that the slot holds."""
    rest: bytes = b""

    def to_bytes(self) -> bytes:
        """Return the packet."""
        head = _HEAD.pack(PROTOCOL, self.kind, self.sequence, self.version, self.size, self.rows)
        return head + self.rest

    @classmethod
    def from_bytes(cls, buffer: bytearray, size: int) -> Frame:
        """Read the packet in the first bytes of a buffer; Gone if it is none of this protocol."""
        if size < _HEAD.size:
            raise Gone
        protocol, kind, sequence, version, count, rows = _HEAD.unpack_from(buffer)
        if protocol != PROTOCOL:
            raise Gone
        rest = bytes(buffer[_HEAD.size : size]) if size > _HEAD.size else b""
        return cls(kind, sequence, version, count, rows, rest)


def message(value: Mapping[str, Any]) -> bytes:
    """Return plain data as the rest of a frame; ConfigError if it is too long."""
    data = json.dumps(value, allow_nan=False).encode()
    if len(data) > MAX_MESSAGE:
        raise ConfigError(
            f"a message to the service has {len(data)} bytes. Expected at most {MAX_MESSAGE}; use "
            "shorter paths and fewer notes."
        )
    return data


def read_message(data: bytes) -> dict[str, Any]:
    """Return the plain data in the rest of a frame; Gone if it is none."""
    try:
        value = parse_json(data)
    except ValueError as error:
        raise Gone from error
    if not isinstance(value, dict):
        raise Gone
    return value


def told(error: BaseException) -> bytes:
    """Return an error as the rest of a frame."""
    # A path in a message may be long; what is wrong stands at its beginning.
    return message({"type": type(error).__name__, "message": str(error)[:4000]})


def raised(data: bytes) -> Exception:
    """Return the error that a service told: of the same type, if it is one of vinoreward's."""
    said = read_message(data)
    name, text = str(said.get("type")), str(said.get("message"))
    kind = getattr(errors, name, None)
    if isinstance(kind, type) and issubclass(kind, errors.VinorewardError):
        return kind(text)
    return ServiceError(
        f"the service failed with {name}: {text}. Expected an answer; if it happens again without "
        "the service too, it is the network or its library."
    )


def peer(connection: socket.socket) -> tuple[int, int]:
    """Return process id and user id of the other side, as the kernel knows them."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, user, _ = _CREDENTIALS.unpack(data)
    return pid, user


def row_shape(spec: TensorSpec) -> tuple[int, ...]:
    """Return the shape of one row; ConfigError if a size is open."""
    sizes = spec.shape[1:]
    if spec.shape[0] is not None or any(size is None for size in sizes):
        raise ConfigError(
            f"a shared service was asked for a network of {spec}. Expected an open batch and "
            "fixed sizes otherwise, as slots of shared memory have; leave service out."
        )
    return tuple(size for size in sizes if size is not None)


class Layout:
    """Where batch and answer are in a slot of so many rows."""

    def __init__(self, takes: TensorSpec, gives: TensorSpec) -> None:
        self._in = (row_shape(takes), np.dtype(takes.dtype))
        self._out = (row_shape(gives), np.dtype(np.float32))
        row = sum(math.prod(shape) * dtype.itemsize for shape, dtype in (self._in, self._out))
        fit = max(1, min(MOST_ROWS, SLOT_BYTES // max(1, row)))
        # A multiple of the largest batch that backends compile.
        self.most = fit - fit % 16 if fit >= 16 else fit
        """Rows of the largest slot."""

    def start_of_answer(self, rows: int) -> int:
        """Return the offset of the answer, in bytes."""
        shape, dtype = self._in
        return -(-rows * math.prod(shape) * dtype.itemsize // _LINE) * _LINE

    def size(self, rows: int) -> int:
        """Return the size of a slot in bytes."""
        shape, dtype = self._out
        return self.start_of_answer(rows) + rows * math.prod(shape) * dtype.itemsize

    def arrays(self, memory: mmap.mmap, rows: int) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Return views of the batch and of the answer."""
        (taken, dtype), (given, number) = self._in, self._out
        return (
            np.ndarray((rows, *taken), dtype, buffer=memory),
            np.ndarray((rows, *given), number, buffer=memory, offset=self.start_of_answer(rows)),
        )


class Slot(Closing):
    """Memory shared by one caller and the service; the caller waits while the service uses it."""

    def __init__(self, memory: mmap.mmap, layout: Layout, rows: int) -> None:
        self.rows = rows
        self.batch, self.answer = layout.arrays(memory, rows)
        self.descriptor: int | None = None
        """Of the memory, to be sent once; None where it is not needed any more."""

    @classmethod
    def create(cls, layout: Layout, rows: int) -> Slot:
        """Reserve a slot; SharedMemoryError if there is no room."""
        size = layout.size(rows)
        descriptor = None
        try:
            descriptor = os.memfd_create("vinoreward-slot", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
            # All pages now: writing to one that the system has not would kill the process.
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, _SEALS)
            slot = cls(mmap.mmap(descriptor, size), layout, rows)
            slot.descriptor = descriptor
            return slot
        except (OSError, ValueError) as error:
            if descriptor is not None:
                os.close(descriptor)
            raise SharedMemoryError(
                f"cannot reserve {size / 1e6:,.1f} MB of shared memory for the service: "
                f"{getattr(error, 'strerror', None) or error}. Expected room for {rows} rows; free "
                "some memory, use smaller batches, or leave service out."
            ) from error

    @classmethod
    def attach(cls, descriptor: int, layout: Layout, rows: int) -> Slot:
        """Map a slot that a caller sent; closes the descriptor."""
        try:
            sealed = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            if not sealed or not 1 <= rows <= layout.most:
                raise OSError("it is not sealed, or too large")
            if os.fstat(descriptor).st_size != layout.size(rows):
                raise OSError("it has another size")
            return cls(mmap.mmap(descriptor, layout.size(rows)), layout, rows)
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise SharedMemoryError(
                f"the service cannot use the shared memory of a caller: {reason}. "
                "Expected a slot as SharedBackend makes it; free some memory."
            ) from error
        finally:
            os.close(descriptor)

    def sent(self) -> None:
        """Close the descriptor; the memory stays."""
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    def close(self) -> None:
        """Give the memory back when its last view has gone."""
        self.sent()
        self.__dict__.pop("batch", None)
        self.__dict__.pop("answer", None)
