"""Arrays and archives from strangers take no more memory than is stated."""

from __future__ import annotations

import bz2
import io
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from little_memory import memory_below
from tiny_network import SPEC, expected_logits, forge, golden_images, network

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import save_bundle
from vinoreward.errors import BundleError, ModelCorruptError
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


@pytest.fixture
def little_memory() -> Iterator[None]:
    """Fail if Python's objects took a tenth of what the members unpack to."""
    with memory_below(SIZE / 10):
        yield


@pytest.mark.parametrize("kind", ["bzip2", "deflate"])
def test_golden_frames_that_say_less_than_they_unpack_to(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("onnx")
    images, model = golden_images(), network(tmp_path / "source.onnx")
    saved = save_bundle(
        tmp_path / "tiny", SPEC, {"model.onnx": model}, images, expected_logits(images)
    )
    bundle = Bundle.load(saved)
    forge(bundle, "golden.npz", bomb(kind))
    request.getfixturevalue("little_memory")
    with pytest.raises(BundleError, match=r"golden\.npz cannot be read: .*save the bundle again"):
        _ = Bundle.load(bundle.path).golden


@pytest.mark.parametrize("kind", ["bzip2", "deflate"])
def test_a_compressors_state_that_says_less_than_it_unpacks_to(
    tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "compressor.npz").write_bytes(bomb(kind))
    request.getfixturevalue("little_memory")
    with pytest.raises(ModelCorruptError, match=r"compressor\.npz is damaged: .*restore it"):
        read_state(tmp_path / "compressor.npz")


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


@pytest.mark.parametrize(
    "array",
    [np.array([object()]), np.zeros(2, "M8[s]")],
)
def test_arrays_of_anything_else_are_refused(array: np.ndarray) -> None:
    stream = io.BytesIO()
    np.savez(stream, array=array)
    with pytest.raises(ModelCorruptError, match=r"where numbers and text are known|Object arrays"):
        read_npz(stream.getvalue(), 10_000)


@pytest.mark.parametrize("pushes", [-1, "many"])
def test_a_count_of_pushes_that_is_none(tmp_path: Path, pushes: object) -> None:
    np.savez(tmp_path / "compressor.npz", pushes=np.asarray(pushes))
    with pytest.raises(ModelCorruptError, match="no count of pushes"):
        read_state(tmp_path / "compressor.npz")
