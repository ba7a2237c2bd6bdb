"""Nothing is sent, written or started behind the user's back, and imports stay light."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from task_runs import run_python
from watched_process import Seen, watch


def bare_environment(home: Path) -> dict[str, str]:
    """This environment without what switches telemetry off: it must be off without that.

    Ray starts a cluster of its own, whatever else runs on this machine.
    """
    off = ("CI", "TF_BUILD", "JENKINS_URL", "NNCF_CI", "NNCF_DEV", "VINOREWARD_OPENVINO_TELEMETRY")
    off += ("ORT_DISABLE_TELEMETRY", "RAY_USAGE_STATS_ENABLED", "XDG_CACHE_HOME")
    environment = {name: value for name, value in os.environ.items() if name not in off}
    own = {"HOME": str(home), "USERPROFILE": str(home), "RAY_ADDRESS": "local"}
    return environment | own | {"OMP_NUM_THREADS": "1"}


def watched(home: Path, *command: str) -> Seen:
    """Run a command with ``home``, watched by the kernel; it must succeed."""
    seen = watch(command, bare_environment(home))
    assert seen.returncode == 0, seen.output
    return seen


def written(home: Path) -> set[str]:
    """The files in the home folder, by their first two folders."""
    files = (item.relative_to(home) for item in home.rglob("*") if item.is_file())
    return {"/".join(item.parts[:2]) for item in files}


def test_the_watcher_sees_native_code_ask_a_name_server(tmp_path: Path) -> None:
    """What the resolver sends raises no audit event, and is seen all the same."""
    code = (
        "import contextlib, socket\n"
        "with contextlib.suppress(OSError):\n    socket.getaddrinfo('example.invalid', 80)\n"
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(('192.0.2.77', 9))\n"
    )
    seen = watched(tmp_path, sys.executable, "-c", code)
    assert "192.0.2.77" in seen.addresses
    assert {"example.invalid"} >= seen.names


def test_runtimes_are_imported_without_telemetry(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    code = (
        "import sys, time, vinoreward, onnxruntime\n"
        "from vinoreward.backends.runtime import import_openvino\n"
        "ov = import_openvino()\n"
        "ov.Core()\n"
        "assert 'openvino_telemetry' not in sys.modules\n"
        "assert import_openvino() is ov is sys.modules['openvino']\n"
        "time.sleep(0.5)\n"  # what telemetry does, it does from a thread
    )
    seen = watched(tmp_path, sys.executable, "-c", code)
    assert (seen.addresses, seen.names, written(tmp_path)) == (set(), set(), set())


@pytest.mark.slow
def test_loading_and_quantizing_connect_to_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("nncf")
    pytest.importorskip("torch")
    home = tmp_path / "home"
    home.mkdir()
    # Kernels that are compiled already.
    warp = pytest.importorskip("warp")
    warp.init()
    monkeypatch.setenv("WARP_CACHE_PATH", str(warp.config.kernel_cache_dir))
    code = (
        "from pathlib import Path\n"
        "from vinoreward_training.quantize.network import quantize_onnx\n"
        "from vinoreward.bundles.bundle import Bundle\n"
        "bundle = Bundle.load('panda-hover-classifier')\n"
        "for name in ('openvino', 'onnxruntime', 'torch'):\n"
        "    bundle.backend(name).close()\n"
        f"out = Path({str(tmp_path / 'int8.onnx')!r})\n"
        "quantize_onnx(bundle.path / 'model.onnx', out, bundle.golden.images[:1])\n"
        "from nncf.telemetry.wrapper import telemetry\n"
        "telemetry.send_event('nncf', 'test', 'test')\n"
        "import time\n"
        "time.sleep(0.5)\n"  # what telemetry does, it does from a thread
    )
    seen = watched(home, sys.executable, "-c", code)
    assert (seen.addresses, seen.names, written(home)) == (set(), set(), set())


@pytest.mark.slow
def test_ray_reports_no_usage(tmp_path: Path) -> None:
    """Ray asks whether it is in a cloud, at addresses that stay within it, and reports nothing."""
    pytest.importorskip("ray")
    code = (
        "from vinoreward_actors.actor_learner.engines.ray.cluster import Cluster\n"
        "cluster = Cluster(1)\n"
        "assert cluster.ray._private.worker._global_node is not None\n"
        "cluster.close()\n"
    )
    seen = watched(tmp_path, sys.executable, "-c", code)
    assert seen.names <= {"metadata.google.internal"}
    # A UDP socket is pointed at 8.8.8.8 to learn the own address; nothing is sent there.
    servers = {
        line.split()[1]
        for line in Path("/etc/resolv.conf").read_text().splitlines()
        if line.startswith("nameserver")
    }
    assert seen.addresses <= {"8.8.8.8", "169.254.169.254", *servers}
    assert written(tmp_path) <= {".ray/auth_token"}


def test_ctrl_c_while_openvino_is_imported_is_ctrl_c(tmp_path: Path) -> None:
    package = tmp_path / "openvino"
    package.mkdir()
    # What CPython makes of a KeyboardInterrupt in the middle of a module of C++.
    (package / "__init__.py").write_text(
        "raise ImportError('initialization failed') from KeyboardInterrupt()\n"
    )
    code = (
        f"import sys\nsys.path.insert(0, {str(tmp_path)!r})\n"
        "from vinoreward.backends.runtime import import_openvino\n"
        "try:\n    import_openvino()\nexcept KeyboardInterrupt:\n    print('stopped')\n"
    )
    assert run_python(code).strip() == "stopped"
