"""Experiments of ActorQ and AcceRL on this machine: docs/papers.md has their numbers beside ours.

``--part networks``: AcceRL's Table 6, milliseconds of one action. ``parts``: ActorQ's parts of an
actor's time. ``games``: AcceRL's twelve games, INT8 actors from start to end, with its KL monitor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
import sys
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from actor_step import Arm, observations, policy_for
from harness import TRAININGS, Benchmark, Row, Value, interleaved, one_thread
from vinoreward_actors.actor_learner.trainer import Progress
from vinoreward_actors.command.build import build
from vinoreward_actors.command.settings import SETTINGS
from vinoreward_actors.policies.backends.base import make_backend
from vinoreward_actors.tasks.networks import network

NETWORKS = ("original", "net1", "net2", "net3")
GAMES = (
    "alien", "amidar", "beam_rider", "name_this_game", "riverraid", "hero", "space_invaders",
    "breakout", "road_runner", "bank_heist", "pong", "seaquest",
)  # fmt: skip
"""AcceRL's table 4."""
ARMS = {"eager": ("torch", "fp32"), "FP32": ("openvino", "fp32"), "INT8": ("openvino", "int8")}
KL = "kl_pi_mu_max"
"""AcceRL's KL max, equation 5."""
PARTS = {"infer": "step", "pull": "pull", "decode": "deserialize", "load": "load"}
"""Ours to ActorQ's names."""
PRESETS = {"FP32": "actorq/cartpole-fp32", "INT8": "actorq/cartpole-int8"}
ROWS = {
    **{
        f"paper network {name} {arm}": Row(f"AcceRL, table 6: {name.capitalize()}, {arm}")
        for name in NETWORKS
        for arm in ARMS
    },
    **{
        f"paper parts {arm} {part}": Row(f"ActorQ, parts of a step: {arm}, {part}")
        for arm in PRESETS
        for part in PARTS.values()
    },
    **{f"paper game {name}": Row(f"AcceRL, table 4, INT8: {name}") for name in GAMES},
}


def networks(rounds: int) -> Iterator[tuple[str, Value]]:
    """Time every network of table 6 in turns, for one observation."""
    one_thread()
    arms = {
        f"paper network {name} {arm}": Arm(network("pong", name), *kind)
        for name in NETWORKS
        for arm, kind in ARMS.items()
    }
    with contextlib.ExitStack() as stack:
        calls = {}
        for name, arm in arms.items():
            backend = stack.enter_context(make_backend(arm.backend, 1))
            backend.refresh(policy_for(arm, 0))
            calls[name] = functools.partial(backend.infer, observations(arm.spec, 1, 0))
        taken = interleaved(calls, rounds=rounds, calls=20, warm_up=20)
    whole = np.asarray(taken["paper network original eager"].cpu)
    for name, timing in taken.items():
        ratio = float(np.median(whole / np.asarray(timing.cpu)))
        milliseconds = 1e3 * float(np.median(timing.cpu))
        yield name, Value(f"{milliseconds:.3g} ms, {ratio:.3g}×", ratio)


def trained(preset: str, steps: int, **changes: Any) -> dict[str, Any]:
    """Train for so many steps after the actors act with their final kind of weights."""
    one_thread()
    config = SETTINGS.of(preset=preset, seed=TRAININGS)
    config = dataclasses.replace(
        config, evaluate_every=0, target=None, actors=1, steps=100 * steps, **changes
    )
    parts = build(config)
    trainer = parts.trainer(config, None)
    warm: list[tuple[float, int]] = []
    divergences: list[float] = []

    def watch(progress: Progress) -> bool:
        divergences.append(progress.readings.get(KL, math.nan))
        if not warm and parts.warm(progress):
            warm.append((time.monotonic(), progress.steps))
        return bool(warm) and progress.steps >= warm[0][1] + steps

    summary = trainer.learn(config.steps, watch)
    since, at = warm[0]
    return {
        "ms": 1e3 * (time.monotonic() - since) / (summary.steps - at),
        "parts": {said: 1e6 * summary.profile.cpu[part] for part, said in PARTS.items()},
        "kl": max((one for one in divergences if one == one), default=math.nan),
        "share": summary.compressed_share,
        "staleness": summary.staleness,
    }


def parts_of_a_step(steps: int) -> Iterator[tuple[str, Value]]:
    """Train CartPole with 3×2048 and one actor, and take its time apart."""
    for arm, preset in PRESETS.items():
        taken = trained(preset, steps)["parts"]
        for part, microseconds in taken.items():
            yield f"paper parts {arm} {part}", Value(f"{microseconds:.3g} µs", microseconds)


def games(steps: int) -> Iterator[tuple[str, Value]]:
    """Train each game for a short while with INT8 actors under the KL monitor."""
    for game in GAMES:
        got = trained("accerl/pong-kl", steps, task=game)
        figure = (
            f"{got['ms']:.2g} ms a step, KL {got['kl']:.2g}, {100 * got['share']:.0f} % INT8, "
            f"{got['staleness']:.0f} pushes old"
        )
        yield f"paper game {game}", Value(figure, got["ms"], got)


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Run one part."""
    if options.part == "networks":
        yield from networks(options.rounds)
    elif options.part == "parts":
        yield from parts_of_a_step(options.steps)
    else:
        yield from games(options.steps)


BENCH = Benchmark(
    "The papers",
    ROWS,
    measure,
    part=("networks", "parts", "games"),
    rounds=20,
    steps=4000,
)

if __name__ == "__main__":
    sys.exit(BENCH.main())
