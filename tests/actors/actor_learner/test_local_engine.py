"""The engine of one machine, with real processes: acting, room, ending, messages, deaths."""

import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from actor_learner_parts import chain
from engine_runs import (
    NUMBERED,
    config,
    event,
    process_named,
    random_policy,
    started,
    take,
    until,
)
from faulty_environments import Remembers, Widens, pushes_counted

from vinoreward.errors import SharedMemoryError
from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.engines.local import LocalEngine, LocalWorker
from vinoreward_actors.actor_learner.engines.processes import Inbox, send
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
from vinoreward_actors.compression.compile import Compile
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.policies.spec import mlp

pytestmark = pytest.mark.usefixtures("nothing_left")


# Acting


@pytest.mark.slow
def test_a_student_larger_than_its_teacher():
    """There is room for it in shared memory, and for its INT8 weights and compiled form."""
    student = mlp(2, 2, head="logits", hidden=(1100, 1100))
    stages = Distill(1, student=student, cold_steps=1), Quantize("int8")
    told = config(chain=chain(*stages, Compile("onnxruntime")), backend="onnxruntime")
    with started(told) as engine:
        report = until(lambda: engine.messages().compressor, engine)
        made = engine.compressed_policy()
        assert made is not None, report
        assert made.spec == student and made.blob is not None
        until(lambda: take(engine)[0].network.all() == COMPRESSED)


def test_a_stage_that_makes_larger_networks_has_to_say_so():
    for tells in (True, False):
        stage = Widens(mlp(2, 2, head="logits", hidden=(768, 768)), tells)
        with started(config(chain=chain(stage))) as engine:
            (report,) = until(lambda: engine.messages().compressor, engine)
            assert (engine.compressed_policy() is not None) == tells
        assert tells or "return the largest from its method largest(spec)" in report["error"]


# Ending


def test_it_may_be_closed_twice_unstarted_and_while_everything_starts():
    LocalEngine(config()).close()
    with started(config(actors=2, chain=chain(Quantize("int8")))) as engine:
        engine.close()
        engine.close()


@pytest.mark.slow
def test_close_ends_what_hangs(tmp_path):
    kwargs = {"fault": "hang", "at": 20, "marker": str(tmp_path / "hung")}
    with started(config(kwargs=kwargs)) as engine:
        until((tmp_path / "hung").exists, engine)


def test_threads_end_and_environment_variables_are_as_before(monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
    with started(config()) as engine:
        take(engine)
    assert os.environ["OMP_NUM_THREADS"] == "3"
    assert "MKL_NUM_THREADS" not in os.environ
    assert [one.name for one in threading.enumerate() if "vinoreward" in one.name] == []


def test_shared_memory_that_is_too_small():
    """Said at once, in words; what was reserved before is given back."""
    free = os.statvfs("/dev/shm")
    slots = 2 * free.f_bavail * free.f_frsize // config().trajectory.nbytes
    began = len(os.listdir("/proc/self/fd"))
    with (
        pytest.raises(SharedMemoryError, match=r"cannot reserve .* MB of shared memory"),
        started(config(slots=slots)),
    ):
        raise AssertionError("it started")
    assert len(os.listdir("/proc/self/fd")) == began


def test_a_script_without_a_guard(tmp_path):
    """Python cannot start processes from it; what it needs is said."""
    script = tmp_path / "script.py"
    script.write_text(
        "from engine_runs import config, started, take\n"
        "with started(config(restarts=0)) as engine:\n"
        "    take(engine)\n"
    )
    paths = [str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    command = [sys.executable, str(script)]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 1
    assert 'if __name__ == "__main__":' in ended.stderr.splitlines()[-1]


# Messages


def test_half_a_message_stops_nobody():
    reading, writing = multiprocessing.Pipe(duplex=False)
    inbox = Inbox(reading)
    assert inbox.read() == []
    send(writing, "episodes", [1, "two\nlines"])
    os.write(writing.fileno(), b'{"kind": "episo')
    assert inbox.read() == [{"kind": "episodes", "value": [1, "two\nlines"]}]
    assert inbox.read() == []
    os.write(writing.fileno(), b'des", "value": 3}\n')
    assert inbox.read() == [{"kind": "episodes", "value": 3}]
    os.write(writing.fileno(), b'{"kind": ')  # and dies
    writing.close()
    assert inbox.read() == []
    assert inbox.pipe is None
    inbox.close()


def test_a_message_of_more_than_a_pipe_holds():
    reading, writing = multiprocessing.Pipe(duplex=False)
    inbox, text = Inbox(reading), "x" * 1_000_000
    thread = threading.Thread(target=send, args=(writing, "error", text))
    thread.start()
    found = []
    until(lambda: found.extend(inbox.read()) or found)
    thread.join()
    assert found == [{"kind": "error", "value": text}]
    writing.close()
    inbox.close()


# Deaths


def failure(engine):
    """What a call says that raises, if it does."""
    try:
        engine.messages()
    except EngineError as error:
        return str(error)
    return ""


def test_what_the_last_one_had_handed_over_is_read_before_the_error():
    kwargs = {"fault": "kill", "at": 9 * 2 + 5}
    with started(config(kwargs=kwargs, slots=3, restarts=0)) as engine:
        found = []
        with pytest.raises(EngineError, match="killed by signal 9"):
            while True:
                engine.messages()
                found += take(engine)
    assert len(found) == 2


def test_a_death_is_seen_at_once():
    """Long before a heartbeat, which is a minute here, would tell."""
    with started(config(actors=2)) as engine:
        take(engine, 2)
        victim = process_named("actor 1").pid
        os.kill(victim, signal.SIGKILL)
        assert event(engine).who == "actor 1"
        assert process_named("actor 1").pid != victim
        assert process_named("actor 0").is_alive()
        seen = set()
        while seen != {(0, 0), (1, 1)}:
            seen |= {(one.actor, one.generation) for one in take(engine)} - {(1, 0)}


def test_deaths_cost_no_room():
    """Whatever was under way in a dead process, its successors fill as many slots."""
    with started(config(slots=3, restarts=9)) as engine:
        for generation in range(4):
            until(lambda: engine.waiting() == 3)
            (one,) = take(engine)
            assert one.generation <= generation
            os.kill(process_named("actor 0").pid, signal.SIGKILL)
            assert event(engine).what.endswith(f"generation {generation + 1}")


def test_how_long_a_process_may_be_silent():
    """Until it has begun, while it acts, and while it resets, which may take as long as a start."""
    told = dataclasses.replace(config(heartbeat=1.0), start_timeout=30.0, longest_push=50.0)
    actor, compressor = (LocalWorker("one", number, told, None) for number in (0, 1))
    for worker in (actor, compressor):
        worker.sign = 100.0
        assert worker.hangs(129.0) == ""
        assert worker.hangs(131.0) == "did not start in 31 s"
        worker.begun = True
        assert worker.hangs(1e9) == ""  # idle
        worker.calls = 1
    assert actor.hangs(100.9) == "" != actor.hangs(101.1)
    assert compressor.hangs(149.0) == "" != compressor.hangs(151.0)
    actor.resetting = True
    assert actor.hangs(129.0) == ""
    assert actor.hangs(131.0) == "gave no sign of life for 30 s"


@pytest.mark.slow
def test_a_slow_learner_is_no_reason_to_kill_actors():
    with started(config(heartbeat=0.5)) as engine:
        until(lambda: engine.waiting() == 2)
        time.sleep(1.5)
        assert engine.messages().events == []


@pytest.mark.parametrize(
    ("fault", "at", "said"),
    [
        ("exit", 12, "SystemExit: 7"),
        ("nan", 11, "observations have NaN or infinity"),
        # An episode's last observation is never acted on.
        ("nan", 12, "next_observations of a trajectory of actor 0 has NaN"),
        ("nan_reward", 12, "rewards of a trajectory of actor 0 has NaN"),
    ],
)
def test_an_environment_that_fails_for_good(fault, at, said):
    """Restarted within its budget, and then an error with the child's own words."""
    with started(config(kwargs={"fault": fault, "at": at}, restarts=1)) as engine:
        assert said in event(engine).what
        caught = until(lambda: failure(engine), engine)
        assert not engine.waiting() or np.isfinite(take(engine)[0].rewards).all()
    assert "actor 0 ended 2 times within a minute" in caught
    # What says all by itself is told once; of anything else it matters where it happened.
    sentence = fault.startswith("nan")
    assert ("Traceback (most recent call last)" in caught) is not sentence
    assert caught.count(said) == 1 if sentence else said in caught


def test_training_goes_on_without_a_compressor_that_died():
    """Actors take the learner's own weights when its last are too old."""
    told = config(chain=chain(Remembers()), max_staleness=5, restarts=0)
    with started(told, ActorSettings(pull_period=1)) as engine:
        until(lambda: (take(engine)[0].network == COMPRESSED).all())
        os.kill(process_named("compressor").pid, signal.SIGKILL)
        assert "training goes on without it" in event(engine).what
        last = until(engine.compressed_policy).version
        for version in range(1, 20):
            engine.publish(random_policy(NUMBERED, version))
            (one,) = take(engine)
            kinds = one.network[:, 0]
            assert ((one.versions[:, 0] == last) == (kinds == COMPRESSED)).all()
        assert kinds[-1] == FULL_PRECISION


def test_a_compressors_successor_resumes_its_state(tmp_path):
    stage = Remembers("kill", 4, str(tmp_path / "died"))
    with started(config(chain=chain(stage), folder=tmp_path / "run")) as engine:

        def made(version):
            newest = engine.compressed_policy
            return until(lambda: (p := newest()) and p.version == version and p, engine)

        made(0)
        for version in (1, 2):
            engine.configure(ActorSettings(save=1))
            engine.publish(random_policy(NUMBERED, version))
            assert pushes_counted(made(version)) == version + 1
        # Asked for after the first push or the second, so before the third.
        with np.load(tmp_path / "run" / "compressor.npz") as state:
            saved = int(state["0-Remembers.count"])
        assert saved in (1, 2)
        engine.publish(random_policy(NUMBERED, 3))  # and here it dies
        happened = event(engine)
        assert happened.who == "compressor"
        assert "replaced by generation 1" in happened.what
        assert pushes_counted(made(3)) == saved + 1
