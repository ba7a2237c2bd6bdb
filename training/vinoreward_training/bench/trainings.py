"""Bench rows that train: steps and time to a solved task, and what the learned reward costs."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np

from vinoreward_training.bench.encoders import (
    ENVIRONMENT,
    STATE_ENVIRONMENT,
    encoder_bundle,
    not_there,
)
from vinoreward_training.bench.rewards import one_thread
from vinoreward_training.bench.rows import (
    Row,
    median_row,
    paired,
    paired_ratios,
    quartiles,
    range_row,
    wall_and_cpu,
)
from vinoreward_training.configs import BenchConfig, TrainConfig
from vinoreward_training.policy.checkpoint import build_model, load_policy
from vinoreward_training.policy.evaluate import Evaluation, evaluate
from vinoreward_training.policy.train import SETTINGS, train
from vinoreward_training.tasks.environments import make_env

if TYPE_CHECKING:
    from stable_baselines3.common.vec_env import VecEnv

GOAL = 0.95
"""True success rate from which a task counts as solved."""
PIXELS_GOAL = 90
"""True success in percent that a policy from images must show after its training."""
CHECKPOINT_EVERY = 250
"""In steps: the most that a stopped run loses."""
TUNED_ON = range(20)
"""Training seeds on which the presets were tuned: a fair row uses none of them."""
JUDGE_SEED = 500_000
"""First seed of the episodes that decide; evaluations during training use others."""
CNN_LEARNING_RATE = 3e-4
"""SB3's default: the preset's, tuned for the latent, is too high for convolutions."""
MakeEnv = Callable[[], gym.Env[Any, Any]]


@dataclass(frozen=True)
class Training:
    """One training run, up to the evaluation that found it solved."""

    seed: int
    solved_at: int | None
    """Steps; None if it was not solved within the budget."""
    steps: int
    seconds: float
    """Wall time of the training, without the evaluations."""
    true: float = 0.0
    """Share of true successes in the final evaluation."""
    claimed: float = 0.0
    """Share of claimed successes in the same ``episodes``."""
    episodes: int = 0

    def __str__(self) -> str:
        end = "not solved" if self.solved_at is None else f"solved at {self.solved_at} steps"
        return f"{end} ({self.steps} steps, {self.seconds:.0f} s of training)"


def train_to_solved(
    config: BenchConfig, name: str, env_id: str, *, seed: int, steps: int, **settings: Any
) -> Training:
    """Run ``vinoreward train`` with its preset until the task is solved or the steps are spent.

    If an evaluation looks solved, one on other seeds decides. Evaluations are not in the seconds. A
    stopped run continues from its checkpoint. ``settings`` are further options of the command.
    """
    result = train(
        SETTINGS.of(
            out=config.out / "train" / name,
            env=env_id,
            timesteps=steps,
            seed=seed,
            final_episodes=config.evaluation_episodes,
            stop_when_solved=GOAL,
            checkpoint_every=CHECKPOINT_EVERY,
            resume=config.resume,
            **{"bundle": config.bundle, **settings},
        )
    )
    seconds = result.seconds - result.evaluation_seconds
    run = _judged(Training(seed, result.solved_at, result.steps, seconds), result.final)
    print(f"  {name}: {run}", flush=True)
    return run


def _judged(run: Training, final: Evaluation) -> Training:
    """Return the run with the success rates of an evaluation."""
    if final.true is None or final.claimed is None:  # our environments always say
        return run
    return dataclasses.replace(
        run, true=final.true.value, claimed=final.claimed.value, episodes=final.true.trials
    )


def solve_rows(config: BenchConfig) -> list[Row]:
    """Count the steps to >= 95 % true success on the fixed object."""
    return [_solve(config, "solve", "PandaHover-v0", config.train_steps, 8000)]


def solve_random_rows(config: BenchConfig) -> list[Row]:
    """Count the steps to >= 95 % true success on an object that moves every episode."""
    return [_solve(config, "solve-random", "PandaHoverRandom-v0", config.random_steps, None)]


def _solve(config: BenchConfig, name: str, env_id: str, steps: int, limit: int | None) -> Row:
    what = (
        f"SAC, {env_id}, learned reward: steps to >= 95 % true success over "
        f"{config.evaluation_episodes} episodes"
    )
    runs = [
        train_to_solved(config, f"{name}-{seed}", env_id, seed=seed, steps=steps)
        for seed in training_seeds(config)
    ]
    return solved_row(name, what, runs, limit)


def solved_row(name: str, what: str, runs: list[Training], limit: int | None) -> Row:
    """Return the row of several trainings: median steps, best and worst, how many solved."""
    solved = [run.solved_at for run in runs if run.solved_at is not None]
    return range_row(
        name,
        what,
        float(statistics.median(solved)) if solved else None,
        "steps",
        values=solved,
        spread=f"best and worst of {len(runs)} seeds; {len(solved)} of {len(runs)} solved",
        target=f"{len(runs)} of {len(runs)} solved" + (f" in < {limit} steps" if limit else ""),
        met=len(solved) == len(runs) and (limit is None or max(solved) < limit),
        note=seeds_note([run.seed for run in runs]),
        details={"runs": [asdict(run) for run in runs]},
    )


def seeds_note(seeds: Sequence[int]) -> str:
    """Return which training seeds were used, and whether the presets were tuned on any of them."""
    used = f"seed {seeds[0]}" if len(seeds) == 1 else f"seeds {min(seeds)} to {max(seeds)}"
    if any(seed in TUNED_ON for seed in seeds):
        return f"training {used}, on some of which the hyper-parameters were tuned"
    return (
        f"training {used}; the hyper-parameters were tuned on seeds {TUNED_ON[0]} to {TUNED_ON[-1]}"
    )


def training_seeds(config: BenchConfig) -> range:
    """Return the seeds of the trainings."""
    return range(config.first_seed, config.first_seed + config.seeds)


def wall_rows(config: BenchConfig) -> list[Row]:
    """Train once with our default and once in the article's setting; compare wall times."""
    env, same = "PandaHover-v0", {"seed": config.first_seed, "steps": config.train_steps}
    ours = train_to_solved(config, "wall-ours", env, **same)
    print(f"  now the article's setting, at most {config.train_steps} steps; --resume works")
    changes: dict[str, Any] = {"backend": "torch", "env_kwargs": {"fidelity": "article"}}
    bundle = config.article_bundle or config.bundle
    article = train_to_solved(config, "wall-article", env, **same, bundle=bundle, **changes)
    return compared(ours, article)


def compared(ours: Training, article: Training) -> list[Row]:
    """Return the rows that compare one run of ours with one in the article's setting."""
    ratio = article.seconds / ours.seconds if ours.solved_at is not None else None
    bound = ours.solved_at is not None and article.solved_at is None
    per_step = [run.seconds / run.steps for run in (ours, article)]
    return [
        Row(
            "wall",
            'training wall time to solved: fidelity="article" with PyTorch over our default',
            ratio,
            spread="one full run of each, same seed, evaluations not counted",
            target=">= 20 x",
            met=False if bound else None,
            note=f"ours: {ours}; the article's: {article}; {seeds_note([ours.seed])}"
            + ("; a lower bound, as the article's run would have gone on" if bound else ""),
            details={"ours": asdict(ours), "article": asdict(article)},
        ),
        Row(
            "wall",
            "wall time of one training step, learner included: the same two runs",
            per_step[1] / per_step[0],
            spread="mean of each run",
            details={"ours_ms": 1e3 * per_step[0], "article_ms": 1e3 * per_step[1]},
        ),
    ]


def overhead_rows(config: BenchConfig) -> list[Row]:
    """Compare training wall time with the learned and the oracle reward, same seeds, in turns."""
    env = "PandaHover-v0"
    makers: dict[str, MakeEnv] = {
        "learned": lambda: make_env(env, bundle=config.bundle),
        "oracle": lambda: make_env(env, bundle=config.bundle, backend="oracle"),
    }
    what = (
        f"training wall time with the learned reward over that with the oracle reward, {env}, "
        f"{config.overhead_steps} steps of SAC as vinoreward train runs it"
    )
    return _overhead(config, "overhead", what, makers, env, "<= 1.25 x")


def overhead_pixels_rows(config: BenchConfig) -> list[Row]:
    """Compare training wall time: encoder and learned reward over true state and oracle reward."""
    what = (
        f"training wall time per step with encoder and learned reward ({ENVIRONMENT}) over oracle "
        f"reward and true state ({STATE_ENVIRONMENT}), {config.overhead_steps} steps of the same "
        "SAC"
    )
    target = "<= 1.5 x"
    if encoder_bundle(config) is None:
        return [not_there(config, "overhead-pixels", what, target)]
    makers: dict[str, MakeEnv] = {
        "latent": lambda: make_env(ENVIRONMENT, bundle=config.bundle, encoder=config.encoder),
        "state": lambda: make_env(STATE_ENVIRONMENT, bundle=config.bundle, backend="oracle"),
    }
    return _overhead(config, "overhead-pixels", what, makers, ENVIRONMENT, target)


def _overhead(
    config: BenchConfig, name: str, what: str, makers: dict[str, MakeEnv], env_id: str, target: str
) -> list[Row]:
    """Time trainings in two environments, same seeds, in turns: the first's time over the second's.

    Both use the preset of ``env_id``, because the learner's size changes the reward's share.
    """
    settled = SETTINGS.of(env=env_id, timesteps=config.overhead_steps)

    def seconds(kind: str, seed: int) -> Any:
        spent = train_seconds(makers[kind](), settled, seed)
        print(f"  {kind} seed {seed}: {spent[0]:.1f} s", flush=True)
        return spent

    times = paired(config, makers, config.seeds, seconds)
    wall, cpu = (
        {kind: [float(one[at]) for one in times[kind]] for kind in makers} for at in range(2)
    )
    by_cpu = quartiles(paired_ratios(*cpu.values()))[1]
    return [
        median_row(
            name,
            what,
            paired_ratios(*wall.values()),
            "seeds, wall times",
            target=target,
            note=f"by processor time {by_cpu:.3g} x",
            details={"seconds": wall, "processor_seconds": cpu},
        )
    ]


def train_seconds(
    env: gym.Env[Any, Any] | VecEnv,
    settled: TrainConfig,
    seed: int,
    *,
    uncounted: tuple[int, int] = (0, 0),
) -> Any:
    """Return seconds of a training of fixed length, without making its parts.

    They are of the wall, of this process's processor time, and of this thread's alone.
    Steps from the first of ``uncounted`` to the second are taken besides and not counted: networks
    are compiled in them.
    """
    one_thread()
    steps = settled.timesteps or 1
    with contextlib.closing(env):
        # Loads the network and the camera; a run pays that once, whatever its length.
        if isinstance(env, gym.Env):
            env.reset(seed=seed)
            env.step(env.action_space.sample())
        else:
            env.seed(seed)
            env.reset()
            env.step(np.stack([env.action_space.sample() for _ in range(env.num_envs)]))
        learner = build_model(
            settled.algorithm,
            env,
            settled.algorithm_kwargs,
            seed=seed,
            replay_size=uncounted[1] + steps,
            learner=settled.learner or "sb3",
        )
        first, last = min(uncounted[0], steps), uncounted[1]
        spent: Any = 0.0
        for count, counts in ((first, True), (last - first, False), (steps - first, True)):
            if count > 0:
                began = np.append(wall_and_cpu(), time.thread_time())
                learner.learn(count, reset_num_timesteps=False)
                spent += counts * (np.append(wall_and_cpu(), time.thread_time()) - began)
        return spent


def solve_pixels_rows(config: BenchConfig) -> list[Row]:
    """Judge policies that learned through the latent, and what CnnPolicy reaches beside them."""
    what = f"SAC, {ENVIRONMENT}, encoder {config.encoder} and learned reward"
    target = f">= {PIXELS_GOAL}%, {config.pixel_seeds} of {config.pixel_seeds} seeds"
    if encoder_bundle(config) is None:
        return [not_there(config, "solve-pixels", f"{what}: true success", target)]
    runs = [
        _trained(config, f"pixels-{seed}", seed, config.pixel_steps, config.encoder)
        for seed in range(config.first_seed, config.first_seed + config.pixel_seeds)
    ]
    budget = config.cnn_steps or max(run.steps for run in runs)
    print(f"  now CnnPolicy, at most {budget} steps; Ctrl-C and --resume work", flush=True)
    cnn = _trained(config, "pixels-cnn", config.first_seed, budget, None)
    return [*latent_rows(what, target, runs), cnn_row(runs, cnn, budget)]


def _trained(
    config: BenchConfig, name: str, seed: int, steps: int, encoder: str | None
) -> Training:
    """Train on images with the learned reward, then judge the policy on other episodes.

    Training stops at a good evaluation, which therefore overstates success.
    """
    run = train_to_solved(
        config,
        name,
        ENVIRONMENT,
        seed=seed,
        steps=steps,
        encoder=encoder,
        algorithm_kwargs={} if encoder is not None else {"learning_rate": CNN_LEARNING_RATE},
    )
    with contextlib.closing(make_env(ENVIRONMENT, bundle=config.bundle, encoder=encoder)) as env:
        policy = load_policy(config.out / "train" / name, env)
        run = _judged(run, evaluate(policy, env, config.evaluation_episodes, JUDGE_SEED))
    print(f"  {name}: {run.true:.0%} true success", flush=True)
    return run


def latent_rows(what: str, target: str, runs: list[Training]) -> list[Row]:
    """Return the rows of the policies that learned through the latent: how well, how soon."""
    rates = [100.0 * run.true for run in runs]
    steps = [float(run.steps) for run in runs]
    return [
        range_row(
            "solve-pixels",
            f"{what}: true success over {runs[0].episodes} episodes after training, worst seed",
            min(rates),
            "%",
            values=rates,
            spread=f"worst and best of {len(runs)} seeds",
            target=target,
            note=f"{each(runs)}; {seeds_note([run.seed for run in runs])}",
            details={"runs": [asdict(run) for run in runs]},
        ),
        range_row(
            "solve-pixels",
            f"{what}: steps of training, until an evaluation showed >= {GOAL:.0%} true success",
            statistics.median(steps),
            "steps",
            values=steps,
            spread=f"least and most of {len(runs)} seeds",
            note=f"{sum(run.solved_at is not None for run in runs)} of {len(runs)} showed it",
        ),
    ]


def each(runs: list[Training]) -> str:
    """Return a sentence on what every training reached."""
    return "; ".join(
        f"seed {run.seed}: {run.true:.0%} true and {run.claimed:.0%} claimed success after "
        f"{run.steps} steps, {run.seconds:.0f} s of training"
        for run in runs
    )


def cnn_row(runs: list[Training], cnn: Training, budget: int) -> Row:
    """Return what CnnPolicy reached with as many steps, and how long that took."""
    ours = [run.seconds / run.steps for run in runs]
    per_step = cnn.seconds / cnn.steps
    return Row(
        "solve-pixels",
        f"SB3's CnnPolicy on the same images and reward: true success over {cnn.episodes} "
        f"episodes within {budget} steps",
        100.0 * cnn.true,
        "%",
        spread="one seed",
        note=f"{cnn}; SB3's learning rate, else the same hyper-parameters; "
        f"{1e3 * per_step:.0f} ms a step, through the encoder {1e3 * sum(ours) / len(ours):.0f} "
        f"ms; {seeds_note([cnn.seed])}",
        details={"run": asdict(cnn), "seconds_per_step": {"cnn": per_step, "encoder": ours}},
    )
