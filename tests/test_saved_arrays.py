"""Arrays and archives from strangers take no more memory than is stated."""

from __future__ import annotations

import bz2
import io
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from little_memory import memory_below

from vinoreward.errors import ModelCorruptError
from vinoreward.files import read_npz
from vinoreward_actors.actor_learner.compressor import read_state

SIZE = 16 << 20
"""Bytes that the members unpack to."""
STATED = 1000


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


def lying(name: bytes, packed: bytes, method: int) -> bytes:
    """An archive of one member that states another size than it unpacks to."""
    told = struct.pack("<IIIHH", 0, len(packed), STATED, len(name), 0)
    local = b"PK\3\4" + struct.pack("<HHHHH", 63, 0, method, 0, 0) + told + name + packed
    entry = b"PK\1\2" + struct.pack("<HHHHHH", 63, 63, 0, method, 0, 0) + told
    entry += bytes(14) + name
    return (
        local + entry + struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, len(entry), len(local), 0)
    )


def bomb(kind: str) -> bytes:
    pack, method = {"bzip2": (bz2.compress, 12), "deflate": (deflated, 8)}[kind]
    return lying(b"images.npy", pack(bytes(SIZE)), method)


@pytest.mark.parametrize("kind", ["bzip2", "deflate"])
def test_an_archive_that_says_less_than_it_unpacks_to(kind: str) -> None:
    """A tenth of it at most is unpacked."""
    content = bomb(kind)
    with memory_below(SIZE / 10), pytest.raises(ModelCorruptError):
        read_npz(content, 2 * SIZE)


def test_a_table_of_members_that_is_too_large() -> None:
    table = b"PK\1\2" + bytes(42)
    count = (9 << 20) // len(table)
    end = struct.pack("<4sHHHHIIH", b"PK\5\6", 0, 0, 1, 1, count * len(table), 0, 0)
    with pytest.raises(ModelCorruptError, match="table of members"):
        read_npz(table * count + end, 10**6)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_what_numpy_writes_is_read(save: Callable[..., None]) -> None:
    written = {
        "numbers": np.arange(6, dtype=np.int16).reshape(2, 3),
        "columns": np.asfortranarray(np.random.default_rng(0).normal(size=(3, 4))),
        "one": np.asarray(2.5),
        "none": np.zeros((0, 3), np.float32),
        "flags": np.array([True, False]),
        "text": np.array(["a", "bc"]),
    }
    stream = io.BytesIO()
    save(stream, **written)
    found = read_npz(stream.getvalue(), 10_000)
    assert list(found) == list(written)
    for name, array in written.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].flags.writeable
    with pytest.raises(ModelCorruptError, match=r"unpacks to \d+ bytes, more than 500"):
        read_npz(stream.getvalue(), 500)


def test_arrays_of_anything_else_are_refused() -> None:
    for array, message in (
        (np.array([object()]), "Object arrays"),
        (np.zeros(2, "M8[s]"), "where numbers and text are known"),
    ):
        stream = io.BytesIO()
        np.savez(stream, array=array)
        with pytest.raises(ModelCorruptError, match=message):
            read_npz(stream.getvalue(), 10_000)


def test_a_compressors_state_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "compressor.npz"
    np.savez(path, pushes=np.asarray(-1))
    with pytest.raises(ModelCorruptError, match="no count of pushes"):
        read_state(path)
    path.write_bytes(bomb("deflate"))
    with pytest.raises(ModelCorruptError, match=r"compressor\.npz is damaged: .*restore it"):
        read_state(path)
