"""The engine of one machine, with real processes: acting, limits, ending, messages.

Every test also checks that no process and no shared memory is left.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engine_runs import (
    as_computed,
    check_nothing_left,
    config,
    random_policy,
    segments,
    started,
    take,
    until,
)
from faulty_environments import ENDS, Widens

from vinoreward.errors import ConfigError
from vinoreward_actors.actor_learner.config import SamplesPerInsert
from vinoreward_actors.actor_learner.engines.local import LocalEngine
from vinoreward_actors.actor_learner.engines.processes import Inbox, send
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.shared_memory import SharedMemoryError
from vinoreward_actors.actor_learner.transport.trajectory import (
    COMPRESSED,
    FULL_PRECISION,
    Trajectory,
)
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.compression.graph import Compile
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.policies.distributions import log_prob
from vinoreward_actors.policies.policy import Policy, QuantizedArray, forward
from vinoreward_actors.policies.spec import Conv, Dense, Flatten, PolicySpec, mlp
from vinoreward_actors.policies.wire import decode

CARTPOLE = mlp(4, 2, head="logits", hidden=(16, 16))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


def check_acted(one: Trajectory, policies: dict[int, Policy]) -> None:
    """What is stored is what the network of the stored version says."""
    for step in range(len(one.rewards)):
        policy = policies[int(one.versions[step, 0])]
        outputs = forward(as_computed(policy), one.observations[step])
        np.testing.assert_allclose(one.behaviour[step], outputs, rtol=1e-3, atol=1e-4)
        expected = log_prob(policy.spec, outputs, one.actions[step])
        np.testing.assert_allclose(one.log_mu[step], expected, rtol=1e-3, atol=1e-3)


class TestActing:
    def test_experience_is_what_the_environment_gave(self) -> None:
        """Observations, ends and successors of two actors with three environments each."""
        with started(config(actors=2, environments=3)) as engine:
            for turn in range(3):
                for actor, one in enumerate(take(engine, 2, evenly=True)):
                    assert (one.actor, one.generation) == (actor, 0)
                    steps = [
                        (turn * 3 + at, step) for at in range(3) for step in range(ENDS[at][1])
                    ]
                    for env in range(3):
                        np.testing.assert_array_equal(one.observations[:, env], steps)
                        np.testing.assert_array_equal(
                            one.next_observations[:, env], [(e, s + 1) for e, s in steps]
                        )
                        assert list(np.flatnonzero(one.truncated[:, env])) == [2]
                        assert list(np.flatnonzero(one.terminated[:, env])) == [4, 8]
                    np.testing.assert_array_equal(
                        one.rewards, one.observations[..., 0] + one.observations[..., 1] + 1
                    )

    @pytest.mark.parametrize("backend", ["numpy", "openvino", "onnxruntime"])
    def test_actors_never_import_torch(self, backend: str) -> None:
        """The environment looks at sys.modules inside the actor, and says so in its score."""
        with started(config(backend=backend)) as engine:
            episodes = until(lambda: engine.messages().episodes, engine)
        assert {(actor, episode.score) for actor, episode in episodes} == {(0, 0.0)}

    def test_log_mu_with_real_weights(self) -> None:
        """While weights change all the time under the actor's hands."""
        policies = {version: random_policy(CARTPOLE, version) for version in range(31)}
        told = config(CARTPOLE, "CartPole-v1", steps=8)
        with started(told, ActorSettings(pull_period=3)) as engine:
            seen: set[int] = set()
            for version in range(1, 31):
                engine.publish(policies[version])
                for one in take(engine):
                    check_acted(one, policies)
                    seen |= set(one.versions[:, 0].tolist())
        assert len(seen) > 5

    def test_images(self) -> None:
        spec = PolicySpec(
            (1, 8, 8),
            (
                Conv("conv", 1, 4, 4, 2, "relu"),
                Flatten(),
                Dense("dense", 36, 8, "relu"),
                Dense("head", 8, 2),
            ),
            "logits",
            2,
            observation_dtype="uint8",
            scale=1 / 255,
        )
        told = config(
            spec,
            "faulty_environments:Blinking",
            environments=2,
            backend="openvino",
            chain=CompressorChain().add(Quantize("int8")).add(Compile("openvino")),
        )
        with started(told) as engine:
            compressed = until(engine.compressed_policy, engine)
            kinds = set()
            for _ in range(200):
                (one,) = take(engine)
                assert one.observations.dtype == one.next_observations.dtype == np.uint8
                kinds |= set(one.network.reshape(-1).tolist())
                if COMPRESSED in kinds:
                    break
            outputs = forward(compressed, one.observations[-1])
            np.testing.assert_allclose(one.behaviour[-1], outputs, atol=2e-2)
        assert COMPRESSED in kinds

    def test_log_mu_of_the_compressed_network(self) -> None:
        spec = mlp(4, 2, head="logits", hidden=(32, 32))
        chain = CompressorChain().add(Quantize("w4")).add(Compile("openvino"))
        told = config(spec, "CartPole-v1", chain=chain, steps=8, backend="openvino")
        settings = ActorSettings(bits=4, pull_period=1)
        with started(told, settings) as engine:
            compressed = until(engine.compressed_policy, engine)
            assert compressed.version == 0
            one = until(
                lambda: next(
                    (one for one in take(engine) if (one.network == COMPRESSED).all()), None
                )
            )
            check_acted(one, {0: compressed})
            full = forward(random_policy(spec), one.observations[:, 0])
            assert np.abs(full - one.behaviour[:, 0]).max() > 1e-4

    def test_compressed_weights_are_not_packed(self) -> None:
        """Actors read codes of few bits where they lie, a byte each: packing takes time."""
        spec = mlp(4, 2, head="logits", hidden=(32, 32))
        chain = CompressorChain().add(Quantize("w4"))
        with started(config(spec, "CartPole-v1", chain=chain), ActorSettings(bits=4)) as engine:
            lease = until(engine._memory.inspector.pull_if_newer, engine)
            weights = decode(lease.header, lease.payload).parameters.values()
            codes = [one.codes for one in weights if isinstance(one, QuantizedArray)]
            assert codes and all(np.shares_memory(one, lease.payload) for one in codes)

    @pytest.mark.slow
    def test_a_student_larger_than_its_teacher(self) -> None:
        """There is room for it in shared memory, and for its INT8 weights and compiled form."""
        student = mlp(2, 2, head="logits", hidden=(1100, 1100))
        chain = CompressorChain().add(Distill(1, student=student, cold_steps=1))
        chain.add(Quantize("int8")).add(Compile("onnxruntime", blob=True))
        with started(config(chain=chain, backend="onnxruntime")) as engine:
            made = until(lambda: engine.compressed_policy() or engine.messages().compressor, engine)
            assert isinstance(made, Policy), made
            assert made.spec == student and made.blob is not None
            until(lambda: take(engine)[0].network.all() == COMPRESSED)

    @pytest.mark.parametrize("tells", [True, False])
    def test_a_stage_that_makes_larger_networks(self, tells: bool) -> None:
        stage = Widens(mlp(2, 2, head="logits", hidden=(768, 768)), tells)
        with started(config(chain=CompressorChain().add(stage))) as engine:
            (report,) = until(lambda: engine.messages().compressor, engine)
            assert (engine.compressed_policy() is not None) == tells
        assert tells or "return the largest from its method largest(spec)" in report["error"]

    def test_communication_bits(self) -> None:
        """The bytes in the store fall as promised, and that is what actors act with."""
        spec = mlp(4, 2, head="logits", hidden=(64, 64))

        def published(told_bits: int) -> tuple[int, float]:
            told = config(spec, "CartPole-v1", bits=told_bits)
            with started(told) as engine:
                store = engine._memory.stores[FULL_PRECISION]
                lease = store.attach(store.spec, 1).pull_if_newer()
                assert lease is not None
                size = lease.payload.size
                (one,) = take(engine)
                exact = forward(random_policy(spec), one.observations[:, 0])
                return size, float(np.abs(exact - one.behaviour[:, 0]).max())

        wide, no_error = published(32)
        for bits in (16, 4):
            narrow, error = published(bits)
            assert no_error < 1e-5 < error < 1.0
            # Biases and scales stay float32, and each array begins at a multiple of 64 bytes.
            assert narrow < wide * bits / 32 + 10 * 64 + 3 * 64 * 4 * 2

    def test_other_bits_are_refused_and_nothing_starts(self) -> None:
        with pytest.raises(ConfigError), started(config(bits=9)):
            raise AssertionError("it started")


class TestLimits:
    def test_actors_do_not_run_ahead_of_the_ratio(self) -> None:
        # Room for an odd number of trajectories, so that one of two actors has to be kept back.
        limiter = SamplesPerInsert(4.0, 18, 5 * 4.0 * 9, insert_size=18, sample_size=32)
        with started(config(actors=2, limiter=limiter, slots=50)) as engine:
            samples = 0
            for _ in range(6):
                # Actors insert as much as they may, and then no more.
                until(lambda: not limiter.can_insert(inserted(engine), samples, 18))  # noqa: B023
                time.sleep(0.02)
                assert limiter.surplus(inserted(engine), samples) <= limiter.error_buffer
                while limiter.can_sample(inserted(engine), samples, 32):
                    engine.sampled(32)
                    samples += 32

    def test_room_limits_actors_that_nobody_reads(self) -> None:
        with started(config(actors=2, slots=3)) as engine:
            # An actor counts its steps just after it has handed them over.
            until(lambda: engine.waiting() == 6 and inserted(engine) >= 6 * 9)
            time.sleep(0.05)
            assert (engine.waiting(), inserted(engine)) == (6, 6 * 9)


def inserted(engine: LocalEngine) -> int:
    return engine.counters()["steps"]


class TestEnding:
    def test_close_while_everything_is_starting(self) -> None:
        with started(config(actors=2, chain=CompressorChain().add(Quantize("int8")))):
            pass

    def test_close_twice_and_without_start(self) -> None:
        engine = LocalEngine(config())
        engine.close()
        with started(config()) as running:
            running.close()
            running.close()

    @pytest.mark.slow
    def test_close_ends_what_hangs(self, tmp_path: Path) -> None:
        kwargs = {"fault": "hang", "at": 20, "marker": str(tmp_path / "hung")}
        with started(config(kwargs=kwargs)) as engine:
            until((tmp_path / "hung").exists, engine)

    def test_threads_end(self) -> None:
        with started(config()) as engine:
            take(engine)
        assert [one.name for one in threading.enumerate() if "vinoreward" in one.name] == []

    def test_environment_variables_are_as_before(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("OMP_NUM_THREADS", "3")
        monkeypatch.delenv("MKL_NUM_THREADS", raising=False)
        with started(config()) as engine:
            take(engine)
        assert os.environ["OMP_NUM_THREADS"] == "3"
        assert "MKL_NUM_THREADS" not in os.environ

    def test_shared_memory_that_is_too_small(self) -> None:
        """Said at once, in words; what was reserved before is given back."""
        free = os.statvfs("/dev/shm")
        each = config().trajectory.nbytes
        slots = 2 * free.f_bavail * free.f_frsize // each
        began = segments()
        with (
            pytest.raises(SharedMemoryError, match=r"cannot reserve .* MB of shared memory"),
            started(config(slots=slots)),
        ):
            raise AssertionError("it started")
        assert segments() == began == []

    def test_a_script_without_a_guard(self, tmp_path: Path) -> None:
        """Python cannot start processes from it; what it needs is said."""
        script = tmp_path / "script.py"
        script.write_text(
            "from engine_runs import config, started, take\n"
            "with started(config(restarts=0)) as engine:\n"
            "    take(engine)\n"
        )
        paths = [str(Path(__file__).parents[2] / "support"), os.environ.get("PYTHONPATH")]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        ended = subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, env=environment
        )
        assert ended.returncode == 1
        assert 'if __name__ == "__main__":' in ended.stderr.splitlines()[-1]


class TestMessages:
    def test_half_a_message_stops_nobody(self) -> None:
        import multiprocessing

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

    def test_more_than_a_pipe_holds(self) -> None:
        import multiprocessing

        reading, writing = multiprocessing.Pipe(duplex=False)
        inbox = Inbox(reading)
        text = "x" * 1_000_000
        thread = threading.Thread(target=send, args=(writing, "error", text))
        thread.start()
        found: list[Any] = []
        until(lambda: found.extend(inbox.read()) or found)
        thread.join()
        assert found == [{"kind": "error", "value": text}]
        writing.close()
        inbox.close()
