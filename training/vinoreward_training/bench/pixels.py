"""Bench rows that train on pictures: through an encoder, and with SB3's CnnPolicy."""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
from dataclasses import asdict

from vinoreward_training.bench.encoders import ENVIRONMENT, encoder_bundle, not_there
from vinoreward_training.bench.statistics import Row
from vinoreward_training.bench.train import GOAL as SOLVED
from vinoreward_training.bench.train import (
    Training,
    overhead_row,
    seeds_note,
    told,
    train_to_solved,
)
from vinoreward_training.configs.bench import BenchConfig
from vinoreward_training.configs.train import TrainConfig
from vinoreward_training.policy.evaluate import evaluate
from vinoreward_training.policy.files import load_policy
from vinoreward_training.runs.settings import resolve
from vinoreward_training.tasks.environments import make_env

GOAL = 0.9
"""True success rate that a policy must show after its training."""
JUDGE_SEED = 500_000
"""First seed of the episodes that decide; evaluations during training use others."""
STATE_ENVIRONMENT = "PandaHoverRandom-v0"
"""The same task with the true places instead of the picture."""
OVERHEAD_LIMIT = 1.5
CNN_LEARNING_RATE = 3e-4
"""SB3's default: the preset's was found for the latent, and convolutions take less."""


def overhead_pixels_rows(config: BenchConfig) -> list[Row]:
    """Compare training wall time: encoder and learned reward over true state and oracle reward."""

    what = (
        f"training wall time per step with encoder and learned reward ({ENVIRONMENT}) over oracle "
        f"reward and true state ({STATE_ENVIRONMENT}), {config.overhead_steps} steps of the same "
        "SAC"
    )
    if encoder_bundle(config) is None:
        return [not_there(config, "overhead-pixels", what, f"<= {OVERHEAD_LIMIT} x")]
    return overhead_row(
        config,
        "overhead-pixels",
        what,
        {
            "latent": lambda: make_env(ENVIRONMENT, bundle=config.bundle, encoder=config.encoder),
            "state": lambda: make_env(STATE_ENVIRONMENT, bundle=config.bundle, backend="oracle"),
        },
        resolve(TrainConfig(env=ENVIRONMENT, timesteps=config.overhead_steps)),
        OVERHEAD_LIMIT,
    )


def solve_pixels_rows(config: BenchConfig) -> list[Row]:
    """Judge policies that learned through the latent, and what CnnPolicy reaches beside them."""
    what = f"SAC, {ENVIRONMENT}, encoder {config.encoder} and learned reward"
    target = f">= {GOAL:.0%}, {config.pixel_seeds} of {config.pixel_seeds} seeds"
    if encoder_bundle(config) is None:
        return [not_there(config, "solve-pixels", f"{what}: true success", target)]
    runs = []
    for seed in range(config.first_seed, config.first_seed + config.pixel_seeds):
        runs.append(trained(config, f"pixels-{seed}", seed, config.pixel_steps, config.encoder))
        print(f"  latent, seed {seed}: {told(runs[-1])}, {runs[-1].true:.0%}", flush=True)
    budget = config.cnn_steps or max(run.steps for run in runs)
    print(f"  now CnnPolicy, at most {budget} steps; Ctrl-C and --resume work", flush=True)
    cnn = trained(config, "pixels-cnn", config.first_seed, budget, None)
    print(f"  CnnPolicy, seed {cnn.seed}: {told(cnn)}, {cnn.true:.0%}", flush=True)
    return [*latent_rows(what, target, runs), cnn_row(runs, cnn, budget)]


def trained(config: BenchConfig, name: str, seed: int, steps: int, encoder: str | None) -> Training:
    """Train on pictures with the learned reward, then judge the policy on episodes of its own.

    Training stops at an evaluation that went well, so that one is no fair count of what was
    learned: the one that is returned is another, of episodes that no training run has seen.
    """
    run = train_to_solved(
        config,
        name,
        ENVIRONMENT,
        seed=seed,
        steps=steps,
        encoder=encoder,
        # A replay buffer of pictures is over a gigabyte; writing it often would be timed too. A
        # CnnPolicy run that was stopped therefore goes on with an empty one.
        save_replay=encoder is not None,
        algorithm_kwargs={} if encoder is not None else {"learning_rate": CNN_LEARNING_RATE},
    )
    with contextlib.closing(make_env(ENVIRONMENT, bundle=config.bundle, encoder=encoder)) as env:
        policy = load_policy(config.out / "train" / name, env)
        found = evaluate(policy, env, config.evaluation_episodes, JUDGE_SEED)
    if found.true is None or found.claimed is None:  # our environments always say
        return run
    return dataclasses.replace(
        run,
        true=found.true.value,
        claimed=found.claimed.value,
        episodes=found.true.trials,
    )


def latent_rows(what: str, target: str, runs: list[Training]) -> list[Row]:
    """Return the rows of the policies that learned through the latent: how well, how soon."""
    rates = [100.0 * run.true for run in runs]
    steps = [run.steps for run in runs]
    return [
        Row(
            "solve-pixels",
            f"{what}: true success over {runs[0].episodes} episodes after training, worst seed",
            min(rates),
            "%",
            low=min(rates),
            high=max(rates),
            spread=f"worst and best of {len(runs)} seeds",
            target=target,
            met=min(rates) >= 100.0 * GOAL,
            note=f"{each(runs)}; {seeds_note([run.seed for run in runs])}",
            details={"runs": [asdict(run) for run in runs]},
        ),
        Row(
            "solve-pixels",
            f"{what}: steps of training, until an evaluation showed >= {SOLVED:.0%} true success",
            float(statistics.median(steps)),
            "steps",
            low=float(min(steps)),
            high=float(max(steps)),
            spread=f"least and most of {len(runs)} seeds",
            note=f"{sum(run.solved_at is not None for run in runs)} of {len(runs)} showed it",
        ),
    ]


def each(runs: list[Training]) -> str:
    """Return what every training reached, in words."""
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
        f"SB3's CnnPolicy on the same pictures and reward: true success over {cnn.episodes} "
        f"episodes within {budget} steps",
        100.0 * cnn.true,
        "%",
        spread="one seed",
        note=f"{told(cnn)}; SB3's learning rate, else the same hyper-parameters; "
        f"{1e3 * per_step:.0f} ms a step, through the encoder {1e3 * sum(ours) / len(ours):.0f} "
        f"ms; {seeds_note([cnn.seed])}",
        details={"run": asdict(cnn), "seconds_per_step": {"cnn": per_step, "encoder": ours}},
    )
