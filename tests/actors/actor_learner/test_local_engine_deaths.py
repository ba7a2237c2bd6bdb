"""The engine of one machine when its processes die.

Every test also checks that no process and no shared memory is left.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from engine_runs import (
    NUMBERED,
    check_nothing_left,
    config,
    event,
    process_named,
    random_policy,
    started,
    take,
    until,
)
from faulty_environments import Remembers, pushes_counted

from vinoreward_actors.actor_learner.engines.base import EngineError
from vinoreward_actors.actor_learner.transport.link import ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, FULL_PRECISION
from vinoreward_actors.compression.chain import CompressorChain
from vinoreward_actors.policies.policy import Policy


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    check_nothing_left()


class TestDeath:
    def test_what_it_had_handed_over_is_read(self, tmp_path: Path) -> None:
        kwargs = {"fault": "kill", "at": 9 * 2 + 5, "marker": str(tmp_path / "died")}
        with started(config(kwargs=kwargs, slots=3)) as engine:
            until(lambda: engine.messages().events)
            found = [take(engine)[0] for _ in range(4)]
        assert [one.generation for one in found] == [0, 0, 1, 1]
        np.testing.assert_array_equal([one.observations[0, 0, 0] for one in found], [0, 3, 0, 3])

    def test_what_it_had_handed_over_is_read_before_the_error(self) -> None:
        with started(
            config(kwargs={"fault": "kill", "at": 9 * 2 + 5}, slots=3, restarts=0)
        ) as engine:

            def failed() -> bool:
                try:
                    engine.messages()
                except EngineError:
                    return True
                return False

            until(failed)
            for left in (2, 1):
                assert engine.waiting() == left
                engine.messages(experience_first=True)
                take(engine)
            with pytest.raises(EngineError, match="killed by signal 9"):
                engine.messages(experience_first=True)

    def test_seen_at_once(self) -> None:
        """Long before a heartbeat, which is a minute here, would tell."""
        with started(config(actors=2)) as engine:
            take(engine, 2, evenly=True)
            victim = process_named("actor 1")
            pid = victim.pid
            os.kill(pid, signal.SIGKILL)
            assert event(engine).who == "actor 1"
            assert process_named("actor 1").pid != pid
            # The other one was not touched.
            assert process_named("actor 0").is_alive()
            assert {one.actor for one in take(engine, 2, evenly=True)} == {0, 1}

    def test_the_dead_hold_no_weights(self) -> None:
        with started(config(actors=2, restarts=0)) as engine:
            take(engine, 2, evenly=True)
            full = engine._memory.stores[FULL_PRECISION]
            assert full.leased(0) == 0
            os.kill(process_named("actor 0").pid, signal.SIGKILL)
            event(engine)
            assert (full.leased(0), full.leased(1)) == (-1, 0)

    @pytest.mark.slow
    def test_an_actor_that_is_stuck_in_its_environment(self, tmp_path: Path) -> None:
        """Noticed by its silence, killed and replaced."""
        kwargs = {"fault": "sleep", "at": 23, "marker": str(tmp_path / "hung")}
        with started(config(kwargs=kwargs, heartbeat=1.0)) as engine:
            happened = event(engine)
            assert "gave no sign of life for 1 s; replaced by generation 1" in happened.what
            while take(engine)[0].generation == 0:
                pass
        assert not psutil.pid_exists(int((tmp_path / "hung").read_text()))

    @pytest.mark.slow
    def test_a_slow_learner_is_no_reason_to_kill_actors(self) -> None:
        with started(config(heartbeat=0.5)) as engine:
            until(lambda: engine.waiting() == 2)
            time.sleep(1.5)
            assert engine.messages().events == []

    @pytest.mark.parametrize(
        ("fault", "at", "said"),
        [
            ("raise", 12, "RuntimeError: the simulator fell over"),
            ("exit", 12, "SystemExit: 7"),
            ("nan", 11, "observations have NaN or infinity"),
            # An episode's last observation is never acted on.
            ("nan", 12, "next_observations of a trajectory of actor 0 has NaN"),
            ("nan_reward", 12, "rewards of a trajectory of actor 0 has NaN"),
        ],
    )
    def test_an_environment_that_fails_for_good(self, fault: str, at: int, said: str) -> None:
        """Restarted within its budget, and then an error with the child's own words."""
        with started(config(kwargs={"fault": fault, "at": at}, restarts=1)) as engine:
            events: list[Any] = []

            def ended() -> bool:
                try:
                    events.extend(engine.messages().events)
                    batch = engine.take(1, timeout=0.01)
                except EngineError as error:
                    caught.append(str(error))
                    return True
                if batch is not None:
                    with batch as found:
                        assert np.isfinite(found[0].rewards).all()
                        assert np.isfinite(found[0].next_observations).all()
                return False

            caught: list[str] = []
            until(ended)
        assert [each.what.split()[-1] for each in events] == ["1"]  # generations
        assert said in events[0].what
        assert "actor 0 ended 2 times within a minute" in caught[0]
        # What says all by itself is told once; of anything else it matters where it happened.
        sentence = fault.startswith("nan")
        assert ("Traceback (most recent call last)" in caught[0]) is not sentence
        assert caught[0].count(said) == 1 if sentence else said in caught[0]

    def test_the_other_actors_go_on(self, tmp_path: Path) -> None:
        with started(config(actors=2, restarts=0)) as engine:
            take(engine, 2, evenly=True)
            os.kill(process_named("actor 0").pid, signal.SIGKILL)
            assert "training goes on without it" in event(engine).what
            for _ in range(engine.waiting()):  # those of both actors, from before
                take(engine)
            assert [take(engine)[0].actor for _ in range(4)] == [1] * 4

    def test_with_a_fixed_lag_nobody_can_be_done_without(self) -> None:
        with started(config(actors=2, restarts=0, lag=0)) as engine:
            take(engine, 2, evenly=True)
            os.kill(process_named("actor 0").pid, signal.SIGKILL)
            with pytest.raises(EngineError, match="with a fixed lag nothing can go on"):
                until(lambda: engine.messages().events)


class TestCompressorDeath:
    def test_training_goes_on_without_it(self) -> None:
        """It dies for good; actors take the learner's own weights when its last are too old."""
        chain = CompressorChain().add(Remembers())
        told = config(chain=chain, max_staleness=5, restarts=0)
        with started(told, ActorSettings(pull_period=1)) as engine:
            until(lambda: (take(engine)[0].network == COMPRESSED).all())
            os.kill(process_named("compressor").pid, signal.SIGKILL)
            assert "training goes on without it" in event(engine).what
            last = until(engine.compressed_policy).version
            kinds = []
            for version in range(1, 20):
                engine.publish(random_policy(NUMBERED, version))
                until(lambda: engine.counters()["trajectories"] > 0, engine)
                (one,) = take(engine)
                for kind, made in zip(one.network[:, 0], one.versions[:, 0], strict=True):
                    kinds.append(int(kind))
                    assert made == last if kind == COMPRESSED else made > last
            assert kinds[-1] == 0

    def test_a_successor_resumes_its_state(self, tmp_path: Path) -> None:
        marker = tmp_path / "died"
        stage = Remembers("kill", 4, str(marker))
        told = config(chain=CompressorChain().add(stage), folder=tmp_path / "run")
        with started(told) as engine:

            def pushed(version: int, save: int) -> Policy:
                engine.configure(ActorSettings(save=save))
                engine.publish(random_policy(NUMBERED, version))
                found: Policy = until(
                    lambda: (p := engine.compressed_policy()) and p.version == version and p, engine
                )
                return found

            until(engine.compressed_policy, engine)
            assert pushes_counted(pushed(1, save=1)) == 2
            assert pushes_counted(pushed(2, save=1)) == 3
            # Asked for after the first push or the second, so before the third.
            with np.load(tmp_path / "run" / "compressor.npz") as state:
                saved = int(state["0-Remembers.count"])
            assert saved in (1, 2)
            engine.publish(random_policy(NUMBERED, 3))  # and here it dies
            happened = event(engine)
            assert happened.who == "compressor"
            assert "replaced by generation 1" in happened.what
            found = until(
                lambda: (p := engine.compressed_policy()) and p.version == 3 and p, engine
            )
            assert pushes_counted(found) == saved + 1

    def test_an_exception_in_a_stage(self, tmp_path: Path) -> None:
        stage = Remembers("raise", 2, str(tmp_path / "raised"))
        with started(config(chain=CompressorChain().add(stage))) as engine:
            until(engine.compressed_policy, engine)
            engine.publish(random_policy(NUMBERED, 1))
            happened = event(engine)
            assert "RuntimeError: the compressor fell over; replaced" in happened.what
            until(lambda: (p := engine.compressed_policy()) and p.version == 1, engine)
