"""Tensors, arrays and plain data from files of untrusted origin, in bounded memory.

A file of ``torch.save`` is a zip archive with the tensors' numbers and a pickle that puts them
together. ``torch.load(weights_only=True)`` runs no code of the pickle, but 387 bytes can make it
take all memory. The reader here knows only the few instructions that plain data need, and a tensor
cannot be larger than its bytes in the file. The same holds for NumPy's ``.npy`` and ``.npz``.
"""

from __future__ import annotations

import collections
import io
import math
import pickletools
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.errors import ModelCorruptError
from vinoreward.files import open_to_read, write_bytes

if TYPE_CHECKING:
    import torch

MAX_DIRECTORY = 8 << 20
"""Bytes of an archive's table of members; in Python it takes about ten times as many."""
MAX_ARRAY_HEADER = 10_000

DAMAGED = (
    OSError, EOFError, zipfile.BadZipFile, zlib.error, ValueError, TypeError, LookupError,
    AttributeError, NotImplementedError, RuntimeError, MemoryError, ArithmeticError, SyntaxError,
    struct.error, tokenize.TokenError,
)  # fmt: skip
"""What Python's readers raise for damaged files."""

MAX_WEIGHTS = 8 << 30
"""Bytes of a network's weights."""
MAX_CHECKPOINT = 64 << 30
"""Bytes of a checkpoint, which may hold a replay of pictures."""
MAX_PICKLE = 8 << 20
"""Bytes of the pickle; a network of 1000 layers needs 0.2 MiB."""
MAX_HEADER = 1 << 20
"""Bytes of the table of tensors in a safetensors file; one of 10,000 tensors needs as many."""
MAX_PARTS = 1 << 20
"""Values, counted once per reference."""
MAX_DEPTH = 50
_CHUNK = 16 << 20

_LITERALS = frozenset(
    "BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE NONE NEWTRUE NEWFALSE".split()  # noqa: SIM905
)
_EMPTY: dict[str, Callable[[], Any]] = {
    "EMPTY_DICT": dict,
    "EMPTY_LIST": list,
    "EMPTY_TUPLE": tuple,
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_DTYPES = {
    "FloatStorage": "float32", "DoubleStorage": "float64", "HalfStorage": "float16",
    "BFloat16Storage": "bfloat16", "LongStorage": "int64", "IntStorage": "int32",
    "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
    "BoolStorage": "bool", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
}  # fmt: skip
_NEWER_DTYPES = ("uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e5m2")
_MARK = object()


def save_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a dict of tensors and plain data for :func:`read_state`, atomically.

    Memory holds it twice meanwhile. RunFolderError if the disk is full or the folder not writable.
    """
    import torch

    # torch.save reports a full disk as an unclear RuntimeError; writing bytes names it.
    stream = io.BytesIO()
    torch.save(state, stream)
    write_bytes(path, stream.getvalue())


def read_state(path: Path, limit: int = MAX_WEIGHTS) -> dict[str, Any]:
    """Read a dict from an untrusted file of ``torch.save``, or a ``.safetensors`` by its name.

    Values are CPU tensors, numbers, strings, and lists, tuples and dicts of those. The file may
    have ``limit`` bytes; memory takes about as many.

    Raises:
        FileNotFoundError: there is no such file.
        ModelCorruptError: it holds anything else, is damaged or too large; the message has only
            the reason.
        ImportError: safetensors is not installed.
    """
    if Path(path).suffix == ".safetensors":
        return _read_safetensors(path, limit)
    try:
        with (
            open_to_read(path, limit) as stream,
            # Members are stored without compression, so nothing is larger than the file.
            open_archive(stream, stream.seek(0, io.SEEK_END), packed=False) as archive,
        ):
            state = _Saved(archive).read()
    except FileNotFoundError:
        raise
    except DAMAGED as error:
        raise ModelCorruptError(reason_of(error)) from error
    if not isinstance(state, dict):
        raise ModelCorruptError(f"it holds a {type(state).__name__}, where a table is expected")
    return state


def check_names(state: Mapping[str, Any], **known: Collection[str]) -> None:
    """Raise ModelCorruptError, with only the reason, unless parts are dicts of known names."""
    for part, names in known.items():
        table = state.get(part)
        if not isinstance(table, dict) or not set(table) <= set(names):
            raise ModelCorruptError(f"its {part} are {shown(list(table) if table else table)}")


def check_counts(counts: Mapping[str, object]) -> None:
    """Raise ModelCorruptError, as :func:`check_names` does, unless these are numbers from 0 on."""
    for name, count in counts.items():
        if type(count) not in (int, float) or not 0 <= count < 1 << 63:  # type: ignore[operator]
            raise ModelCorruptError(f"{shown(name)} is {shown(count)}")


def _read_safetensors(path: Path, limit: int) -> dict[str, Any]:
    import safetensors
    import safetensors.torch

    try:
        with open_to_read(path, limit) as stream:
            check_header(content := stream.read())
        return dict(safetensors.torch.load(content))
    except FileNotFoundError:
        raise
    except (safetensors.SafetensorError, *DAMAGED) as error:
        raise ModelCorruptError(reason_of(error)) from error


def check_header(content: bytes) -> None:
    """Raise ValueError if a safetensors file, of which 8 bytes do, has too many tensors to read."""
    if (size := int.from_bytes(content[:8], "little")) > MAX_HEADER:
        raise ValueError(f"its table of tensors has {size} bytes, more than {MAX_HEADER}")


@dataclass(frozen=True)
class _Name:
    """What a pickle would import; here only two words."""

    module: str
    name: str

    def __str__(self) -> str:
        return shown(f"{self.module}.{self.name}")


@dataclass(frozen=True)
class _Storage:
    """Where the numbers of one or several tensors are."""

    key: str
    dtype: str | None
    count: int


class _Saved:
    """An open archive of ``torch.save``."""

    def __init__(self, archive: zipfile.ZipFile) -> None:
        self._archive = archive
        self._members = {member.filename: member for member in archive.infolist()}
        roots = [name.removesuffix("data.pkl") for name in self._members if "/data.pkl" in name]
        if len(roots) != 1:
            raise ValueError("it is no file of torch.save")
        self._root = roots[0]
        self._read: dict[str, bytearray] = {}

    def read(self) -> Any:
        order = self._members.get(self._root + "byteorder")
        if (
            order is not None
            and order.file_size <= 100
            and member_bytes(self._archive, order) != b"little"
        ):
            raise ValueError("its numbers are in big-endian byte order")
        member = self._members[self._root + "data.pkl"]
        if member.file_size > MAX_PICKLE:
            raise ValueError(f"its description has {member.file_size} bytes")
        value = self._interpret(member_bytes(self._archive, member))
        _check_extent(value)
        return value

    def _interpret(self, pickled: bytes) -> Any:
        """Return the value that the pickle describes."""
        stack: list[Any] = []
        memo: dict[int, Any] = {}

        def to_mark() -> list[Any]:
            items = []
            while (item := stack.pop()) is not _MARK:
                items.append(item)
            return items[::-1]

        argument: Any
        for code, argument, _ in pickletools.genops(pickled):
            name = code.name
            if name in _LITERALS:
                stack.append(_CONSTANTS.get(name, argument))
                if isinstance(argument, int) and abs(argument) >= 1 << 63:
                    raise ValueError("an integer of more than 64 bits")
            elif name in _EMPTY:
                stack.append(_EMPTY[name]())
            elif name == "MARK":
                stack.append(_MARK)
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[argument] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[argument])
            elif name in _TUPLES:
                items = stack[-_TUPLES[name] :]
                stack[-_TUPLES[name] :] = [tuple(items)]
            elif name == "TUPLE":
                stack.append(tuple(to_mark()))
            elif name in ("APPEND", "APPENDS"):
                items = [stack.pop()] if name == "APPEND" else to_mark()
                _of(stack[-1], list).extend(items)
            elif name in ("SETITEM", "SETITEMS"):
                items = [stack.pop(-2), stack.pop()] if name == "SETITEM" else to_mark()
                if any(type(key) not in (str, int) for key in items[::2]):
                    raise TypeError("a table with other keys than strings and integers")
                _of(stack[-1], dict).update(zip(items[::2], items[1::2], strict=True))
            elif name == "GLOBAL":
                stack.append(_Name(*str(argument).split(" ", 1)))
            elif name == "BINPERSID":
                stack.append(self._storage(*_of(stack.pop(), tuple)))
            elif name == "REDUCE":
                arguments = _of(stack.pop(), tuple)
                stack.append(self._made(_of(stack.pop(), _Name), arguments))
            elif name == "BUILD":
                _note(_of(stack[-2], collections.OrderedDict), _of(stack.pop(), dict))
            elif name == "STOP":
                break
            elif name != "PROTO" or argument != 2:
                raise ValueError(f"the instruction {name}, which plain data do not need")
        (value,) = stack
        return value

    def _storage(self, word: str, kind: _Name, key: str, _: str, count: int) -> _Storage:
        known = {f"torch.{name}": dtype for name, dtype in _DTYPES.items()}
        dtype = {**known, "torch.storage.UntypedStorage": None}[str(kind)]
        return _Storage(_of(key, str), dtype, _of(count, int))

    def _made(self, name: _Name, arguments: tuple[Any, ...]) -> Any:
        if str(name) == "collections.OrderedDict" and not arguments:
            return collections.OrderedDict()
        if str(name) == "torch._utils._rebuild_parameter":
            return arguments[0]
        if str(name) == "torch._utils._rebuild_tensor_v2":
            return self._tensor(arguments[:4])
        if str(name) == "torch._utils._rebuild_tensor_v3":
            return self._tensor(arguments[:4], _of(arguments[6], _Name))
        raise ValueError(f"{name}, which plain data do not need")

    def _tensor(self, arguments: tuple[Any, ...], newer: _Name | None = None) -> torch.Tensor:
        import torch

        storage, offset, size, stride = arguments
        named = _of(storage, _Storage).dtype
        if named is None:  # a newer dtype of PyTorch
            named = {f"torch.{each}": each for each in _NEWER_DTYPES}[str(newer)]
        dtype: torch.dtype = getattr(torch, named)
        count = storage.count if storage.dtype is not None else storage.count // dtype.itemsize
        whole = [offset, *_of(size, tuple), *_of(stride, tuple)]
        if any(type(number) is not int or number < 0 for number in whole):
            raise ValueError(f"a tensor of shape {shown(size)}")
        if math.prod(size) == 0:
            return torch.empty(size, dtype=dtype)
        last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        if last >= count or math.prod(size) > count:
            raise ValueError(f"a tensor of shape {shown(size)} in {count} numbers")
        flat = torch.frombuffer(self._numbers(storage.key, count * dtype.itemsize), dtype=dtype)
        return flat.as_strided(size, stride, offset)

    def _numbers(self, key: str, size: int) -> bytearray:
        member = self._members[f"{self._root}data/{key}"]
        if member.file_size != size:
            raise ValueError(f"{shown(member.filename)} has {member.file_size} bytes, not {size}")
        if key not in self._read:
            data = bytearray(size)
            with self._archive.open(member) as stream:
                at = 0
                while part := stream.read(_CHUNK):
                    data[at : at + len(part)] = part
                    at += len(part)
            if at != size:
                raise ValueError(f"{shown(member.filename)} does not have its {size} bytes")
            self._read[key] = data
        return self._read[key]


def _of(value: Any, kind: type) -> Any:
    if not isinstance(value, kind):
        raise TypeError(f"a {type(value).__name__}, where a {kind.__name__.strip('_')} is expected")
    return value


def _note(table: collections.OrderedDict[Any, Any], attributes: dict[Any, Any]) -> None:
    """Keep the versions of a state dict's modules; no other attribute is ever set."""
    versions = attributes.get("_metadata")
    if isinstance(versions, dict) and all(isinstance(each, dict) for each in versions.values()):
        table._metadata = versions  # type: ignore[attr-defined]


def _check_extent(root: Any) -> None:
    """Raise ValueError for a value too large, too deep or endless for those who use it."""
    import torch

    leaves = (torch.Tensor, str, int, float, type(None))
    level, parts = [root], 0
    for _ in range(MAX_DEPTH):
        inner: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                inner.extend(value.values())
            elif isinstance(value, (list, tuple)):
                inner.extend(value)
            elif not isinstance(value, leaves):
                raise TypeError(f"a {type(value).__name__.strip('_')}: {shown(value)}")
            if parts + len(inner) > MAX_PARTS:
                raise ValueError(f"more than {MAX_PARTS} values")
        parts += len(inner)
        level = inner
        if not level:
            return
    raise ValueError(f"values nested more than {MAX_DEPTH} deep")


def open_archive(stream: IO[bytes], limit: int, *, packed: bool = True) -> zipfile.ZipFile:
    """Open a zip archive whose members, unpacked, have at most ``limit`` bytes together.

    Raises one of ``DAMAGED`` otherwise. Members may be deflated if ``packed``; Python unpacks BZ2
    and LZMA without any bound. Read members with :func:`member_bytes`, or in bounded parts.
    """
    _check_directory(stream)
    archive = zipfile.ZipFile(stream)
    allowed = {zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED} if packed else {zipfile.ZIP_STORED}
    for member in archive.infolist():
        if not packed and "/code/" in member.filename:
            raise ValueError(
                "it is a TorchScript program of torch.jit.save, which is not run; its weights are "
                "those of torch.jit.load(path).state_dict()"
            )
        if member.compress_type not in allowed or member.flag_bits & 1:
            raise ValueError(
                f"{shown(member.filename)} is packed by method {member.compress_type}"
                f"{' and encrypted' * (member.flag_bits & 1)}, which is not read"
            )
    size = sum(member.file_size for member in archive.infolist())
    if size > limit:
        raise ValueError(f"it unpacks to {size} bytes, more than {limit}")
    return archive


def _check_directory(stream: IO[bytes]) -> None:
    """Raise ValueError if the table of members, which zipfile reads as a whole, is too large."""
    end = stream.seek(0, io.SEEK_END)
    stream.seek(max(0, end - 98))
    tail = stream.read(98)
    if len(tail) < 22 or tail[-22:-18] != b"PK\5\6" or tail[-2:] != b"\0\0":
        raise ValueError("it is no zip archive, or continues after its end")
    size = int.from_bytes(tail[-10:-6], "little")
    if tail[-42:-38] == b"PK\6\7":  # above 4 GiB the sizes are in the record before the end
        if int.from_bytes(tail[-34:-26], "little") != end - 98:
            raise ValueError("it is no zip archive")
        size = max(size % 0xFFFFFFFF, int.from_bytes(tail[-58:-50], "little"))
    if size > MAX_DIRECTORY:
        raise ValueError(f"its table of members has {size} bytes")


def member_bytes(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> bytes:
    """Return a member's content; one of ``DAMAGED`` if it is damaged or not of its stated size."""
    with archive.open(member) as stream:
        # One byte more than stated, to notice a member that unpacks to more.
        data = stream.read(member.file_size + 1)
    if len(data) != member.file_size:
        raise ValueError(f"{shown(member.filename)} does not have its {member.file_size} bytes")
    return data


def read_npz(data: bytes, limit: int, *, packed: bool = True) -> dict[str, NDArray[Any]]:
    """Return the arrays of an ``.npz`` file, of at most ``limit`` bytes together, by name.

    ModelCorruptError, with only the reason, if it holds anything but numbers, flags and text, or is
    damaged. Only if ``packed`` may it be of ``numpy.savez_compressed``.
    """
    try:
        with open_archive(io.BytesIO(data), limit, packed=packed) as archive:
            return {
                member.filename.removesuffix(".npy"): _array(member_bytes(archive, member))
                for member in archive.infolist()
            }
    except DAMAGED as error:
        raise ModelCorruptError(reason_of(error)) from error


def read_npy(data: bytes) -> NDArray[Any]:
    """Return the array of an ``.npy`` file, see :func:`read_npz`."""
    try:
        return _array(data)
    except DAMAGED as error:
        raise ModelCorruptError(reason_of(error)) from error


def _array(data: bytes) -> NDArray[Any]:
    """Return the array of an ``.npy`` file; it must be as long as its header says."""
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    if version == (1, 0):
        header = np.lib.format.read_array_header_1_0(stream, MAX_ARRAY_HEADER)
    elif version == (2, 0):
        header = np.lib.format.read_array_header_2_0(stream, MAX_ARRAY_HEADER)
    else:
        raise ValueError(f"an array of format {version}")
    shape, by_columns, dtype = header
    if dtype.kind not in "biufU" or dtype.itemsize == 0:
        raise ValueError(f"an array of {shown(dtype)}, where numbers, flags and text are known")
    if math.prod(shape) * dtype.itemsize != len(data) - stream.tell() or min(shape, default=0) < 0:
        raise ValueError(f"an array of shape {shape} in {len(data)} bytes")
    flat = np.frombuffer(data, dtype, offset=stream.tell())
    return flat.reshape(shape, order="F" if by_columns else "C").copy()


def reason_of(error: BaseException) -> str:
    """Return an error's text for a message: short, in one line, never empty."""
    text = shown(error).rstrip(".")
    if not text or isinstance(error, LookupError):  # whose text is only the key
        return f"{type(error).__name__} {text}".strip()
    return text


def shown(value: object, most: int = 200) -> str:
    """Return a text from a file for a message: short, printable, in one line."""
    text = " ".join(str(value).split())[:most]
    return "".join(letter if letter.isprintable() else "?" for letter in text)
