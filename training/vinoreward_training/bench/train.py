"""Bench rows that train: steps to a solved task, and what the learned reward costs."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym

from vinoreward_training.bench.network import one_thread
from vinoreward_training.bench.statistics import Row, paired_ratio, quartiles
from vinoreward_training.configs.bench import BenchConfig
from vinoreward_training.configs.train import TrainConfig
from vinoreward_training.policy.checkpoint import build_model
from vinoreward_training.policy.train import train
from vinoreward_training.runs.settings import resolve

if TYPE_CHECKING:
    from vinoreward_training.configs.train import TrainConfig

GOAL = 0.95
"""True success rate from which a task counts as solved."""
CHECKPOINT_EVERY = 250
"""A stopped run loses at most so many steps."""
TUNED_ON = range(8)
"""Training seeds on which the presets were tuned: a fair row uses none of them."""


@dataclass(frozen=True)
class Training:
    """One training run, up to the evaluation that found it solved.

    Attributes:
        seed: of weights, exploration and environment.
        solved_at: steps, None if it was not solved within the budget.
        steps: steps trained.
        seconds: wall time of the training, without the evaluations.
        true: share of true successes in the final evaluation.
        claimed: share of claimed successes in the same.
        episodes: episodes of the final evaluation.
    """

    seed: int
    solved_at: int | None
    steps: int
    seconds: float
    true: float = 0.0
    claimed: float = 0.0
    episodes: int = 0


def train_to_solved(
    config: BenchConfig,
    name: str,
    env_id: str,
    *,
    seed: int,
    steps: int,
    bundle: str | None = None,
    backend: str = "openvino",
    fidelity: str | None = None,
    encoder: str | None = None,
    save_replay: bool = True,
    algorithm_kwargs: Mapping[str, float] | None = None,
) -> Training:
    """Run ``vinoreward train``, its preset included, until the task is solved or steps are spent.

    Now and then (as the preset says) a few episodes are played; if they look solved, the final
    number decides, on seeds that no other evaluation uses. Evaluations are not in the seconds. A
    run that was stopped goes on from its checkpoint, its seconds with it.
    """

    result = train(
        TrainConfig(
            out=config.out / "train" / name,
            env=env_id,
            timesteps=steps,
            seed=seed,
            backend=backend,
            bundle=bundle or config.bundle,
            env_kwargs={} if fidelity is None else {"fidelity": fidelity},
            final_episodes=config.evaluation_episodes,
            stop_when_solved=GOAL,
            checkpoint_every=CHECKPOINT_EVERY,
            encoder=encoder,
            save_replay=save_replay,
            algorithm_kwargs=dict(algorithm_kwargs or {}),
            resume=config.resume,
            explicit=("final_episodes", "stop_when_solved", "checkpoint_every", "seed"),
        )
    )
    final = result.final
    return Training(
        seed=seed,
        solved_at=result.solved_at,
        steps=result.steps,
        seconds=result.seconds - result.evaluation_seconds,
        true=0.0 if final.true is None else final.true.value,
        claimed=0.0 if final.claimed is None else final.claimed.value,
        episodes=0 if final.true is None else final.true.trials,
    )


def solved_row(name: str, what: str, runs: list[Training], limit: int | None) -> Row:
    """Return the row of several trainings: median steps, best and worst, how many solved."""
    solved = [run.solved_at for run in runs if run.solved_at is not None]
    everyone = len(solved) == len(runs)
    met = everyone and (limit is None or max(solved) < limit)
    return Row(
        name,
        what,
        float(statistics.median(solved)) if solved else None,
        "steps",
        low=float(min(solved)) if solved else None,
        high=float(max(solved)) if solved else None,
        spread=f"best and worst of {len(runs)} seeds; {len(solved)} of {len(runs)} solved",
        target=f"{len(runs)} of {len(runs)} solved" + (f" in < {limit} steps" if limit else ""),
        met=met,
        note=seeds_note([run.seed for run in runs]),
        details={"runs": [asdict(run) for run in runs]},
    )


def seeds_note(seeds: Sequence[int]) -> str:
    """Return which training seeds were used, and whether the presets were tuned on any of them."""
    used = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {min(seeds)} to {max(seeds)}"
    if not seeds or any(seed in TUNED_ON for seed in seeds):
        return f"training {used}, on some of which the hyper-parameters were tuned"
    return (
        f"training {used}; the hyper-parameters were tuned on seeds {TUNED_ON[0]} to {TUNED_ON[-1]}"
    )


def training_seeds(config: BenchConfig) -> range:
    """Return the seeds of the trainings."""
    return range(config.first_seed, config.first_seed + config.seeds)


def _solve(config: BenchConfig, name: str, env_id: str, steps: int) -> list[Training]:
    runs = []
    for seed in training_seeds(config):
        run = train_to_solved(config, f"{name}-{seed}", env_id, seed=seed, steps=steps)
        print(f"  {env_id} seed {seed}: {told(run)}", flush=True)
        runs.append(run)
    return runs


def told(run: Training) -> str:
    """Return how a training ended, in words."""
    end = "not solved" if run.solved_at is None else f"solved at {run.solved_at} steps"
    return f"{end} ({run.steps} steps, {run.seconds:.0f} s of training)"


def solve_rows(config: BenchConfig) -> list[Row]:
    """Count the steps to >= 95 % true success on the fixed object."""
    runs = _solve(config, "solve", "PandaHover-v0", config.train_steps)
    what = (
        f"SAC, PandaHover-v0, learned reward: steps to >= 95 % true success over "
        f"{config.evaluation_episodes} episodes"
    )
    return [solved_row("solve", what, runs, 8000)]


def solve_random_rows(config: BenchConfig) -> list[Row]:
    """Count the steps to >= 95 % true success on an object that moves every episode."""
    runs = _solve(config, "solve-random", "PandaHoverRandom-v0", config.random_steps)
    what = (
        f"SAC, PandaHoverRandom-v0, learned reward: steps to >= 95 % true success over "
        f"{config.evaluation_episodes} episodes"
    )
    return [solved_row("solve-random", what, runs, None)]


def overhead_rows(config: BenchConfig) -> list[Row]:
    """Compare training wall time with the learned and the oracle reward, same seeds, in turns."""

    def made(backend: str) -> gym.Env[Any, Any]:
        return gym.make("PandaHover-v0", backend=backend, bundle=config.bundle)

    return overhead_row(
        config,
        "overhead",
        f"training wall time with the learned reward over that with the oracle reward, "
        f"PandaHover-v0, {config.overhead_steps} steps of SAC as vinoreward train runs it",
        {"learned": lambda: made("openvino"), "oracle": lambda: made("oracle")},
        # What the preset says: a learner of another size would hide or exaggerate the reward's
        # share.
        resolve(TrainConfig(env="PandaHover-v0", timesteps=config.overhead_steps)),
        1.25,
    )


def overhead_row(
    config: BenchConfig,
    name: str,
    what: str,
    makers: dict[str, Callable[[], gym.Env[Any, Any]]],
    settled: TrainConfig,
    limit: float,
) -> list[Row]:
    """Time trainings in two environments, same seeds, in turns; return the row of their ratio.

    Args:
        config: says which seeds.
        name: of the row.
        what: of the row.
        makers: two names with what makes the environment; the first is divided by the second.
        settled: learner and steps, the same for both.
        limit: highest ratio of wall times, the target.
    """
    first, second = makers
    times: dict[str, list[float]] = {first: [], second: []}
    processor: dict[str, list[float]] = {first: [], second: []}
    seeds = training_seeds(config)
    for seed in seeds:
        for kind in (first, second) if seed % 2 == 0 else (second, first):
            wall, cpu = train_seconds(makers[kind](), settled, seed)
            times[kind].append(wall)
            processor[kind].append(cpu)
            print(f"  {kind} seed {seed}: {wall:.1f} s", flush=True)
    ratio = paired_ratio(times[first], times[second])
    by_cpu = paired_ratio(processor[first], processor[second])
    return [
        Row(
            name,
            what,
            ratio.median,
            low=ratio.low,
            high=ratio.high,
            spread=f"quartiles of {len(seeds)} seeds, wall times",
            target=f"<= {limit} x",
            met=ratio.median <= limit,
            note=f"by processor time {by_cpu.median:.3g} x",
            details={
                "seconds": times,
                "processor_seconds": processor,
                "median_seconds": {kind: quartiles(value)[1] for kind, value in times.items()},
            },
        )
    ]


def train_seconds(env: gym.Env[Any, Any], settled: TrainConfig, seed: int) -> tuple[float, float]:
    """Return wall and processor seconds of a training of fixed length, without making its parts.

    Args:
        env: one environment; it is closed.
        settled: says which learner and how many steps.
        seed: of both.
    """

    one_thread()
    steps = settled.timesteps or 1
    with contextlib.closing(env):
        # Loads the network and the camera; a run pays that once, whatever its length.
        env.reset(seed=seed)
        env.step(env.action_space.sample())
        learner = build_model(
            settled.algorithm, env, settled.algorithm_kwargs, seed=seed, replay_size=steps
        )
        wall, cpu = time.perf_counter(), time.process_time()
        learner.learn(steps)
        return time.perf_counter() - wall, time.process_time() - cpu
