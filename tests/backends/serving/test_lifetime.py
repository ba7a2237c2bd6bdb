"""When a service starts and ends, who finds it, and what happens when somebody is killed."""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
from service_children import (
    ask_forever,
    ask_once,
    child,
    kill,
    nothing_left,
    pictures,
    save_network,
    services,
    sums,
)
from waiting import until

from vinoreward.backends.network import NetworkSpec
from vinoreward.backends.serving import client
from vinoreward.backends.serving.client import SharedBackend
from vinoreward.errors import ServiceError

METHODS = ("spawn", "fork", "forkserver")
# Python warns of every fork of a process with threads, which this one may have by now.
forks = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@forks
@pytest.mark.parametrize("method", METHODS)
def test_callers_that_come_together_find_one_service(
    folder: Path, spec: NetworkSpec, method: str
) -> None:
    with ExitStack() as stack:
        backend = SharedBackend(spec)
        workers = [stack.enter_context(child(method, ask_once, backend, i)) for i in range(3)]
        for _, connection in workers:
            connection.send("now")
        found = [connection.recv() for _, connection in workers]
        assert {right for right, _ in found} == {True}
        assert {pid for _, pid in found} == set(services(folder))
        assert len(services(folder)) == 1
    assert nothing_left(folder)


@pytest.mark.parametrize("service", ["shared", "shared:both"])
def test_independent_programs_find_one_service(
    folder: Path, spec: NetworkSpec, service: str
) -> None:
    program = (
        "import sys, numpy as np\n"
        "from service_children import save_network, pictures, sums\n"
        "from vinoreward.backends.network import NetworkSpec, TensorSpec\n"
        "from vinoreward.backends.serving.client import SharedBackend\n"
        "from pathlib import Path\n"
        "spec = NetworkSpec(Path(sys.argv[1]), TensorSpec((None, 2, 4, 3), 'uint8'),"
        " TensorSpec((None, 3), 'float32'))\n"
        "with SharedBackend(spec, service=sys.argv[2]) as backend:\n"
        "    assert np.array_equal(backend.infer(pictures(3)), sums(pictures(3)))\n"
        "    print(backend.pid)\n"
    )
    support = str(Path(__file__).parents[2] / "support")
    path = os.pathsep.join([support, os.environ.get("PYTHONPATH", "")])
    with SharedBackend(spec, service=service) as backend:
        done = subprocess.run(
            [sys.executable, "-c", program, str(spec.path), service],
            env=os.environ | {"PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=120,
        )
        assert done.returncode == 0, done.stderr
        assert int(done.stdout) == backend.pid


def test_other_settings_have_another_service(folder: Path, spec: NetworkSpec) -> None:
    copy = spec.path.with_name("copy.onnx")
    shutil.copy(spec.path, copy)
    with ExitStack() as stack:
        backends = [
            SharedBackend(spec),
            SharedBackend(spec, threads=2),
            SharedBackend(spec, backend="onnxruntime"),
            SharedBackend(spec, service="shared:one"),
            SharedBackend(spec, service="shared:two"),
            SharedBackend(dataclasses.replace(spec, path=copy)),
        ]
        for backend in backends:
            stack.enter_context(backend)
            np.testing.assert_array_equal(backend.infer(pictures(2)), sums(pictures(2)))
        assert len({backend.pid for backend in backends}) == len(backends)


def test_a_network_that_changed_has_another_service(folder: Path, spec: NetworkSpec) -> None:
    """Also under the same name, and without a recorded hash."""
    batch = pictures(2)
    with SharedBackend(spec) as before:
        before.infer(batch)
        save_network(spec.path, 3.0)
        with SharedBackend(spec) as after:
            np.testing.assert_array_equal(after.infer(batch), sums(batch, 3.0))
            np.testing.assert_array_equal(before.infer(batch), sums(batch))
            assert before.pid != after.pid


def test_a_dead_service_is_started_again_and_asked_again(folder: Path, spec: NetworkSpec) -> None:
    with SharedBackend(spec) as backend:
        backend.load()
        for step in range(3):
            kill(backend.pid)
            batch = pictures(1 + step, step)
            np.testing.assert_array_equal(backend.infer(batch), sums(batch))
        assert len(services(folder)) == 1


def test_a_service_killed_while_it_computes_loses_no_request(
    folder: Path, spec: NetworkSpec, tmp_path: Path
) -> None:
    tally = tmp_path / "tally"
    np.zeros((1, 3), np.int64).tofile(tally)
    with child("spawn", ask_forever, SharedBackend(spec), tally, 0, 1500) as (_, connection):
        for _ in range(2):
            counts = np.fromfile(tally, np.int64)
            until(lambda before=counts: np.fromfile(tally, np.int64)[1] > before[1])
            for pid in services(folder):
                kill(pid)
        assert connection.recv() == "done"
    assert np.fromfile(tally, np.int64).tolist() == [1500, 1500, 0]


def test_callers_start_a_dead_service_together(folder: Path, spec: NetworkSpec) -> None:
    with ExitStack() as stack:
        workers = [
            stack.enter_context(child("spawn", ask_once, SharedBackend(spec), i)) for i in range(3)
        ]
        first = stack.enter_context(SharedBackend(spec))
        first.infer(pictures(1))
        kill(first.pid)
        for _, connection in workers:
            connection.send("now")
        np.testing.assert_array_equal(first.infer(pictures(2)), sums(pictures(2)))
        found = {connection.recv() for _, connection in workers}
        assert found == {(True, first.pid)}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_the_service_ends_after_its_killed_caller(
    folder: Path, spec: NetworkSpec, how: signal.Signals
) -> None:
    with child("spawn", ask_once, SharedBackend(spec), 0) as (process, connection):
        connection.send("now")
        assert connection.recv()[0]
        assert len(services(folder)) == 1
        os.kill(process.pid or 0, how)
        process.join()
        assert nothing_left(folder)


def test_a_killed_worker_harms_nobody(folder: Path, spec: NetworkSpec, tmp_path: Path) -> None:
    tally = tmp_path / "tally"
    np.zeros((2, 3), np.int64).tofile(tally)
    with ExitStack() as stack:
        victim, _ = stack.enter_context(
            child("spawn", ask_forever, SharedBackend(spec), tally, 0, 10**9)
        )
        _, other = stack.enter_context(
            child("spawn", ask_forever, SharedBackend(spec), tally, 1, 1500)
        )
        until(lambda: np.fromfile(tally, np.int64).reshape(2, 3)[:, 1].min() > 50)
        pid = services(folder)
        kill(victim.pid or 0)
        assert other.recv() == "done"
        assert services(folder) in (pid, [])
    counts = np.fromfile(tally, np.int64).reshape(2, 3)
    assert counts[1].tolist() == [1500, 1500, 0]
    assert counts[0, 2] == 0 and counts[0, 0] - counts[0, 1] <= 1


@forks
def test_a_forked_child_connects_for_itself(folder: Path, spec: NetworkSpec) -> None:
    with SharedBackend(spec) as backend:
        backend.infer(pictures(1))
        with child("fork", ask_once, backend, 5) as (_, connection):
            connection.send("now")
            batch = pictures(2, 9)
            np.testing.assert_array_equal(backend.infer(batch), sums(batch))
            assert connection.recv() == (True, backend.pid)
            assert backend.info()["service_callers"] == 2


@forks
def test_a_service_does_not_outlive_its_callers_in_their_forks(
    folder: Path, spec: NetworkSpec
) -> None:
    """A child that never asks does not keep its parent's connection open."""
    backend = SharedBackend(spec)
    backend.infer(pictures(1))
    sleeper = multiprocessing.get_context("fork").Process(target=time.sleep, args=(120,))
    sleeper.start()
    try:
        backend.close()
        assert nothing_left(folder)
    finally:
        sleeper.kill()
        sleeper.join()


def test_an_interrupted_request_does_not_answer_the_next(folder: Path, spec: NetworkSpec) -> None:
    class Stop(Exception):
        pass

    # No threading.Event: its lock stays taken where the exception meets it taking it.
    asking = [False]

    def stop(*_: object) -> None:
        if asking[0]:
            raise Stop

    before = signal.signal(signal.SIGALRM, stop)
    interrupted = 0
    try:
        with SharedBackend(spec) as backend:
            backend.load()
            for step in range(120):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 * (1 + step % 60))
                try:
                    try:
                        asking[0] = True
                        backend.infer(pictures(200, step))
                    finally:
                        asking[0] = False
                except Stop:
                    interrupted += 1
                batch = pictures(2, step)
                np.testing.assert_array_equal(backend.infer(batch), sums(batch))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert interrupted


def test_a_stopped_service_is_a_sentence(
    folder: Path, spec: NetworkSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_TIMEOUT", 1)  # of the connections that are made now
    with SharedBackend(spec) as backend:
        pid = backend.pid
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ServiceError, match=f"process {pid}\\) has not answered for 1 s"):
            backend.infer(pictures(1))
        monkeypatch.setattr(client, "ANSWER_TIMEOUT", 60)  # a busy machine starts one slowly
        kill(pid)
        np.testing.assert_array_equal(backend.infer(pictures(2)), sums(pictures(2)))


def test_a_folder_that_was_removed_is_made_again(folder: Path, spec: NetworkSpec) -> None:
    with SharedBackend(spec) as backend:
        pid = backend.pid
        shutil.rmtree(folder)
        np.testing.assert_array_equal(backend.infer(pictures(2)), sums(pictures(2)))
        kill(pid)
        np.testing.assert_array_equal(backend.infer(pictures(2)), sums(pictures(2)))
        assert backend.pid != pid


def test_what_killed_services_left_is_swept(folder: Path, spec: NetworkSpec) -> None:
    with SharedBackend(spec, threads=3) as backend:
        backend.load()
        kill(backend.pid)
        until(lambda: not services(folder))
    assert list(folder.iterdir())
    with SharedBackend(spec) as other:
        other.load()
        assert {path.stem for path in folder.iterdir()} == {other._place.stem}


def test_a_long_folder_works(
    spec: NetworkSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("long" * 30)
    monkeypatch.setenv("VINOREWARD_RUNTIME_DIR", str(folder))
    with SharedBackend(spec) as backend:
        np.testing.assert_array_equal(backend.infer(pictures(2)), sums(pictures(2)))
    assert folder.stat().st_mode & 0o777 == 0o700
    assert nothing_left(folder)
