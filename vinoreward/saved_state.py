"""Tensors and plain data in one file of ``torch.save``: written whole, read without any pickle.

Such a file is a zip archive with a pickle, which says how the parts belong together, and the
tensors' numbers. ``torch.load(weights_only=True)`` runs no code of the pickle, but 387 bytes can
make it take all memory. Here the few instructions that plain data need are followed, and no others;
a tensor has the numbers that are in the file, and no more.
"""

from __future__ import annotations

import collections
import io
import math
import pickletools
import zipfile
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vinoreward.errors import ModelCorruptError
from vinoreward.files import open_to_read, write_bytes
from vinoreward.saved_arrays import DAMAGED, member_bytes, open_archive, reason_of, shown

if TYPE_CHECKING:
    import torch

MAX_WEIGHTS = 8 << 30
"""Bytes of a network's weights."""
MAX_CHECKPOINT = 64 << 30
"""Bytes of a checkpoint, which may hold a replay of pictures."""
MAX_PICKLE = 8 << 20
"""Bytes that say how the parts belong together; a network of 1000 layers needs 0.2 MiB."""
MAX_PARTS = 1 << 20
"""Values, each counted as often as it is referred to."""
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
    """Write a table of tensors and plain data, as :func:`read_state` reads it.

    Args:
        path: the file; its previous version stays until the new one is complete.
        state: what to write. While it is written, memory holds it a second time.

    Raises:
        RunFolderError: the disk is full or the folder cannot be written.
    """
    import torch

    # torch.save reports a full disk as a RuntimeError about its own C++; writing bytes names it.
    stream = io.BytesIO()
    torch.save(state, stream)
    write_bytes(path, stream.getvalue())


def read_state(path: Path, limit: int = MAX_WEIGHTS) -> dict[str, Any]:
    """Read a table of tensors and plain data that may be anybody's.

    Args:
        path: a file of ``torch.save``, or, if it ends in ``.safetensors``, one of those.
        limit: bytes that it may have; memory takes about as many.

    Returns:
        Names to tensors (of the processor), numbers, text, and lists, tuples and tables of those.

    Raises:
        FileNotFoundError: there is no such file.
        ModelCorruptError: it holds anything else, is damaged or too large; the message says why and
            nothing else.
        ImportError: safetensors is not installed.
    """
    if Path(path).suffix == ".safetensors":
        return _read_safetensors(path, limit)
    try:
        with (
            open_to_read(path, limit) as stream,
            # Nothing is packed: what is read is no larger than the file.
            open_archive(stream, stream.seek(0, io.SEEK_END), packed=False) as archive,
        ):
            found = _Saved(archive).read()
    except FileNotFoundError:
        raise
    except DAMAGED as error:
        raise ModelCorruptError(reason_of(error)) from error
    if not isinstance(found, dict):
        raise ModelCorruptError(f"it holds a {type(found).__name__}, where a table is expected")
    return found


def check_names(state: Mapping[str, Any], **known: Collection[str]) -> None:
    """Check that parts of a state are tables of no other names than are known: they may be set.

    Raises:
        ModelCorruptError: they are not; the message says why and nothing else.
    """
    for part, names in known.items():
        found = state.get(part)
        if not isinstance(found, dict) or not set(found) <= set(names):
            raise ModelCorruptError(f"its {part} are {shown(list(found) if found else found)}")


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
            return dict(safetensors.torch.load(stream.read()))
    except FileNotFoundError:
        raise
    except (safetensors.SafetensorError, *DAMAGED) as error:
        raise ModelCorruptError(reason_of(error)) from error


@dataclass(frozen=True)
class _Name:
    """What a pickle would import: here two words, of which few are known."""

    module: str
    name: str

    def __str__(self) -> str:
        return shown(f"{self.module}.{self.name}")


@dataclass(frozen=True)
class _Storage:
    """The numbers of one or several tensors."""

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
        if self._small("byteorder", b"little") != b"little":
            raise ValueError("its numbers are in the order of other processors")
        member = self._members[self._root + "data.pkl"]
        if member.file_size > MAX_PICKLE:
            raise ValueError(f"its description has {member.file_size} bytes")
        found = self._follow(member_bytes(self._archive, member))
        _check_extent(found)
        return found

    def _small(self, name: str, default: bytes) -> bytes:
        member = self._members.get(self._root + name)
        if member is None or member.file_size > 100:
            return default
        return member_bytes(self._archive, member)

    def _follow(self, pickled: bytes) -> Any:
        """Return what the pickle describes."""
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
                    raise ValueError("a whole number of more than 64 bits")
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
                    raise TypeError("a table with other names than text and whole numbers")
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
        (found,) = stack
        return found

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
        if named is None:  # a type that PyTorch has had for less long
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
    """Keep what a state dict says of its modules' versions; nothing else is set anywhere."""
    versions = attributes.get("_metadata")
    if isinstance(versions, dict) and all(isinstance(each, dict) for each in versions.values()):
        table._metadata = versions  # type: ignore[attr-defined]


def _check_extent(found: Any) -> None:
    """Raise ValueError for what would take those who use it too long, or without end."""
    import torch

    leaves = (torch.Tensor, str, int, float, type(None))
    level, parts = [found], 0
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
