"""What the Ray engine is made of, without a cluster: requests, messages, publisher, state."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import defaultdict
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest
from engine_runs import NUMBERED, PATIENCE, config, random_policy, until
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward.errors import InputError
from vinoreward_actors.actor_learner.config import SamplesPerInsert
from vinoreward_actors.actor_learner.engines.config import EngineConfig
from vinoreward_actors.actor_learner.engines.ray import engine
from vinoreward_actors.actor_learner.engines.ray.exchange import (
    Identity,
    Look,
    Published,
    Publisher,
    Query,
    State,
    TrajectoryRequests,
)
from vinoreward_actors.actor_learner.transport.link import SETTINGS, ActorSettings
from vinoreward_actors.actor_learner.transport.trajectory import COMPRESSED, Batch
from vinoreward_actors.actor_learner.transport.trajectory import FULL_PRECISION as FULL
from vinoreward_actors.compression.chain import CompressorChain


def arrive(requests: TrajectoryRequests, actor: int, number: int) -> None:
    trajectory = config().trajectory.empty(actor)
    trajectory.versions[...] = number
    requests.arrived(trajectory)


class TestRequests:
    @given(
        actors=st.integers(1, 4),
        slots=st.integers(1, 3),
        ratio=st.sampled_from([0.25, 1.0, 8.0]),
        moves=st.lists(st.integers(0, 2**16), max_size=60),
    )
    @settings(deadline=None)
    def test_bounded_limited_and_never_stuck(
        self, actors: int, slots: int, ratio: float, moves: list[int]
    ) -> None:
        """Whatever comes in which order: no actor has more on its way than there is room for."""
        size, sample = 9, 32
        together = size * actors
        buffer = 2 * SamplesPerInsert.smallest_buffer(ratio, together, sample)
        limiter = SamplesPerInsert(ratio, 18, buffer, insert_size=together, sample_size=sample)
        asked: list[int] = []
        told = config(actors=actors, steps=size, slots=slots, limiter=limiter)
        requests = TrajectoryRequests(told, asked.append)
        requests.ask()
        taken: list[Batch] = []
        steps = samples = 0
        numbers = [0] * actors
        for move in moves:
            if asked and move % 4:
                actor = asked.pop(move % len(asked))
                arrive(requests, actor, numbers[actor])
                numbers[actor] += 1
                steps += size
            found = requests.take(1, timeout=0.0, stop=lambda: False, evenly=False)
            taken += [] if found is None else [found]
            if taken and move % 3 == 0:
                taken.pop().close()
            if limiter.can_sample(steps, samples, sample):
                samples += sample
                requests.sampled(sample)
            if asked and move % 7 == 0:
                dead = asked[0]
                requests.lost(dead)
                asked[:] = [actor for actor in asked if actor != dead]
                requests.opened(dead)
            for actor in range(actors):
                held = sum(one.actor == actor for (one,) in taken)
                assert asked.count(actor) + held <= slots
            inserted = steps + size * len(asked)
            assert inserted <= 18 or limiter.surplus(inserted, samples) <= limiter.error_buffer
        for batch in taken:
            batch.close()
        while (
            found := requests.take(1, timeout=0.0, stop=lambda: False, evenly=False)
        ) is not None:
            found.close()
        # With everything given back, somebody can always go on.
        assert asked or limiter.can_sample(steps, samples, sample)

    def test_evenly_does_not_depend_on_the_actors_speed(self) -> None:
        requests = TrajectoryRequests(config(actors=2, slots=3), lambda actor: None)
        requests.ask()
        for actor, number in [(1, 0), (1, 1), (0, 0), (1, 2), (0, 1)]:
            arrive(requests, actor, number)
        assert requests.take(6, timeout=0.0, stop=lambda: False, evenly=True) is None
        arrive(requests, 0, 2)
        found = requests.take(4, timeout=0.0, stop=lambda: False, evenly=True)
        assert found is not None
        order = [(one.actor, one.versions[0, 0]) for one in found]
        assert order == [(0, 0), (1, 0), (0, 1), (1, 1)]
        assert requests.ready() == 2
        assert requests.rollouts == [3, 3]


class TestProcess:
    def test_messages_go_to_who_asked_first(self) -> None:
        links = pytest.importorskip("vinoreward_actors.actor_learner.engines.ray.links")

        def work(process: Any) -> None:
            process.put((b"0", None))
            assert process.wait_asked(lambda: False)
            for text in (b"1", b"2", b"3"):
                process.put((text, None))
            raise InputError("over")

        async def asking() -> list[bytes]:
            process = links.RayProcess([], work)
            first = asyncio.ensure_future(process.next())
            ended = asyncio.ensure_future(process.ended())
            await process.placed()
            found = [await first, *(await asyncio.gather(*(process.next() for _ in range(3))))]
            assert await ended == await process.ended() == "over"
            return [text for text, _ in found]

        assert asyncio.run(asking()) == [b"0", b"1", b"2", b"3"]

    def test_nobody_asks(self) -> None:
        links = pytest.importorskip("vinoreward_actors.actor_learner.engines.ray.links")
        assert not links.RayProcess([], print).wait_asked(lambda: True)


class TestPublisher:
    def test_the_newest_goes_and_orders_before_weights(self) -> None:
        sent: list[tuple[int, int]] = []
        free = threading.Event()
        busy = threading.Event()

        def send(store: int, what: Published) -> None:
            busy.set()
            assert free.wait(PATIENCE)
            sent.append((store, what.version))

        failures: list[str] = []
        publisher = Publisher(send, failures.append)
        empty = np.empty(0, np.uint8)
        publisher.publish(FULL, 0, b"", empty)
        assert busy.wait(PATIENCE)
        for version in range(1, 5):
            publisher.publish(FULL, version, b"", empty)
        publisher.publish(SETTINGS, 7, b"", empty)
        assert not publisher.flush(0.0)
        free.set()
        assert publisher.flush(PATIENCE)
        assert sent == [(FULL, 0), (SETTINGS, 7), (FULL, 4)]
        publisher.resend()
        assert publisher.flush(PATIENCE)
        assert sent[3:] == [(SETTINGS, 7), (FULL, 4)]
        publisher.close()
        assert failures == []

    def test_a_failure_is_told(self) -> None:
        def send(store: int, what: Published) -> None:
            raise OSError("no way through")

        failures: list[str] = []
        publisher = Publisher(send, failures.append)
        publisher.publish(FULL, 0, b"", np.empty(0, np.uint8))
        until(lambda: failures)
        assert failures == ["full could not be published: no way through"]
        publisher.close()


def has(look: Look, actors: int, version: int, compressed: bool) -> bool:
    """As :meth:`Engine.everyone_has` reads it."""
    return min(look.pulled[:actors]) >= version <= (look.compressed if compressed else version)


class TestState:
    def test_newest_wins_and_an_older_generation_is_sent_away(self) -> None:
        async def talk() -> None:
            state = State(2)
            first = Query(0, 0, -1, -1)
            born = (await state.look()).born
            assert await state.pull(first, FULL, -1, 0.0) == ((born, False, -1, None), None)
            waiting = asyncio.ensure_future(state.pull(first, FULL, -1, PATIENCE))
            await state.publish(SETTINGS, Published(0, b"{}", None))
            await state.publish(FULL, Published(5, b"five", None))
            reply, latest = await waiting
            assert latest == (5, b"five", None)
            assert reply == (born, False, 5, (0, b"{}", None))
            await state.publish(FULL, Published(4, b"late", None))
            assert (await state.latest(FULL)) == (5, b"five", None)
            assert has(await state.look(), 1, 5, False)
            assert not has(await state.look(), 2, 5, False)
            assert not has(await state.look(), 1, 5, True)
            told = await state.sync(Query(1, 0, 5, 0), 3, None, 0.0)
            assert told == (born, False, 5, None)
            assert has(await state.look(), 2, 5, False)
            look = await state.look()
            assert look.silence[0] == float("inf") > look.silence[1] >= 0
            # Replaced while it waits: it is told to end, and does not count any more.
            waiting_too = asyncio.ensure_future(state.sync(Query(1, 0, 5, 0), 4, None, PATIENCE))
            await asyncio.sleep(0)
            await state.replace(1, 1)
            assert (await waiting_too).stopped
            assert not has(await state.look(), 2, 5, False)
            assert (await state.look()).silence[1] == float("inf")
            await state.sync(Query(1, 0, 9, 0), 5, None, 0.0)
            assert (await state.look()).generations == (0, 1)
            assert not has(await state.look(), 2, 5, False)
            await state.stop()
            assert (await state.pull(first, FULL, 5, PATIENCE))[0].stopped

        asyncio.run(talk())


class Handle:
    """A state that lives in this process, and is asked like one on Ray."""

    def __init__(self, processes: int) -> None:
        self.actor = State(processes)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def __getattr__(self, name: str) -> Any:
        def remote(*arguments: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(
                getattr(self.actor, name)(*arguments), self._loop
            )

        return SimpleNamespace(remote=remote)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class TestStateLost:
    def test_the_compressor_publishes_again(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The learner waits for what only the compressor has, which waits for the learner."""
        ray_links = pytest.importorskip("vinoreward_actors.actor_learner.engines.ray.links")
        monkeypatch.setattr(
            ray_links, "ray", SimpleNamespace(get=lambda future: future.result(PATIENCE))
        )
        handle = Handle(2)

        def ask(name: str, *arguments: Any) -> Any:
            return getattr(handle, name).remote(*arguments).result(PATIENCE)

        def learner_publishes() -> None:
            ask("publish", SETTINGS, Published(0, ActorSettings().to_json(), None))
            ask("publish", FULL, Published(5, b"five", np.empty(0, np.uint8)))
            ask("pull", Query(0, 0, -1, 0), FULL, -1, 0.0)  # so does the actor

        learner_publishes()
        messages = SimpleNamespace(put=lambda message: None)
        link = ray_links.RayCompressorLink(Identity(handle, 1, 0, beat=0.01), messages)
        assert link.pull(0, -1).version == 5
        link.publish(random_policy(NUMBERED, 5))
        assert has(ask("look"), 1, 5, True)
        made = ask("latest", COMPRESSED)
        handle.actor = State(2)  # Ray starts it anew, empty, and the publisher sends again
        learner_publishes()
        assert link.pull(0, 5) is None
        until(lambda: has(ask("look"), 1, 5, True))
        assert ask("latest", COMPRESSED) == made
        ask("stop")
        until(lambda: link.stopped)
        until(lambda: not any("signs of life" in one.name for one in threading.enumerate()))
        handle.close()


class Answers:
    """A process on Ray that answers when the test says so."""

    def __init__(self) -> None:
        self.asked: dict[str, list[Future[Any]]] = defaultdict(list)

    def __getattr__(self, question: str) -> Any:
        def remote(*arguments: Any) -> Any:
            future: Future[Any] = Future()
            self.asked[question].append(future)
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(remote=remote)


def worker_of(
    told: EngineConfig, watch: engine.StateWatch, actor: Answers
) -> tuple[engine.RayWorker, TrajectoryRequests]:
    """Return the first actor's worker, whose process answers what the test says."""
    requests = TrajectoryRequests(told, lambda number: worker.ask())
    cluster = SimpleNamespace(
        ray=SimpleNamespace(kill=lambda handle, no_restart: None),
        lost=False,
        remote=lambda *a, **b: SimpleNamespace(remote=lambda *c: actor),
    )
    worker = engine.RayWorker("actor 0", 0, told, cluster, watch, requests)
    worker.start()
    return worker, requests


def sent(told: EngineConfig, number: int) -> tuple[bytes, Any]:
    """Return an actor's message ``number``; its trajectory, counter and report say which it is."""
    buffer = np.zeros(told.trajectory.nbytes, np.uint8)
    told.trajectory.view(buffer, 0).versions[...] = number
    counters, reports = {"steps": 9 * (number + 1)}, [("episodes", number)]
    told_of = {"number": number, "counters": counters, "reports": reports}
    return json.dumps(told_of).encode(), buffer


@given(order=st.permutations(range(5)))
@settings(deadline=None, max_examples=50)
def test_messages_are_read_in_the_order_of_sending(order: list[int]) -> None:
    """Ray may bring the answer to a later request first; a fixed lag needs the actor's order."""
    pytest.importorskip("ray")
    told, actor = config(slots=5), Answers()
    worker, requests = worker_of(told, engine.StateWatch(Answers(), lambda: None), actor)
    taken: list[int] = []
    reported: list[int] = []
    for count, number in enumerate(order, 1):
        actor.asked["next"][number].set_result(sent(told, number))
        reported += [value for _, value in worker.look().messages]
        here = next(one for one in range(6) if one not in order[:count])
        assert worker.counter("steps") == 9 * here
        assert requests.rollouts[0] == here
        batch = requests.take(1, timeout=0.0, stop=lambda: False, evenly=True)
        while batch is not None:
            taken += [int(one.versions[0, 0]) for one in batch]
            batch.close()
            batch = requests.take(1, timeout=0.0, stop=lambda: False, evenly=True)
    assert taken == reported == list(range(5))


def test_what_came_of_a_process_that_ended_is_kept() -> None:
    """Its message 1 is lost; 0, 2 and 3 are not. A successor counts from 0 again."""
    pytest.importorskip("ray")
    told, actor = config(slots=5), Answers()
    worker, requests = worker_of(told, engine.StateWatch(Answers(), lambda: None), actor)
    for number in (3, 0, 2):
        actor.asked["next"][number].set_result(sent(told, number))
    assert [value for _, value in worker.look().messages] == [0]
    actor.asked["ended"][0].set_result("it broke")
    status = worker.look()
    assert [value for _, value in status.messages] == [2, 3]
    assert status.ended is not None
    worker.kill()
    worker.generation += 1
    before = len(actor.asked["next"])
    worker.start()
    actor.asked["next"][before].set_result(sent(told, 0))
    assert [value for _, value in worker.look().messages] == [0]
    assert requests.rollouts[0] == 4
    assert worker.counter("steps") == 9 * 4 + 9


def test_nobody_is_silent_because_the_state_was_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has heard of no sign of life yet; what an idle actor has sent is long ago by then."""
    pytest.importorskip("ray")
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(engine, "time", SimpleNamespace(monotonic=lambda: clock.now))
    told, state, actor = config(), Answers(), Answers()
    watch = engine.StateWatch(state, lambda: None)
    worker, _ = worker_of(told, watch, actor)

    def looked(born: str, silence: float) -> float:
        clock.now += 1.0
        watch.wait([worker], 0.0)
        state.asked["look"][-1].set_result(Look(born, -1, (0,), (silence,), (0,)))
        watch.wait([worker], 0.0)
        found: float = worker.look().silence
        return found

    assert looked("first", float("inf")) == float("inf")
    actor.asked["next"][0].set_result(sent(told, 0))
    assert looked("first", float("inf")) == 0.0
    assert worker.counter("steps") == 9
    clock.now += 100.0
    assert looked("first", 0.5) == 0.5
    assert looked("second", float("inf")) == float("inf")
    assert looked("second", 0.25) == 0.25


@pytest.mark.parametrize("saves", [True, False])
def test_where_a_compressor_runs(saves: bool, tmp_path: Path) -> None:
    """With state to write: beside the learner, whatever is free; otherwise where room is."""
    pytest.importorskip("ray")
    told = config(chain=CompressorChain(), folder=tmp_path if saves else None)
    cluster = MagicMock()
    engine.RayWorker("compressor", 1, told, cluster, MagicMock(), MagicMock())
    asked = cluster.remote.call_args.kwargs
    assert asked["num_cpus"] == (0 if saves else 1)
    beside = cluster.beside_us.return_value
    assert asked["scheduling_strategy"] == (beside if saves else "SPREAD")
