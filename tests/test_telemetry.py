"""Nothing is sent, written or started behind the user's back, and imports stay light."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

# The interpreter's audit hook reports every process started, socket connected and file written.
WATCH = """
import os, sys
seen = []
home = os.path.realpath(os.environ["HOME"])
def watch(event, arguments):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "socket.connect",
                 "socket.getaddrinfo", "socket.gethostbyname"):
        seen.append((event, repr(arguments)[:200]))
    elif event == "os.mkdir" and os.path.realpath(arguments[0]).startswith(home):
        seen.append((event, arguments[0]))
sys.addaudithook(watch)
"""

REPORT = """
import time
time.sleep(0.5)  # what telemetry does, it does from a thread
network = [event for event in seen if event[0] != "subprocess.Popen"]
processes = [event for event in seen if "openvino" in event[1] or "python" in event[1]]
print(repr(network + processes))
"""


def run(code: str, home: Path) -> str:
    """Run code in a fresh interpreter whose home folder is ``home``; return what it printed."""
    # The variables that switch telemetry off in CI are taken away: it must be off without them.
    off = ("CI", "TF_BUILD", "JENKINS_URL", "NNCF_CI", "NNCF_DEV", "VINOREWARD_OPENVINO_TELEMETRY")
    environment = {name: value for name, value in os.environ.items() if name not in off}
    environment.update(HOME=str(home), USERPROFILE=str(home), OMP_NUM_THREADS="1")
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1] if done.stdout.strip() else ""


def test_openvino_is_imported_without_telemetry(tmp_path: Path) -> None:
    code = WATCH + (
        "from vinoreward.backends.telemetry import import_openvino\n"
        "ov = import_openvino()\n"
        "ov.Core()\n"
        "assert 'openvino_telemetry' not in sys.modules\n"
        "assert import_openvino() is ov is sys.modules['openvino']\n"
    )
    assert run(code + REPORT, tmp_path) == "[]"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_nncf_is_imported_without_telemetry(tmp_path: Path) -> None:
    pytest.importorskip("nncf")
    code = WATCH + (
        "from vinoreward.backends.telemetry import import_nncf\n"
        "nncf = import_nncf()\n"
        "from nncf.telemetry.wrapper import telemetry\n"
        "telemetry.send_event('nncf', 'test', 'test')\n"
    )
    assert run(code + REPORT, tmp_path) == "[]"
    assert not (tmp_path / "intel").exists()


def test_the_stub_does_not_stay(tmp_path: Path) -> None:
    """Another package may import openvino_telemetry afterwards; that is its own decision."""
    code = (
        "import sys\n"
        "from vinoreward.backends.telemetry import import_openvino\n"
        "import_openvino()\n"
        "import importlib.util\n"
        "print(importlib.util.find_spec('openvino_telemetry') is not None)\n"
    )
    pytest.importorskip("openvino_telemetry")
    assert run(code, tmp_path) == "True"


def test_import_vinoreward_is_light(tmp_path: Path) -> None:
    code = (
        "import sys, vinoreward, vinoreward.backends.registry\n"
        "heavy = ('torch', 'torchvision', 'openvino', 'onnxruntime', 'onnx', 'nncf', 'pybullet',"
        " 'warp', 'stable_baselines3', 'openvino_telemetry')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    assert run(code, tmp_path) == "[]"


def test_listing_backends_is_light(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from vinoreward.backends.registry import available_backends\n"
        "assert set(available_backends()) >= {'openvino', 'onnxruntime', 'torch'}\n"
        "print([name for name in ('torch', 'openvino', 'onnxruntime') if name in sys.modules])\n"
    )
    assert run(code, tmp_path) == "[]"


def test_running_openvino_leaves_torch_and_onnx_out(tmp_path: Path) -> None:
    """An installation without the training extra must be enough to run a bundle."""
    code = (
        "import sys\n"
        "sys.modules['torch'] = sys.modules['onnx'] = sys.modules['onnxruntime'] = None\n"
        "from vinoreward.backends.openvino import OpenVINOBackend\n"
        "from vinoreward.backends.telemetry import import_openvino\n"
        "import_openvino()\n"
        "print('fine')\n"
    )
    assert run(code, tmp_path) == "fine"


def test_ctrl_c_while_openvino_is_imported_is_ctrl_c(tmp_path: Path) -> None:
    package = tmp_path / "openvino"
    package.mkdir()
    # What CPython makes of a KeyboardInterrupt in the middle of a module of C++.
    (package / "__init__.py").write_text(
        "raise ImportError('initialization failed') from KeyboardInterrupt()\n"
    )
    code = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "from vinoreward.backends.telemetry import import_openvino\n"
        "try:\n    import_openvino()\nexcept KeyboardInterrupt:\n    print('stopped')\n"
    )
    assert run(code, tmp_path).strip() == "stopped"
