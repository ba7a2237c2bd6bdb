"""Bench rows about whole trainings with compressed actors, paired by seed.

Each training is a preset of ``vinoreward actors``, which repeats it alone.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, MissingExtraError
from vinoreward.files import read_json, write_json
from vinoreward_actors.actor_learner.acting.evaluation import FIRST_SEED, Evaluator
from vinoreward_actors.actor_learner.acting.profile import Breakdown
from vinoreward_actors.actor_learner.trainer import ActorLearner, Progress
from vinoreward_actors.command.build import Parts, build, evaluation_environment
from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.run import FINAL_SEED, difference, read_rows
from vinoreward_actors.command.run import train as train_actors
from vinoreward_actors.command.settings import SETTINGS, recorded
from vinoreward_actors.tasks.lookup import find_task, make_task
from vinoreward_training.bench.rows import Row, mean_row, median_row, paired
from vinoreward_training.configs import BenchConfig
from vinoreward_training.runs.report import new_figure, save_figure
from vinoreward_training.runs.run_folder import plain, plain_numbers, reading

EAGER, COMPILED, INT8 = "eager fp32", "openvino fp32", "openvino int8"
MANY = "openvino fp32, 8 environments"
PRESETS = {EAGER: "fp32", COMPILED: "fp32-compiled", INT8: "int8", MANY: "fp32-8-environments"}
"""What presets with an arm are called."""
ARMS = (EAGER, INT8, MANY)
"""Of every row here: batching is compression's strongest competitor."""
COLOURS = {EAGER: "tab:gray", INT8: "tab:blue", MANY: "tab:orange"}
WINDOW = 20
"""Last episodes of the actors: their mean return is compared with the target."""
TIMES = 3.0
RATIOS = {1: "-spi1", 16: ""}
"""Samples per insert, and what the presets with them are called."""
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
CURVES = ("cartpole-balance", "walker-stand")


@dataclass(frozen=True)
class Trained:
    """One training."""

    arm: str
    seed: int
    seconds: float | None
    """Wall time from the first update to the target, or to the last step without one; None if the
    target was not reached."""
    steps: int
    """Environment steps until then."""
    evaluated: float
    """Mean return of the learner's policy, greedy, on other episodes."""
    error: float
    """Its standard error."""
    profile: Breakdown
    """Of the actor, once it acted with its final kind of weights."""
    learner_ms: float
    """Of the learner, per environment step."""
    step_ms: float
    """Wall time per environment step, once everything was running."""

    def __str__(self) -> str:
        when = "not reached" if self.seconds is None else f"{self.seconds:.1f} s"
        return (
            f"{self.arm}, seed {self.seed}: {when} after {self.steps} steps; greedy "
            f"{self.evaluated:.0f} ± {self.error:.0f}; actor step "
            f"{self.profile.step_cpu * 1e3:.2f} ms, learner {self.learner_ms:.2f}, together "
            f"{self.step_ms:.2f} ms per step"
        )


Arms = Mapping[str, Sequence[Trained]]
"""Arm to its trainings, by seed; the first arm is what the others are compared with."""


def preset(name: str, seed: int, **changes: Any) -> ActorsConfig:
    """Return a preset's settings with some of them changed."""
    settled = SETTINGS.of(preset=name, seed=seed)
    return dataclasses.replace(settled, **changes)


@dataclass
class _Watch:
    """Progress callback of a training: stops at the target and records times."""

    config: ActorsConfig
    parts: Parts
    trainer: ActorLearner
    evaluator: Evaluator | None
    """Plays the learner's policy; None: the target is for the actors' last episodes."""
    evaluated_at: int = 0
    evaluating: float = 0.0
    began: float | None = None
    reached: float | None = None
    warm: tuple[float, int, Breakdown] | None = None

    def __call__(self, progress: Progress) -> bool:
        now = time.monotonic()
        if self.began is None:
            self.began = now  # starting processes and importing torch is no part of the comparison
        if self.warm is None and self.parts.warm(progress):
            self.warm = (now, progress.steps, self.trainer.profile()[0])
        if self.config.target is not None and self._arrived(progress, self.config.target):
            self.reached = now
        return self.reached is not None

    def _arrived(self, progress: Progress, target: float) -> bool:
        if self.evaluator is None:
            recent = self.trainer.recent_returns[-WINDOW:]
            return len(recent) == WINDOW and statistics.fmean(recent) >= target
        if progress.steps - self.evaluated_at < self.config.evaluate_every:
            return False
        self.evaluated_at, start = progress.steps, time.monotonic()
        seeds = range(FIRST_SEED, FIRST_SEED + self.config.evaluation_episodes)
        policy = self.parts.learner.policy(0)
        arrived = self.evaluator.play(policy, seeds, "openvino").mean >= target
        self.evaluating += 0.0 if arrived else time.monotonic() - start
        return arrived


def train(arm: str, config: ActorsConfig, *, greedy: bool = False) -> Trained:
    """Train until the target is reached, or for all steps.

    The mean return of the actors' last episodes has to reach it; with ``greedy``, that of the
    learner's policy in an evaluation every ``evaluate_every`` steps, whose time does not count.
    """
    with (
        # Evaluations beside the training would take part of its processors, which are timed.
        contextlib.closing(build(dataclasses.replace(config, evaluate_every=0))) as parts,
        Evaluator(evaluation_environment(config), "openvino") as evaluator,
    ):
        trainer = parts.trainer(config, None)
        watch = _Watch(config, parts, trainer, evaluator if greedy else None)
        summary = trainer.learn(config.steps, watch)
        if watch.began is None:
            raise ConfigError(
                f"{arm} on {config.task} learned nothing in {config.steps} steps. Expected enough "
                "for a first update; give it more steps."
            )
        ended = (watch.reached or time.monotonic()) - watch.evaluating
        seeds = range(FINAL_SEED + config.seed, FINAL_SEED + config.seed + config.final_episodes)
        played = evaluator.play(parts.learner.policy(0), seeds, "openvino")
    since, at, before = watch.warm or (watch.began, 0, None)
    return Trained(
        arm,
        config.seed,
        ended - watch.began if watch.reached or config.target is None else None,
        summary.steps,
        played.mean,
        played.error,
        difference(summary.profile, before),
        summary.learner_seconds * 1e3,
        (ended - since) * 1e3 / max(1, summary.steps - at),
    )


def cached(
    config: BenchConfig, name: str, arm: str, settings: ActorsConfig, *, greedy: bool = False
) -> Trained:
    """Train, or with ``resume`` read the same training's result from disk."""
    import torch

    path = config.out / "actor-trainings" / f"{name.replace('/', '-')}-{settings.seed}.json"
    asked = json.loads(json.dumps(plain({**recorded(settings), "greedy": greedy})))
    if config.resume and path.is_file():
        expected = "what bench writes after a training; remove it, and that one is trained again"
        with reading(path, expected):
            stored = read_json(path)
            values = stored["trained"]
            before = Trained(**{**values, "profile": Breakdown(**values["profile"])})
            if {"truth_key": None, **stored["settings"]} == asked:
                return before
    torch.set_num_threads(settings.threads)
    trained = train(arm, settings, greedy=greedy)
    write_json(path, {"settings": asked, "trained": plain_numbers(asdict(trained))})
    return trained


def _paired(
    config: BenchConfig,
    presets: Mapping[str, str],
    seeds: int,
    *,
    greedy: bool = False,
    **changes: Any,
) -> dict[str, list[Trained]]:
    """Train the preset of every arm, seed by seed, the arms in turns."""

    def train(arm: str, seed: int) -> Trained:
        settings = preset(presets[arm], seed, **changes)
        if not changes:
            settings = dataclasses.replace(settings, steps=min(settings.steps, config.actor_steps))
        trained = cached(config, presets[arm], arm, settings, greedy=greedy)
        print(f"{presets[arm]}: {trained}", flush=True)
        return trained

    return paired(config, presets, seeds, train)


def _presets(name: str, suffix: str = "") -> dict[str, str]:
    return {arm: f"{name}-{PRESETS[arm]}{suffix}" for arm in ARMS}


def actor_cartpole_rows(config: BenchConfig) -> list[Row]:
    """Train CartPole with 3x2048 and V-trace in every arm."""
    arms = _paired(config, _presets("actorq/cartpole"), config.seeds)
    what = "CartPole-v0 with V-trace"
    return [
        time_row("actor-cartpole", what, arms, arm, TIMES if arm == INT8 else None)
        for arm in ARMS[1:]
    ]


def actor_classic_rows(config: BenchConfig) -> list[Row]:
    """Train Acrobot and MountainCar with DQN until the learner's greedy policy reaches the target.

    The actors' own returns seldom reach it, as they explore.
    """
    rows = []
    for name, what in CLASSIC.items():
        arms = _paired(config, _presets(name), config.actor_seeds, greedy=True)
        rows += [time_row("actor-classic", what, arms, arm) for arm in ARMS[1:]]
    return rows


def actor_samples_rows(config: BenchConfig) -> list[Row]:
    """Train DQN and D4PG for a fixed number of steps, each step learned from once or 16 times."""
    rows = []
    for name, what in SAMPLES.items():
        for ratio, suffix in RATIOS.items():
            of_what = f"{what}, {ratio} samples per insert"
            rows += _step_rows(config, "actor-samples", of_what, _presets(name, suffix))
    return rows


def actor_pong_rows(config: BenchConfig) -> list[Row]:
    """Train Pong with AcceRL's Original network for a fixed number of steps: time, not return."""
    return _step_rows(config, "actor-pong", "V-trace, pong, Original", PONG)


def _step_rows(config: BenchConfig, name: str, what: str, presets: Mapping[str, str]) -> list[Row]:
    """Run presets with one actor; compare the wall time per step."""
    fixed: dict[str, Any] = {"actors": 1, "target": None, "final_episodes": 2}
    try:
        steps = config.samples_steps
        arms = _paired(config, presets, config.actor_seeds, steps=steps, **fixed)
    except MissingExtraError as error:
        return [Row(name, what, None, note=str(error))]
    rows = []
    for arm in list(presets)[1:]:
        pairs = list(zip(arms[EAGER], arms[arm], strict=True))
        ratios = [slow.step_ms / fast.step_ms for slow, fast in pairs]
        details = {
            "ratios": ratios,
            "lines": [str(one) for pair in pairs for one in pair],
            "training_time_saved_percent": 100.0 * (1.0 - 1.0 / statistics.median(ratios)),
        }
        what_arm = f"{what}, one actor: wall time per step of training, {EAGER} over {arm}"
        note = f"{bound(arms[EAGER])} {bound(arms[arm])} {arms[arm][0].steps} steps each"
        rows.append(median_row(name, what_arm, ratios, "seeds", note=note, details=details))
    return rows


def bound(trained: Sequence[Trained]) -> str:
    """Say what limits an arm: the actor's own step or the learner's share of one."""
    actor = statistics.median(one.profile.step_cpu for one in trained) * 1e3
    learner = statistics.median(one.learner_ms for one in trained)
    took = statistics.median(one.step_ms for one in trained)
    which = "the actor" if actor > learner else "the learner"
    return (
        f"{trained[0].arm}: {took:.2f} ms per step, of an actor's {actor:.2f} and a learner's "
        f"{learner:.2f}: {which} limits."
    )


def time_row(name: str, what: str, arms: Arms, arm: str, times: float | None = None) -> Row:
    """Return how much sooner an arm reaches a return than eager PyTorch: the median of pairs."""
    pairs = list(zip(arms[EAGER], arms[arm], strict=True))
    ratios = [
        slow.seconds / fast.seconds
        for slow, fast in pairs
        if slow.seconds is not None and fast.seconds is not None
    ]
    what = f"{what} to its threshold, 3x2048, one actor: wall time, eager FP32 over {arm}"
    target = "" if times is None else f">= {times:g} x"
    lines = "; ".join(str(one) for pair in pairs for one in pair)
    if len(ratios) < len(pairs):
        missing = f"{len(pairs) - len(ratios)} of {len(pairs)} pairs did not arrive. {lines}"
        return Row(name, what, None, note=missing, target=target)
    details = {"ratios": ratios}
    return median_row(name, what, ratios, "seeds", target=target, note=lines, details=details)


@dataclass(frozen=True)
class Curve:
    """The learning curve of one training."""

    steps: npt.NDArray[np.int64]
    """(E,) environment steps at which the learner's policy was evaluated."""
    returns: npt.NDArray[np.float64]
    """(E,) mean greedy return there."""
    final: float
    """Mean greedy return at the end, of episodes that no other evaluation plays."""
    seconds: float
    """Wall time, evaluations left out."""


Curves = Mapping[str, Sequence[Curve]]
"""Arm to its curves, by seed."""


def actor_curves_rows(config: BenchConfig) -> list[Row]:
    """Train two control tasks in every arm; compare eager and INT8 actors' returns at the end.

    With ``resume``, finished trainings are read and stopped ones continue.
    """
    try:
        make_task(CURVES[0]).close()
    except MissingExtraError as error:
        return [Row("actor-curves", "learning curves of dm_control", None, note=str(error))]

    def curve_of(task: str, arm: str, seed: int) -> Curve:
        folder = config.out / "actor-curves" / f"{task}-{PRESETS[arm]}-{seed}"
        resume = config.resume and (folder / "config.yaml").is_file()
        name = f"actorq/{task}-curve-{PRESETS[arm]}"
        train_actors(preset(name, seed, out=folder, progress=False, resume=resume))
        one = curve(folder)
        print(f"{task}, {arm}: {one.final:.1f}", flush=True)
        return one

    curves = {
        task: paired(config, ARMS, config.actor_seeds, functools.partial(curve_of, task))
        for task in CURVES
    }
    image = draw_curves(config.out / "actor-curves.png", curves)
    return [curve_row(task, arms, image.name) for task, arms in curves.items()]


def curve(folder: Path) -> Curve:
    """Return the curve that a run of ``vinoreward actors`` has left."""
    rows = [row for row in read_rows(folder) if row["kind"] in ("evaluation", "final")]
    points = [row for row in rows if row["kind"] == "evaluation"]
    return Curve(
        np.array([row["step"] for row in points]),
        np.array([row["full"]["mean"] for row in points]),
        float(rows[-1]["full"]["mean"]),
        float(rows[-1]["seconds"]),
    )


def curve_row(task: str, arms: Curves, image: str) -> Row:
    """Return how much return INT8 actors cost; every arm is in the note."""
    eager, int8 = (np.array([one.final for one in arms[arm]]) for arm in (EAGER, INT8))
    lost = float(eager.mean() - int8.mean())
    error = None
    if len(eager) > 1:
        error = math.sqrt((eager.var(ddof=1) + int8.var(ddof=1)) / len(eager))
    values = {arm: [round(one.final, 1) for one in curves] for arm, curves in arms.items()}
    return mean_row(
        "actor-curves",
        f"D4PG on {task}, 2x256: mean return lost by INT8 actors, of {eager.mean():.0f}",
        lost,
        error,
        "one standard error of the difference",
        target="within one standard error",
        met=None if error is None else lost <= error,
        note=f"{find_task(task).title}, the policy of the learner, by seed: {values}; {image}",
        details={"seconds": {arm: [one.seconds for one in arms[arm]] for arm in arms}},
    )


def draw_curves(path: Path, tasks: Mapping[str, Curves]) -> Path:
    """Draw return against steps: each training thinly, an arm's mean in bold."""
    figure = new_figure(6.0 * len(tasks), 4.5)
    for at, (task, arms) in enumerate(tasks.items(), 1):
        axes = figure.add_subplot(1, len(tasks), at)
        for arm, curves in arms.items():
            for one in curves:
                axes.plot(one.steps, one.returns, color=COLOURS[arm], alpha=0.3, linewidth=0.8)
            grid = np.unique(np.concatenate([one.steps for one in curves]))
            mean = np.mean([np.interp(grid, one.steps, one.returns) for one in curves], axis=0)
            axes.plot(grid, mean, color=COLOURS[arm], linewidth=2.2, label=f"{arm}, mean")
        axes.set(title=task, xlabel="environment steps", ylabel="return, greedy", ylim=(0, 1000))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    return save_figure(figure, path)
