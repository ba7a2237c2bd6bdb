"""Bench rows that train: steps to a solved task, wall time, and what the learned reward costs."""

from __future__ import annotations

import contextlib
import shutil
import statistics
import time
from dataclasses import asdict, dataclass

import gymnasium as gym

from vinoreward_training.bench_settings import BenchConfig
from vinoreward_training.bench_statistics import Row, paired_ratio, quartiles

GOAL = 0.95
"""True success rate from which a task counts as solved."""
EVALUATE_EVERY = 250
SCREEN_EPISODES = 10
"""Episodes that must look solved before the full number confirms it, on other seeds."""


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
) -> Training:
    """Run ``vinoreward train`` until the task is solved or ``steps`` are spent.

    Every 250 steps ten episodes are played; if they look solved, the final number decides, on seeds
    that no other evaluation uses. Evaluations are not in the seconds.
    """
    from vinoreward_training.train import TrainConfig, train

    folder = config.out / "train" / name
    if not (folder / "summary.json").is_file():
        # Half a run would count half of its seconds: it starts again.
        shutil.rmtree(folder, ignore_errors=True)
    result = train(
        TrainConfig(
            out=folder,
            env=env_id,
            timesteps=steps,
            seed=seed,
            backend=backend,
            bundle=bundle or config.bundle,
            env_kwargs={} if fidelity is None else {"fidelity": fidelity},
            eval_every=EVALUATE_EVERY,
            eval_episodes=SCREEN_EPISODES,
            final_episodes=config.evaluation_episodes,
            stop_when_solved=GOAL,
            save_replay=False,
            resume=config.resume,
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
        details={"runs": [asdict(run) for run in runs]},
    )


def _solve(config: BenchConfig, name: str, env_id: str, steps: int) -> list[Training]:
    runs = []
    for seed in range(config.seeds):
        run = train_to_solved(config, f"{name}-{seed}", env_id, seed=seed, steps=steps)
        print(f"  {env_id} seed {seed}: {_told(run)}", flush=True)
        runs.append(run)
    return runs


def _told(run: Training) -> str:
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


def wall_rows(config: BenchConfig) -> list[Row]:
    """Train once with our default and once in the article's setting; compare wall times."""
    steps = config.train_steps
    ours = train_to_solved(config, "wall-ours", "PandaHover-v0", seed=0, steps=steps)
    print(f"  ours: {_told(ours)}", flush=True)
    article = train_to_solved(
        config,
        "wall-article",
        "PandaHover-v0",
        seed=0,
        steps=steps,
        bundle=config.article_bundle,
        backend="torch",
        fidelity="article",
    )
    print(f"  article: {_told(article)}", flush=True)
    both = ours.solved_at is not None and article.solved_at is not None
    ratio = article.seconds / ours.seconds if ours.solved_at is not None else None
    per_step = (article.seconds / article.steps) / (ours.seconds / ours.steps)
    return [
        Row(
            "wall",
            'wall time to solved: our default against fidelity="article" with PyTorch',
            ratio,
            spread="one full run of each",
            target=">= 20 x",
            met=both and ratio is not None and ratio >= 20.0,
            note="" if both else "the article's run was not solved: a lower bound at best",
            details={"ours": asdict(ours), "article": asdict(article)},
        ),
        Row(
            "wall",
            "wall time of a training step, learner included: the same two runs",
            per_step,
            spread="one full run of each",
        ),
    ]


def overhead_rows(config: BenchConfig) -> list[Row]:
    """Compare training wall time with the learned and the oracle reward, same seeds, in turns."""
    times: dict[str, list[float]] = {"learned": [], "oracle": []}
    for seed in range(config.seeds):
        order = ("learned", "oracle") if seed % 2 == 0 else ("oracle", "learned")
        for kind in order:
            times[kind].append(_train_seconds(config, kind, seed))
            print(f"  {kind} seed {seed}: {times[kind][-1]:.1f} s", flush=True)
    ratio = paired_ratio(times["learned"], times["oracle"])
    return [
        Row(
            "overhead",
            f"training wall time, {config.overhead_steps} steps: learned against oracle reward",
            ratio.median,
            low=ratio.low,
            high=ratio.high,
            spread=f"quartiles of {config.seeds} seeds",
            target="<= 1.25 x",
            met=ratio.median <= 1.25,
            details={
                "seconds": times,
                "median_seconds": {name: quartiles(value)[1] for name, value in times.items()},
            },
        )
    ]


def _train_seconds(config: BenchConfig, kind: str, seed: int) -> float:
    """Return the wall seconds of a training of fixed length; making the parts is not counted."""
    from vinoreward_training.bench_network import one_thread
    from vinoreward_training.checkpoint import build_model

    one_thread()
    backend = "oracle" if kind == "oracle" else "openvino"
    with contextlib.closing(
        gym.make("PandaHover-v0", backend=backend, bundle=config.bundle)
    ) as env:
        # Loads the network and the camera; a run pays that once, whatever its length.
        env.reset(seed=seed)
        env.step(env.action_space.sample())
        learner = build_model("SAC", env, {}, seed=seed, replay_size=config.overhead_steps)
        began = time.perf_counter()
        learner.learn(config.overhead_steps)
        return time.perf_counter() - began
