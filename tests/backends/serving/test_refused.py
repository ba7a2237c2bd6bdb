"""Who may not use a service, and what a caller says when there can be none."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from service_children import PIXELS, nothing_left, pictures, services, sums

from vinoreward.backends.network import NetworkSpec
from vinoreward.backends.serving import wire
from vinoreward.backends.serving.client import SharedBackend
from vinoreward.backends.serving.places import FOLDER, runtime_folder
from vinoreward.backends.serving.wire import Frame, Layout, Slot
from vinoreward.errors import ServiceError

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def test_the_folder_is_private(folder: Path, spec: NetworkSpec) -> None:
    with SharedBackend(spec) as backend:
        backend.load()
        modes = {path.stat().st_mode & 0o777 for path in folder.iterdir()}
        assert modes == {0o600}
        assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_others_can_enter_is_refused(
    tmp_path: Path, spec: NetworkSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "open"
    folder.mkdir(mode=0o700)
    folder.chmod(0o750)
    monkeypatch.setenv(FOLDER, str(folder))
    with SharedBackend(spec) as backend, pytest.raises(ServiceError, match="others can enter it"):
        backend.load()
    link = tmp_path / "link"
    link.symlink_to(folder)
    monkeypatch.setenv(FOLDER, str(link))
    with pytest.raises(ServiceError, match="it is no folder"):
        runtime_folder()
    monkeypatch.setenv(FOLDER, str(tmp_path / "no" / "parent"))
    with pytest.raises(ServiceError, match="No such file"):
        runtime_folder()
    assert not list(folder.iterdir())


@as_root
def test_a_folder_of_another_user_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    os.chown(folder, 65534, 65534)
    monkeypatch.setenv(FOLDER, str(folder))
    with pytest.raises(ServiceError, match="belongs to user 65534"):
        runtime_folder()


CONNECT = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
os.chdir(os.path.dirname(sys.argv[1]))  # the folders above may be closed, too
if sys.argv[2] == "other":
    os.setuid(65534)
try:
    connection.connect(os.path.basename(sys.argv[1]))
    connection.settimeout(20)
    connection.send(bytes.fromhex(sys.argv[3]))
    print(len(connection.recv(100)))
except OSError as error:
    print(type(error).__name__)
"""


def say(path: Path, who: str, packet: bytes) -> str:
    done = subprocess.run(
        [sys.executable, "-c", CONNECT, str(path), who, packet.hex()],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@as_root
def test_another_user_cannot_connect(folder: Path, spec: NetworkSpec) -> None:
    with SharedBackend(spec) as backend:
        backend.load()
        path = backend._place.socket
        hello = Frame(wire.HELLO, 1, rest=backend._settings.key).to_bytes()  # type: ignore[union-attr]
        assert int(say(path, "same", hello)) > 0
        assert say(path, "other", hello) == "PermissionError"
        path.chmod(0o777)
        folder.chmod(0o755)  # even then the kernel tells who it is
        assert say(path, "other", hello) in ("0", "ConnectionResetError", "BrokenPipeError")
        folder.chmod(0o700)
        np.testing.assert_array_equal(backend.infer(pictures(1)), sums(pictures(1)))


def connected(backend: SharedBackend) -> socket.socket:
    connection = backend._place.connect()
    assert connection is not None
    connection.settimeout(30)
    return connection


def answer(connection: socket.socket, packet: bytes, *descriptors: int) -> bytes:
    """Send and return what comes back; empty for a closed connection."""
    try:
        socket.send_fds(connection, [packet], list(descriptors))
        return connection.recv(1 << 16)
    except ConnectionError:
        return b""


def test_nonsense_is_dropped_and_harms_nobody(folder: Path, spec: NetworkSpec) -> None:
    with SharedBackend(spec) as backend:
        backend.load()
        pid = backend.pid
        assert backend._settings is not None
        key = backend._settings.key
        hello = Frame(wire.HELLO, 1, rest=key).to_bytes()
        random = np.random.default_rng(0)
        nonsense = [random.bytes(int(size)) for size in random.integers(1, 3000, 40)]
        nonsense += [
            b"",
            hello[:-1],
            Frame(wire.HELLO, 1, 0, 7, rest=key).to_bytes(),
            Frame(wire.HELLO, 1, rest=bytes(32)).to_bytes(),
            Frame(wire.REQUEST, 1, 0, 1, 1).to_bytes(),
            Frame(99, 1).to_bytes(),
        ]
        for packet in nonsense:
            with connected(backend) as connection:
                assert answer(connection, packet) == b""
        after_hello = [
            Frame(wire.REQUEST, 2, 0, 1, 1).to_bytes(),  # without a slot
            Frame(wire.REQUEST, 2, 0, 0, 1).to_bytes(),
            hello,
            Frame(wire.ANSWER, 2).to_bytes(),
        ]
        for packet in after_hello:
            with connected(backend) as connection:
                assert answer(connection, hello)
                assert answer(connection, packet) == b""
        for rest in (b"{", b"[]", b"{}", b'{"networks": 3, "note": {}}'):
            with connected(backend) as connection:
                assert answer(connection, hello)
                answer(connection, Frame(wire.SWAP, 2, rest=rest).to_bytes())
        np.testing.assert_array_equal(backend.infer(pictures(1)), sums(pictures(1)))
        assert backend.pid == pid


def test_memory_that_could_shrink_or_is_too_small_is_refused(
    folder: Path, spec: NetworkSpec
) -> None:
    layout = Layout(spec.input, spec.output)
    with SharedBackend(spec) as backend:
        backend.load()
        assert backend._settings is not None
        hello = Frame(wire.HELLO, 1, rest=backend._settings.key).to_bytes()
        loose = os.memfd_create("loose")
        os.ftruncate(loose, layout.size(4))
        small = Slot.create(layout, 1)
        assert small.descriptor is not None
        for descriptor in (loose, small.descriptor):
            with connected(backend) as connection:
                assert answer(connection, hello)
                packet = Frame(wire.REQUEST, 2, 0, 4, 4).to_bytes()
                frame = bytearray(answer(connection, packet, descriptor))
                refused = Frame.from_bytes(frame, len(frame))
                assert refused.kind == wire.ERROR
                assert "cannot use the shared memory" in str(wire.raised(refused.rest))
        os.close(loose)
        small.close()
        np.testing.assert_array_equal(backend.infer(pictures(1)), sums(pictures(1)))


LIMITED = """
import resource, sys
from pathlib import Path
from service_children import pictures
from vinoreward.backends.network import NetworkSpec, TensorSpec
from vinoreward.backends.serving.client import SharedBackend
from vinoreward.errors import VinorewardError
spec = NetworkSpec(Path(sys.argv[1]), TensorSpec((None, 2, 4, 3), "uint8"),
                   TensorSpec((None, 3), "float32"))
with SharedBackend(spec) as backend:
    backend.load()
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
    try:
        backend.infer(pictures(200))
    except VinorewardError as error:
        print(type(error).__name__, error)
    assert backend.infer(pictures(2)).shape == (2, 3)
"""


def in_child(program: str, *arguments: str, prefix: tuple[str, ...] = ()) -> str:
    support = str(Path(__file__).parents[2] / "support")
    path = os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [*prefix, sys.executable, "-c", program, *arguments],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_no_room_for_a_slot_is_a_sentence(folder: Path, spec: NetworkSpec) -> None:
    said = in_child(LIMITED, str(spec.path))
    assert said.startswith("SharedMemoryError cannot reserve")
    assert "leave service out" in said
    assert nothing_left(folder)


FULL = """
import subprocess, sys
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", "/dev/shm"], check=True)
open("/dev/shm/full", "wb").write(bytes(4096))
"""


def test_a_full_shared_memory_folder_does_not_matter(folder: Path, spec: NetworkSpec) -> None:
    """Slots have no name, and so are not in that folder."""
    probe = ["unshare", "-rm", sys.executable, "-c", FULL]
    try:
        if subprocess.run(probe, capture_output=True, timeout=60).returncode:
            pytest.skip("no file system can be mounted here")
    except OSError:
        pytest.skip("there is no unshare")
    program = FULL + (
        "from pathlib import Path\n"
        "from service_children import pictures\n"
        "from vinoreward.backends.network import NetworkSpec, TensorSpec\n"
        "from vinoreward.backends.serving.client import SharedBackend\n"
        "spec = NetworkSpec(Path(sys.argv[1]), TensorSpec((None, 2, 4, 3), 'uint8'),"
        " TensorSpec((None, 3), 'float32'))\n"
        "with SharedBackend(spec) as backend:\n"
        "    print(backend.infer(pictures(256)).shape)\n"
    )
    assert in_child(program, str(spec.path), prefix=("unshare", "-rm")) == "(256, 3)"
    assert nothing_left(folder)


def test_a_service_that_cannot_start_says_why(
    folder: Path, spec: NetworkSpec, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with SharedBackend(spec) as backend:
        monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
        with pytest.raises(ServiceError, match="cannot be started: No such file"):
            backend.infer(np.zeros((1, *PIXELS), np.uint8))
        broken = tmp_path / "broken-python"
        broken.write_text("#!/bin/sh\necho 'no such luck' >&2\nexit 3\n")
        broken.chmod(0o755)
        monkeypatch.setattr(sys, "executable", str(broken))
        with pytest.raises(ServiceError, match="ended at its start: no such luck"):
            backend.infer(np.zeros((1, *PIXELS), np.uint8))
        broken.write_text("#!/bin/sh\nexit 0\n")  # as if each were killed before it says anything
        with pytest.raises(ServiceError, match="ended 10 times"):
            backend.infer(np.zeros((1, *PIXELS), np.uint8))
        monkeypatch.undo()
    assert not services(folder) and not list(folder.iterdir())


def test_an_error_of_no_type_of_ours_is_a_sentence() -> None:
    error = wire.raised(wire.told(MemoryError("no more")))
    assert isinstance(error, ServiceError)
    assert "MemoryError: no more" in str(error)
