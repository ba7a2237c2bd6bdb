"""Files of tensors: strangers' give tensors or a sentence, our own come back as they were."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from little_memory import memory_below
from tiny_network import forge

torch = pytest.importorskip("torch")

from vinoreward.bundles.bundle import Bundle  # noqa: E402
from vinoreward.bundles.importers.modules import load_state  # noqa: E402
from vinoreward.errors import ModelCorruptError, VinorewardError  # noqa: E402
from vinoreward.files import read_state, save_state  # noqa: E402
from vinoreward_actors.actor_learner.checkpoint import load_checkpoint  # noqa: E402
from vinoreward_actors.policies.policy import random_policy  # noqa: E402
from vinoreward_actors.policies.spec import mlp  # noqa: E402
from vinoreward_actors.policies.wire import load_policy, save_policy  # noqa: E402
from vinoreward_assets import panda_hover_classifier  # noqa: E402
from vinoreward_training.classifier.networks import read_weights  # noqa: E402
from vinoreward_training.classifier.training import read_record  # noqa: E402
from vinoreward_training.policy.checkpoint import read_tensors  # noqa: E402

LARGE = 50_000_000
"""Bytes that a file of a few hundred asks for."""


def archive(pickled: bytes, *, method: int = zipfile.ZIP_STORED, **records: bytes) -> bytes:
    """A file of ``torch.save`` with that pickle."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as made:
        made.writestr("archive/data.pkl", pickled)
        made.writestr("archive/version", "3\n")
        made.writestr("archive/byteorder", "little")
        for name, data in records.items():
            made.writestr(f"archive/data/{name}", data)
    return stream.getvalue()


def called(module: str, name: str, arguments: bytes) -> bytes:
    return b"\x80\x02c" + f"{module}\n{name}\n".encode() + arguments + b"R."


def whole(number: int) -> bytes:
    return b"\x8a\x08" + number.to_bytes(8, "little")


def tensor(count: int, size: bytes, stride: bytes, offset: bytes = b"K\0") -> bytes:
    """A pickle of one tensor, told as a storage and how it lies in there."""
    storage = (
        b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"
        + b"0X\3\0\0\0cpu"
        + whole(count)
        + b"tQ"
    )
    rest = offset + size + stride + b"\x89)t"
    return b"\x80\x02}X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\n(" + storage + rest + b"Rs."


FOUR = bytes(16)
HOSTILE = {
    "bytearray": archive(
        called("builtins", "bytearray", b"(J" + LARGE.to_bytes(4, "little") + b"t")
    ),
    "packed": archive(
        tensor(LARGE // 4, whole(LARGE // 4) + b"\x85", b"K\1\x85"),
        method=zipfile.ZIP_DEFLATED,
        **{"0": bytes(LARGE)},
    ),
    "more than there is": archive(tensor(1000, b"M\xe8\3\x85", b"K\1\x85"), **{"0": FOUR}),
    "module": archive(called("os", "getcwd", b")")),
    "deep": archive(b"\x80\x02}X\1\0\0\0a" + b"]" * 2000 + b"a" * 1999 + b"s."),
}


READERS: dict[str, Callable[[Path], Any]] = {
    "import": load_state,
    "finetune": read_weights,
    "train": read_tensors,
    "actors": lambda path: load_checkpoint(path.parent),
}


def test_what_no_state_needs_is_refused_in_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    for content in HOSTILE.values():
        path.write_bytes(content)
        with (
            memory_below(LARGE / 5),
            pytest.raises(ModelCorruptError, match=r"checkpoint\.pt .*Expected .*[;.]") as told,
        ):
            load_state(path)
        assert len(str(told.value)) < 700
        assert str(told.value).isprintable()
        assert "weights_only" not in str(told.value)  # no advice to trust it


def test_a_damaged_file_ends_in_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    for read in READERS.values():
        path.write_bytes(HOSTILE["module"])
        with pytest.raises(ModelCorruptError, match=r"checkpoint\.pt .*Expected .*[;.]"):
            read(path)
        path.unlink()
        os.mkfifo(path)  # is not waited for
        with pytest.raises(VinorewardError):
            read(path)
        path.unlink()


def test_a_strangers_tensors_are_read(tmp_path: Path) -> None:
    state = plain(torch.Generator().manual_seed(0))
    tensors = {**state["network"], **state["kinds"], "columns": state["columns"]}
    tensors["shared"] = tensors["columns"]
    torch.save({"state_dict": tensors, "epoch": 3}, tmp_path / "state.pt")
    found = load_state(tmp_path / "state.pt")
    assert_same(dict(sorted(found.items())), dict(sorted(tensors.items())))


def plain(random_numbers: Any) -> dict[str, Any]:
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    optimizer = torch.optim.Adam(network.parameters())
    network(torch.randn(4, 2, generator=random_numbers)).sum().backward()
    optimizer.step()
    rows = torch.randn(6, 4, generator=random_numbers)
    kinds = ("float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool")
    newer = [name for name in ("uint16", "uint32", "float8_e4m3fn") if hasattr(torch, name)]
    return {
        "network": network.state_dict(),
        "optimizer": optimizer.state_dict(),
        "kinds": {name: torch.ones(3, dtype=getattr(torch, name)) for name in [*kinds, *newer]},
        "columns": rows.T,
        "part": rows[2:4, 1:],
        "whole": rows,
        "one": torch.tensor(2.5),
        "none": torch.zeros(0, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)).detach(),
        "rng": torch.get_rng_state(),
        "plain": [1, -3, 2**40, 2.5, True, None, "text", ("a", (1, [2])), {"x": {5: []}}],
    }


def assert_same(found: Any, wanted: Any) -> None:
    if isinstance(wanted, torch.Tensor):
        assert (found.dtype, found.shape) == (wanted.dtype, wanted.shape)
        assert torch.equal(found.to(torch.float64), wanted.to(torch.float64))
    elif isinstance(wanted, dict):
        assert list(found) == list(wanted)
        assert getattr(found, "_metadata", None) == getattr(wanted, "_metadata", None)
        for name, value in wanted.items():
            assert_same(found[name], value)
    elif isinstance(wanted, (list, tuple)):
        assert type(found) is type(wanted) and len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            assert_same(one, other)
    else:
        assert found == wanted and type(found) is type(wanted)


def test_what_is_written_is_read(tmp_path: Path) -> None:
    state = plain(torch.Generator().manual_seed(0))
    save_state(tmp_path / "state.pt", state)
    found = read_state(tmp_path / "state.pt")
    assert_same(found, state)
    network = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))
    network.load_state_dict(found["network"], strict=True)
    torch.optim.Adam(network.parameters()).load_state_dict(found["optimizer"])


def empty_tensors(count: int) -> bytes:
    """A safetensors file of nothing but names; a million of them take 1.4 GB."""
    entry = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    header = json.dumps({f"{number:x}": entry for number in range(count)}).encode()
    return len(header).to_bytes(8, "little") + header


def as_weights(folder: Path, content: bytes) -> object:
    (folder / "state.safetensors").write_bytes(content)
    return load_state(folder / "state.safetensors")


def as_policy(folder: Path, content: bytes) -> object:
    path = save_policy(folder, random_policy(mlp(3, 2, head="logits", hidden=(4,)), 0))
    path.with_suffix(".safetensors").write_bytes(content)
    told = json.loads(path.read_text()) | {"sha256": hashlib.sha256(content).hexdigest()}
    path.write_text(json.dumps(told))
    return load_policy(path)


def as_network(folder: Path, content: bytes) -> object:
    bundle = Bundle.load(shutil.copytree(panda_hover_classifier(), folder / "bundle"))
    forge(bundle, "model.safetensors", content)
    return Bundle.load(bundle.path).backend("torch")


def as_record(folder: Path, content: bytes) -> object:
    (folder / "weights.safetensors").write_bytes(content)
    return read_record(folder / "weights.safetensors")


@pytest.mark.parametrize("read", [as_weights, as_policy, as_network, as_record])
def test_tensors_without_end_are_refused_unread(
    tmp_path: Path, read: Callable[[Path, bytes], object]
) -> None:
    with pytest.raises(ModelCorruptError, match=r"table of tensors has \d+ bytes, more"):
        read(tmp_path, empty_tensors(20_000))
