"""Services in tests: a folder of their own, which processes they have, and callers to be killed.

Spawned children import this module and not the tests, so that they start quickly.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from waiting import until

from vinoreward.backends.network import NetworkSpec, TensorSpec
from vinoreward.backends.serving.client import SharedBackend
from vinoreward.backends.serving.places import FOLDER

if TYPE_CHECKING:
    import pytest

PIXELS = (2, 4, 3)
SMALL_SLOT = 256


def save_network(path: Path, scale: float = 1.0, operator: str = "Identity") -> NetworkSpec:
    """Write a network: the picture's sums of rows and its sum, times ``scale``, exact in float32.

    ``operator`` is applied to the pixel less 100 first; ``Sqrt`` gives NaN for dark pixels.
    """
    constants = {
        "hundred": np.array([100], np.float32),
        "scale": np.array([scale], np.float32),
        "rows": np.array([2, 3], np.int64),
        "all": np.array([1], np.int64),
    }
    nodes = [
        helper.make_node("Cast", ["pictures"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("Sub", ["float", "hundred"], ["less"]),
        helper.make_node(operator, ["less"], ["done"]),
        helper.make_node("ReduceSum", ["done", "rows"], ["parts"], keepdims=0),
        helper.make_node("ReduceSum", ["parts", "all"], ["whole"], keepdims=1),
        helper.make_node("Concat", ["parts", "whole"], ["joined"], axis=1),
        helper.make_node("Mul", ["joined", "scale"], ["out"]),
    ]
    graph = helper.make_graph(
        nodes,
        "sums",
        [helper.make_tensor_value_info("pictures", TensorProto.UINT8, ["N", *PIXELS])],
        [helper.make_tensor_value_info("out", TensorProto.FLOAT, ["N", 3])],
        [numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.save(model, str(path))
    return NetworkSpec(path, TensorSpec((None, *PIXELS), "uint8"), TensorSpec((None, 3), "float32"))


def sums(batch: np.ndarray, scale: float = 1.0) -> np.ndarray:
    """The answer of :func:`save_network`, worked out by NumPy; exact, as the sums are small."""
    parts = (batch.astype(np.float32) - 100).sum(axis=(2, 3))
    return np.concatenate([parts, parts.sum(axis=1, keepdims=True)], axis=1) * np.float32(scale)


def pictures(count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, *PIXELS), dtype=np.uint8)


def services(folder: Path) -> list[int]:
    """Process ids of the services that live in a folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if b"backends.serving.server" not in (entry / "cmdline").read_bytes():
                continue
            variables = (entry / "environ").read_bytes().split(b"\0")
            if f"{FOLDER}={folder}".encode() in variables:
                found.append(int(entry.name))
    return sorted(found)


def nothing_left(folder: Path, seconds: float = 60.0) -> bool:
    """Wait until no service lives in a folder and no file is in it."""
    return until(lambda: not services(folder) and not list(folder.iterdir()), seconds)


@contextlib.contextmanager
def own_folder(path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A test's own runtime folder; at the end nothing may be left of its services."""
    folder = path / "runtime"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv(FOLDER, str(folder))
    yield folder
    try:
        nothing_left(folder, 30)
    except AssertionError as error:
        left = services(folder), [path.name for path in folder.iterdir()]
        raise AssertionError(left) from error
    finally:
        for pid in services(folder):
            kill(pid)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


@contextlib.contextmanager
def child(
    method: str, target: Callable[..., None], *arguments: Any
) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run ``target(connection, *arguments)`` in a process; kill it at the end."""
    context: Any = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    # A server of forks may have been started by an earlier test, with that one's folder.
    work = (os.environ[FOLDER], target, theirs, *arguments)
    process = context.Process(target=_in_folder, args=work, daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, ours
    finally:
        process.kill()
        process.join()
        process.close()
        ours.close()


def _in_folder(folder: str, target: Callable[..., None], *arguments: Any) -> None:
    os.environ[FOLDER] = folder
    target(*arguments)


def ask_once(connection: Connection, backend: SharedBackend, seed: int) -> None:
    """Wait for a word, ask once and say who answered; stay until told to go."""
    connection.recv()
    batch = pictures(3, seed)
    right = bool(np.array_equal(backend.infer(batch), sums(batch)))
    connection.send((right, backend.pid))
    connection.recv()


def ask_forever(
    connection: Connection, backend: SharedBackend, tally: Path, number: int, calls: int
) -> None:
    """Ask; count in a file, which survives a kill, what was asked, answered and wrong."""
    counts = np.memmap(tally, np.int64, "r+").reshape(-1, 3)[number]
    random = np.random.default_rng(number)
    while counts[0] < calls:
        batch = random.integers(0, 256, (int(random.integers(1, 6)), *PIXELS), dtype=np.uint8)
        counts[0] += 1
        answer = backend.infer(batch)
        counts[2] += not np.array_equal(answer, sums(batch))
        counts[1] += 1
    backend.close()
    connection.send("done")


def ask_versions(connection: Connection, backend: SharedBackend, scales: Sequence[float]) -> None:
    """Ask until told to stop; send the versions met, and how many answers were of none or mixed."""
    random = np.random.default_rng(1)
    met, mixed = [], 0
    while not connection.poll():
        batch = random.integers(0, 256, (4, *PIXELS), dtype=np.uint8)
        answer, version = backend.infer_versioned(batch)
        mixed += not np.array_equal(answer, sums(batch, scales[version]))
        if not met or met[-1] != version:
            met.append(version)
    connection.send((met, mixed))
