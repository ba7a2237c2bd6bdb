"""Networks of strangers are tried in a process with limits, once."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tiny_network import expected_logits, forge, golden_images, save_tiny

from vinoreward.backends import probe
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ModelCorruptError, ModelRefusedError
from vinoreward_assets import folder

onnx = pytest.importorskip("onnx")

from onnx import TensorProto, helper, numpy_helper  # noqa: E402

SIDE = 64


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return save_tiny(tmp_path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache folder; returns where verdicts are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "vinoreward" / "networks"


@pytest.fixture
def trials(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was tried in a child."""
    tried: list[str] = []
    ask = probe._ask

    def noted(job: str, *more: Any) -> bytes:
        tried.append(job)
        return ask(job, *more)

    monkeypatch.setattr(probe, "_ask", noted)
    return tried


def scores(bundle: Bundle, backend: str = "openvino") -> Any:
    with Bundle.load(bundle.path).backend(backend) as loaded:
        return loaded.infer(golden_images())


def test_a_network_is_tried_once(bundle: Bundle, cache: Path, trials: list[str]) -> None:
    for backend in ("openvino", "onnxruntime", "openvino", "onnxruntime"):
        np.testing.assert_allclose(
            scores(bundle, backend), expected_logits(golden_images()), atol=1e-4
        )
    assert len(trials) == 2 == len(list(cache.iterdir()))


def test_an_upgraded_runtime_tries_again(
    bundle: Bundle, cache: Path, trials: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO reads it in every trial, whichever library runs it."""
    version = importlib.metadata.version

    def upgraded(name: str) -> str:
        return version(name) + ".post1" * (name == "openvino")

    scores(bundle, "onnxruntime")
    monkeypatch.setattr(importlib.metadata, "version", upgraded)
    scores(bundle, "onnxruntime")
    scores(bundle, "onnxruntime")
    assert len(trials) == 2


def test_shipped_and_trusted_networks_are_not_tried(
    bundle: Bundle, cache: Path, trials: list[str]
) -> None:
    networks = list(folder().glob("*/model*.onnx"))
    digests = {hashlib.sha256(path.read_bytes()).hexdigest() for path in networks}
    assert digests == probe.SHIPPED, "write the networks' SHA-256 into backends/probe.py"
    for name in ("panda-hover-classifier", "panda-hover-encoder"):
        Bundle.load(name).backend().close()
    Bundle.load(bundle.path, trusted=True).backend().close()
    assert not trials and not cache.exists()


def test_a_damaged_verdict_is_none(
    bundle: Bundle, cache: Path, trials: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    scores(bundle)
    (entry,) = cache.iterdir()
    whole = entry.read_bytes()
    for number, content in enumerate((b"", b'{"passed": "other"}'), 2):
        entry.write_bytes(content)
        scores(bundle)
        assert len(trials) == number and entry.read_bytes() == whole
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null/cache")  # cannot be made
    scores(bundle)
    assert len(trials) == 4


def graph(nodes: list[Any], **constants: Any) -> bytes:
    """A network of ``x`` (N, 3, 64, 64) float32 whose result is ``y`` (N, 2)."""
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, SIDE, SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 2])],
        [numpy_helper.from_array(np.asarray(value), name) for name, value in constants.items()],
    )
    opsets = [helper.make_opsetid("", 17)]
    content: bytes = helper.make_model(made, opset_imports=opsets, ir_version=9).SerializeToString()
    return content


def ending(name: str) -> list[Any]:
    """Nodes that make two numbers per image of the result ``name``."""
    return [
        helper.make_node("GlobalAveragePool", [name], ["pooled"]),
        helper.make_node("Flatten", ["pooled"], ["flat"]),
        helper.make_node("Slice", ["flat", "from", "to", "axis"], ["y"]),
    ]


PLACES: dict[str, Any] = {"from": np.array([0]), "to": np.array([2]), "axis": np.array([1])}


def much_memory() -> bytes:
    """Forty results of 64 Mi numbers that are all needed in the end: 10 GiB."""
    nodes = [helper.make_node("Resize", ["x", "", "by"], ["r"])]
    nodes += [helper.make_node("Sin" if n % 2 else "Cos", ["r"], [f"s{n}"]) for n in range(40)]
    nodes += [
        helper.make_node("MatMul", [f"s{n}", f"t{n - 1}" if n else "r"], [f"t{n}"])
        for n in range(40)
    ]
    return graph(nodes + ending("t39"), by=np.array([1, 1, 70, 70], np.float32), **PLACES)


def much_work() -> bytes:
    """Convolutions whose results are small and whose kernels are large."""
    channels = 256
    weights = np.ones((channels, channels, 31, 31), np.float32) * 1e-5
    first = np.ones((channels, 3, 1, 1), np.float32)
    nodes = [helper.make_node("Conv", ["x", "first"], ["c0"])]
    nodes += [
        helper.make_node("Conv", [f"c{n}", "w"], [f"c{n + 1}"], pads=[15] * 4) for n in range(9)
    ]
    return graph(nodes + ending("c9"), w=weights, first=first, **PLACES)


def field(number: int, value: bytes) -> bytes:
    """One field of protobuf."""
    size, length = len(value), bytearray()
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + value


def many_nodes() -> bytes:
    """100 MB of operations."""
    one = field(1, helper.make_node("Relu", ["x"], ["y"]).SerializeToString())
    return b"\x08\x09" + field(7, one * ((100 << 20) // len(one)))


def nested() -> bytes:
    """A graph in an attribute of a node of a graph, and so on."""
    inner = b""
    for _ in range(5_000):
        inner = field(1, field(5, field(6, inner)))
    return field(7, inner)


HOSTILE: dict[str, Callable[[], bytes]] = {
    "memory": much_memory,
    "work": much_work,
    "nodes": many_nodes,
    "nested": nested,
    "empty": bytes,
    "cut": lambda: graph(ending("x"), **PLACES)[:-40],
}


LOAD = """
import resource, sys
from vinoreward import Bundle
from vinoreward.errors import VinorewardError
facts = dict(labels=["no", "yes"], success_label="yes", mean=[0] * 3, std=[1] * 3)
try:
    Bundle.from_model(sys.argv[1], **facts)
except VinorewardError as error:
    print(error)
# Not ru_maxrss, which counts what the process had before it became this program.
(own,) = (line for line in open("/proc/self/status") if line.startswith("VmHWM:"))
print(own.split()[1])
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] * (name == "work")) for name in HOSTILE]
)
def test_a_hostile_network_ends_in_a_sentence(tmp_path: Path, name: str, cache: Path) -> None:
    """Within 60 s and 1 GB of memory, this process and its child each."""
    path = tmp_path / "net.onnx"
    path.write_bytes(HOSTILE[name]())
    command = [sys.executable, "-c", LOAD, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    said, own, child = done.stdout.rsplit("\n", 3)[:3]
    assert "net.onnx" in said and "Expected" in said
    assert max(int(own), int(child)) < 1_000_000 + 6 * 102_400
    assert not cache.exists() or len(list(cache.iterdir())) <= 1  # of reading, not of running


def test_what_is_no_file_is_told(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    (tmp_path / "folder.onnx").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(ModelCorruptError, match="no plain file"):
            Bundle.from_model(tmp_path / f"{name}.onnx", labels=["a", "b"], success_label="a")


def test_a_child_that_is_killed_is_told(
    bundle: Bundle, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the kernel when memory ends."""
    script = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(probe, "python_command", lambda *_: [sys.executable, "-c", script])
    with pytest.raises(ModelRefusedError, match=r"ended the process that tried it \(SIGKILL\)"):
        scores(bundle)


def test_ctrl_c_ends_the_child(bundle: Bundle, tmp_path: Path, cache: Path) -> None:
    forge(bundle, "model.onnx", much_work())
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from vinoreward.bundles.bundle import Bundle\nprint('go', flush=True)\n"
        f"Bundle.load({str(bundle.path)!r}).backend()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        children = Path(f"/proc/{parent.pid}/task/{parent.pid}/children")
        deadline = time.monotonic() + 30
        while not (ids := children.read_text().split()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.5)  # not while it starts
        parent.send_signal(signal.SIGINT)
        _, told = parent.communicate(timeout=30)
    assert "KeyboardInterrupt" in told
    assert ids and not Path(f"/proc/{ids[0]}").exists()


@pytest.mark.full
def test_networks_that_people_export_pass(tmp_path: Path, cache: Path) -> None:
    models = pytest.importorskip("torchvision.models")
    from vinoreward.backends.convert import export_onnx
    from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
    from vinoreward.backends.torch_networks import WithPreprocess

    path = tmp_path / "network.onnx"
    net = models.SwinTransformer([4, 4], 8, [1, 1], [2, 2], [4, 4], num_classes=2).eval()
    export_onnx(WithPreprocess(net, IMAGENET_MEAN, IMAGENET_STD), path, SIDE, SIDE)
    assert b".py" not in path.read_bytes(), "the file names sources of this machine"
    own = Bundle.from_model(path, labels=["no", "yes"], success_label="yes", output="logits")
    for backend in ("openvino", "onnxruntime"):
        own.backend(backend).load().close()
    assert len(list(cache.iterdir())) == 3  # read once, run twice
