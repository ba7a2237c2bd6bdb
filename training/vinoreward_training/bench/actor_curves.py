"""Bench row about learning with INT8 actors: curves of two control tasks, in a plot.

Actors with eight environments stand beside them, as compression's strongest competitor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.errors import MissingExtraError
from vinoreward.files import atomic_path
from vinoreward_training.actors.record import read_rows
from vinoreward_training.actors.run import train
from vinoreward_training.bench.actor_runs import EAGER, INT8, MANY, PRESETS, preset
from vinoreward_training.bench.rows import Row
from vinoreward_training.configs.bench import BenchConfig
from vinoreward_training.runs.curves import new_figure
from vinoreward_training.tasks.lookup import find_task, make_task

TASKS = ("cartpole-balance", "walker-stand")
ARMS = (EAGER, INT8, MANY)
COLOURS = {EAGER: "tab:gray", INT8: "tab:blue", MANY: "tab:orange"}


@dataclass(frozen=True)
class Curve:
    """One training.

    Attributes:
        steps: (E,) environment steps at which the learner's policy was evaluated.
        returns: (E,) mean greedy return there.
        final: mean greedy return at the end, of episodes that no other evaluation plays.
        seconds: wall time, evaluations left out.
    """

    steps: npt.NDArray[np.int64]
    returns: npt.NDArray[np.float64]
    final: float
    seconds: float


def curve_rows(config: BenchConfig) -> list[Row]:
    """Train two control tasks in every arm; compare eager and INT8 actors' returns at the end."""
    try:
        make_task(TASKS[0]).close()
    except MissingExtraError as error:
        return [Row("actor-curves", "learning curves of dm_control", None, note=str(error))]
    found: dict[str, dict[str, list[Curve]]] = {task: {arm: [] for arm in ARMS} for task in TASKS}
    for task in TASKS:
        for turn in range(config.actor_seeds):
            for arm in ARMS:
                found[task][arm].append(trained(config, task, arm, config.first_seed + turn))
                print(f"{task}, {arm}: {found[task][arm][-1].final:.1f}", flush=True)
    picture = draw(config.out / "actor-curves.png", found)
    return [row(task, found[task], picture.name) for task in TASKS]


def trained(config: BenchConfig, task: str, arm: str, seed: int) -> Curve:
    """Train, or read a training that is there; one that was stopped goes on."""
    folder = config.out / "actor-curves" / f"{task}-{PRESETS[arm]}-{seed}"
    settings = preset(f"actorq/{task}-curve-{PRESETS[arm]}", seed, out=folder, progress=False)
    train(
        dataclasses.replace(settings, resume=config.resume and (folder / "config.yaml").is_file())
    )
    return curve(folder)


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


def row(task: str, found: Mapping[str, Sequence[Curve]], picture: str) -> Row:
    """Return how much less return a policy has whose actors were INT8; every arm is in the note."""
    eager, int8 = (np.array([one.final for one in found[arm]]) for arm in (EAGER, INT8))
    lost = float(eager.mean() - int8.mean())
    error = None
    if len(eager) > 1:
        error = float(np.sqrt(eager.var(ddof=1) / len(eager) + int8.var(ddof=1) / len(int8)))
    values = {arm: [round(one.final, 1) for one in curves] for arm, curves in found.items()}
    return Row(
        "actor-curves",
        f"D4PG on {task}, 2x256: mean return lost by INT8 actors, of {eager.mean():.0f}",
        lost,
        "reward",
        low=None if error is None else lost - error,
        high=None if error is None else lost + error,
        spread="one standard error of the difference",
        target="within one standard error",
        met=None if error is None else lost <= error,
        note=f"{find_task(task).title}, the policy of the learner, by seed: {values}; {picture}",
        details={"seconds": {arm: [one.seconds for one in found[arm]] for arm in values}},
    )


def draw(path: Path, found: Mapping[str, Mapping[str, Sequence[Curve]]]) -> Path:
    """Draw return against steps: each training thinly, an arm's mean in bold."""
    figure = new_figure(6.0 * len(found), 4.5)
    for at, (task, arms) in enumerate(found.items(), 1):
        axes = figure.add_subplot(1, len(found), at)
        for arm, curves in arms.items():
            for one in curves:
                axes.plot(one.steps, one.returns, color=COLOURS[arm], alpha=0.3, linewidth=0.8)
            grid = np.unique(np.concatenate([one.steps for one in curves]))
            mean = np.mean([np.interp(grid, one.steps, one.returns) for one in curves], axis=0)
            axes.plot(grid, mean, color=COLOURS[arm], linewidth=2.2, label=f"{arm}, mean")
        axes.set(title=task, xlabel="environment steps", ylabel="return, greedy", ylim=(0, 1000))
        axes.grid(alpha=0.3)
        axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as part:
        figure.savefig(part, format="png", dpi=110)
    return path
