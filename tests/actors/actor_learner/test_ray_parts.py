"""What the Ray engine is made of, without a cluster: requests, and messages in order."""

import json
from collections import defaultdict
from concurrent.futures import Future
from types import SimpleNamespace

import numpy as np
import pytest
from engine_runs import config
from hypothesis import given, settings
from hypothesis import strategies as st

from vinoreward_actors.actor_learner.config import SamplesPerInsert
from vinoreward_actors.actor_learner.engines.ray import engine
from vinoreward_actors.actor_learner.engines.ray.exchange import TrajectoryRequests


def arrive(requests, actor, number):
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
    def test_bounded_limited_and_never_stuck(self, actors, slots, ratio, moves):
        """Whatever comes in which order: no actor has more on its way than there is room for."""
        size, sample = 9, 32
        together = size * actors
        buffer = 2 * SamplesPerInsert.smallest_buffer(ratio, together, sample)
        limiter = SamplesPerInsert(ratio, 18, buffer, insert_size=together, sample_size=sample)
        asked = []
        told = config(actors=actors, steps=size, slots=slots, limiter=limiter)
        requests = TrajectoryRequests(told, asked.append)
        requests.ask()
        taken = []
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

    def test_evenly_does_not_depend_on_the_actors_speed(self):
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


class Answers:
    """A process on Ray that answers when the test says so."""

    def __init__(self):
        self.asked = defaultdict(list)

    def __getattr__(self, question):
        def remote(*arguments):
            future = Future()
            self.asked[question].append(future)
            return SimpleNamespace(future=lambda: future)

        return SimpleNamespace(remote=remote)


def worker_of(told, actor):
    """Return the first actor's worker, whose process answers what the test says."""
    requests = TrajectoryRequests(told, lambda number: worker.ask())
    cluster = SimpleNamespace(
        ray=SimpleNamespace(kill=lambda handle, no_restart: None),
        lost=False,
        remote=lambda *a, **b: SimpleNamespace(remote=lambda *c: actor),
    )
    watch = engine.StateWatch(Answers(), lambda: None)
    worker = engine.RayWorker("actor 0", 0, told, cluster, watch, requests)
    worker.start()
    return worker, requests


def sent(told, number):
    """Return an actor's message ``number``; its trajectory, counter and report say which it is."""
    buffer = np.zeros(told.trajectory.nbytes, np.uint8)
    told.trajectory.view(buffer, 0).versions[...] = number
    counters, reports = {"steps": 9 * (number + 1)}, [("episodes", number)]
    told_of = {"number": number, "counters": counters, "reports": reports}
    return json.dumps(told_of).encode(), buffer


@given(order=st.permutations(range(5)))
@settings(deadline=None, max_examples=50)
def test_messages_are_read_in_the_order_of_sending(order):
    """Ray may bring the answer to a later request first; a fixed lag needs the actor's order."""
    pytest.importorskip("ray")
    told, actor = config(slots=5), Answers()
    worker, requests = worker_of(told, actor)
    taken = []
    reported = []
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
