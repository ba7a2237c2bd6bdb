"""Bench rows about whole trainings with compressed actors, paired by seed: time to a return, and
time per step where the samples per insert decide what limits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from vinoreward.errors import MissingExtraError
from vinoreward_training.bench.actor_kept import kept
from vinoreward_training.bench.actor_runs import (
    COMPILED,
    EAGER,
    INT8,
    MANY,
    PRESETS,
    Trained,
    bound,
    line,
    preset,
)
from vinoreward_training.bench.rows import Row, quartiles
from vinoreward_training.configs.bench import BenchConfig

TIMES = 3.0
RATIOS = {1: "-spi1", 16: ""}
"""Samples per insert, and what the presets with them are called."""
ARMS = (EAGER, INT8, MANY)
"""Of every row here: batching is compression's strongest competitor, so it stands beside it."""
CLASSIC = {
    "actorq/acrobot-dqn": "Acrobot-v1 with DQN",
    "actorq/mountain-car-dqn": "MountainCar-v0 with DQN",
}
SAMPLES = {
    "actorq/cartpole-dqn": "DQN, CartPole-v0, 3x2048",
    "actorq/cartpole-balance": "D4PG, cartpole-balance, 3x2048",
}
PONG = {
    EAGER: "accerl/pong-original",
    COMPILED: "accerl/pong-original-compiled",
    INT8: "accerl/pong-int8",
    MANY: "accerl/pong-original-8-environments",
}


def cartpole_rows(config: BenchConfig) -> list[Row]:
    """Train CartPole with 3x2048 and V-trace in every arm, seed by seed, the arms in turn."""
    found = _paired(config, "actorq/cartpole", config.seeds)
    return [
        time_row(
            "actor-cartpole", "CartPole-v0 with V-trace", found, arm, TIMES if arm == INT8 else None
        )
        for arm in ARMS[1:]
    ]


def classic_rows(config: BenchConfig) -> list[Row]:
    """Train Acrobot and MountainCar with DQN, ActorQ's other tasks of Gym.

    Until the learner's own policy arrives: actors explore for as long as it learns, and their
    returns would seldom say so.
    """
    rows = []
    for name, what in CLASSIC.items():
        found = _paired(config, name, config.actor_seeds, greedy=True)
        rows += [time_row("actor-classic", what, found, arm) for arm in ARMS[1:]]
    return rows


def _paired(
    config: BenchConfig, name: str, seeds: int, *, greedy: bool = False
) -> dict[str, list[Trained]]:
    found: dict[str, list[Trained]] = {arm: [] for arm in ARMS}
    for turn in range(seeds):
        for arm in (*ARMS[turn % len(ARMS) :], *ARMS[: turn % len(ARMS)]):
            one = f"{name}-{PRESETS[arm]}"
            settings = preset(one, config.first_seed + turn)
            settings = dataclasses.replace(settings, steps=min(settings.steps, config.actor_steps))
            trained = kept(config, one, arm, settings, greedy=greedy)
            found[arm].append(trained)
            print(line(trained), flush=True)
    return found


def samples_rows(config: BenchConfig) -> list[Row]:
    """Train DQN and D4PG for a fixed number of steps, each step learned from once or 16 times."""
    rows = []
    for name, what in SAMPLES.items():
        for ratio, suffix in RATIOS.items():
            presets = {arm: f"{name}-{PRESETS[arm]}{suffix}" for arm in ARMS}
            words = f"{what}, {ratio} samples per insert"
            rows += _step_rows(config, "actor-samples", words, presets)
    return rows


def pong_rows(config: BenchConfig) -> list[Row]:
    """Train Pong with AcceRL's Original network for a fixed number of steps: time, not return."""
    return _step_rows(config, "actor-pong", "V-trace, pong, Original", PONG)


def _step_rows(config: BenchConfig, name: str, what: str, presets: Mapping[str, str]) -> list[Row]:
    """Run presets with one actor, the arms in turn; compare the wall time per step."""
    found: dict[str, list[Trained]] = {arm: [] for arm in presets}
    arms = tuple(presets)
    try:
        for turn in range(config.actor_seeds):
            for arm in arms[turn % len(arms) :] + arms[: turn % len(arms)]:
                settings = preset(
                    presets[arm],
                    config.first_seed + turn,
                    steps=config.samples_steps,
                    actors=1,
                    target=None,
                    final_episodes=2,
                )
                found[arm].append(kept(config, presets[arm], arm, settings))
                print(f"{what}: {line(found[arm][-1])}", flush=True)
    except MissingExtraError as error:
        return [Row(name, what, None, note=str(error))]
    return [_step_row(name, what, found, arm) for arm in arms[1:]]


def _step_row(name: str, what: str, found: Mapping[str, Sequence[Trained]], arm: str) -> Row:
    pairs = list(zip(found[EAGER], found[arm], strict=True))
    ratios = [slow.step_ms / fast.step_ms for slow, fast in pairs]
    low, middle, high = quartiles(ratios)
    return Row(
        name,
        f"{what}, one actor: wall time per step of training, {EAGER} over {arm}",
        middle,
        low=low,
        high=high,
        spread=f"quartiles of {len(ratios)} seeds",
        note=f"{bound(found[EAGER])} {bound(found[arm])} {found[arm][0].steps} steps each",
        details={
            "ratios": ratios,
            "lines": [line(one) for pair in pairs for one in pair],
            "training_time_saved_percent": 100.0 * (1.0 - 1.0 / middle),
        },
    )


def time_row(
    name: str,
    what: str,
    found: Mapping[str, Sequence[Trained]],
    arm: str,
    times: float | None = None,
) -> Row:
    """Return the ratio of times to a return: the median of pairs of one seed.

    Args:
        name: of the row.
        what: was trained.
        found: the trainings of each arm, by seed.
        arm: that is compared with eager PyTorch.
        times: the ratio to reach, None for none.
    """
    pairs = list(zip(found[EAGER], found[arm], strict=True))
    ratios = [
        slow.seconds / fast.seconds
        for slow, fast in pairs
        if slow.seconds is not None and fast.seconds is not None
    ]
    what = f"{what} to its threshold, 3x2048, one actor: wall time, eager FP32 over {arm}"
    lines = "; ".join(line(one) for pair in pairs for one in pair)
    if len(ratios) < len(pairs):
        missing = f"{len(pairs) - len(ratios)} of {len(pairs)} pairs did not arrive. {lines}"
        met = False if times is not None else None
        return Row(name, what, None, note=missing, met=met)
    low, middle, high = quartiles(ratios)
    return Row(
        name,
        what,
        middle,
        low=low,
        high=high,
        spread=f"quartiles of {len(ratios)} seeds",
        target="" if times is None else f">= {times:g} x",
        met=None if times is None else middle >= times,
        note=lines,
        details={"ratios": ratios},
    )
