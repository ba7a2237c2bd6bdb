"""Results of an actors' run: plots, ``report.html``, ``summary.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vinoreward.actor_learner.acting.evaluation import Pair, Played
from vinoreward.actor_learner.acting.profile import PARTS, Breakdown
from vinoreward.actor_learner.progress import NEAR_ZERO
from vinoreward.errors import InputError
from vinoreward.files import write_json
from vinoreward.monitoring.batch import paired_gap
from vinoreward_training.actors.plots import (
    NAMES,
    draw_compression,
    draw_lag,
    draw_profile,
    draw_readings,
    draw_returns,
)
from vinoreward_training.actors.record import plain_numbers
from vinoreward_training.configs import ActorsConfig
from vinoreward_training.policy.evaluate import rate_of, rate_row
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.report import Section, configuration, write_report
from vinoreward_training.runs.run_folder import plain

Row = Mapping[str, Any]
SUMMARY = "summary.json"
MACHINE = ("cpu", "cores", "system", "python", "commit")


@dataclass(frozen=True)
class Outcome:
    """Result of an actors' run.

    Attributes:
        folder: the run's.
        steps: environment steps.
        updates: of the learner.
        seconds: wall time, including earlier processes.
        evaluation_seconds: of this process's evaluations; all but the last ran during training.
        reached_at: steps when an evaluation reached the target; None if none did or no target.
        reached_seconds: the same in seconds.
        pair: the last evaluation.
        breakdown: of an actor's time, after start-up.
        learner_seconds: wall time of updates and pushes per environment step.
        verdict: sentence on whether compression can pay here.
        compressed_share: see :class:`~vinoreward.actor_learner.progress.Summary`.
        staleness: likewise.
    """

    folder: Path
    steps: int
    updates: int
    seconds: float
    evaluation_seconds: float
    reached_at: int | None
    reached_seconds: float | None
    pair: Pair
    breakdown: Breakdown
    learner_seconds: float
    verdict: str
    compressed_share: float
    staleness: float


def share_words(share: float, staleness: float) -> str:
    """Return a sentence on compressed steps and their age, with advice if there are almost none.

    Args:
        share: see :class:`~vinoreward.actor_learner.progress.Summary`; NaN gives an empty string.
        staleness: likewise.
    """
    if math.isnan(share):
        return ""
    words = "acted compressed: 0% of the steps"
    if not math.isnan(staleness):
        words = (
            f"acted compressed: {share:.0%} of the steps since the first, with weights "
            f"{staleness:.0f} pushes old (median)"
        )
    if share >= NEAR_ZERO:
        return words
    return (
        f"{words}. Train for longer, use a cheaper compression (a smaller student, distill "
        "batch=16), or allow older weights (--max-staleness)"
    )


def gap_words(pair: Pair) -> str:
    """Return a sentence on the return lost to compression on the same episodes."""
    if pair.compressed is None:
        return "Nothing was compressed."
    apart = pair.full.version - pair.compressed.version
    late = f" (made of weights {apart} pushes older)" if apart else ""
    returns = pair.returns
    if returns is None:
        lost = pair.full.mean - pair.compressed.mean
        return f"The compressed policy{late} has {_apart(lost)} on the same episodes."
    try:
        gap = paired_gap(returns)
    except InputError:
        return "Too few episodes to say what compression costs."
    kept = "certainly worse" if gap.worse else "not certainly worse"
    return (
        f"On the same {len(pair.seeds)} episodes the compressed policy has {_apart(gap.mean)} "
        f"(standard error {gap.error:.2g}): {kept}."
    )


def _apart(lost: float) -> str:
    if lost == 0.0:
        return "the same return"
    return f"{abs(lost):.4g} {'more' if lost < 0.0 else 'less'} return"


def breakdown_rows(found: Breakdown) -> list[dict[str, object]]:
    """Return the table of an actor's time."""
    total = max(found.step_cpu, 1e-12)
    return [
        {
            "part": NAMES[part],
            "processor µs per step": round(1e6 * found.cpu[part], 1),
            "wall µs per step": round(1e6 * found.wall[part], 1),
            "share of processor time": f"{found.cpu[part] / total:.0%}",
        }
        for part in PARTS
    ]


def aligned(rows: Sequence[Row], *, left: int = 0, indent: int = 0) -> str:
    """Return a table as lines of text.

    Args:
        rows: all with the same keys, which head the columns.
        left: number of columns that are aligned to the left.
        indent: spaces before each line.
    """
    lines = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        " " * indent
        + "  ".join(
            cell.ljust(width) if at < left else cell.rjust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def write_summary(config: ActorsConfig, outcome: Outcome, rows: Sequence[Row]) -> None:
    """Write the pictures, ``report.html`` and ``summary.json`` into the run folder."""
    folder, pair = outcome.folder, outcome.pair
    machine = describe_machine()
    title = f"{config.algorithm} on {config.task}, {config.compress}, seed {config.seed}"
    curve = draw_returns(folder / "returns.png", title, rows, config.target)
    profile = draw_profile(folder / "profile.png", {"an actor": outcome.breakdown})
    lag = draw_lag(folder / "lag.png", rows)
    readings = draw_readings(folder / "readings.png", rows)
    compression = draw_compression(folder / "compression.png", rows)
    sections = [
        Section("Does compression pay here?", f"{outcome.verdict}\n{gap_words(pair)}"),
        Section("Result", "Without exploration, on fresh episodes.", _result_rows(pair)),
        *_success(pair),
        Section("In figures", facts=_figures(config, outcome)),
        Section(
            "Return",
            "Grey: training episodes, in which actors explore. Dots: both policies on the same "
            "episodes of one version, played beside the training.",
            pictures=[curve],
        ),
        Section(
            "Where an actor's time goes",
            "Per environment step of one actor, once everything was compiled.",
            breakdown_rows(outcome.breakdown),
            [profile],
        ),
        Section("How old the actors' weights were", pictures=[lag]),
    ]
    if readings is not None:
        sections.append(Section("What the monitor read", pictures=[readings]))
    if compression is not None:
        text = "" if _texts(rows, "change") else "It was not changed while training ran."
        changes = _texts(rows, "change")
        sections.append(Section("How strongly was compressed", text, changes, [compression]))
    if _texts(rows, "event"):
        sections.append(Section("What happened to processes", rows=_texts(rows, "event")))
    sections += [
        Section("Evaluations", rows=_evaluations(rows)),
        Section("Machine", facts={name: machine[name] for name in MACHINE}),
        configuration(config),
    ]
    write_report(folder / "report.html", f"Actors: {title}", sections)
    summary = {**summary_of(config, outcome), "machine": machine}
    write_json(folder / SUMMARY, plain_numbers(summary))


def summary_of(config: ActorsConfig, outcome: Outcome) -> dict[str, Any]:
    """Return the content of ``summary.json``, but for the machine."""
    pair = outcome.pair
    settings = ("task", "algorithm", "compress", "seed", "target")
    results = {
        name: plain(value)
        for name, value in vars(outcome).items()
        if name not in ("folder", "pair")
    }
    return {
        **{name: getattr(config, name) for name in settings},
        **results,
        "full_return": pair.full.mean,
        "full_error": pair.full.error,
        "compressed_return": None if pair.compressed is None else pair.compressed.mean,
    }


def policies_of(pair: Pair) -> list[tuple[str, Played]]:
    """Return the names and results of the evaluated policies."""
    both = (("full precision", pair.full), ("compressed", pair.compressed))
    return [(name, played) for name, played in both if played is not None]


def _result_rows(pair: Pair) -> list[dict[str, object]]:
    return [
        {
            "policy": name,
            "mean return": round(played.mean, 3),
            "standard error": round(played.error, 3),
            "episodes": len(played.returns),
            "mean length": float(played.lengths.mean()),
            "version": played.version,
        }
        for name, played in policies_of(pair)
    ]


def _success(pair: Pair) -> list[Section]:
    if pair.full.true is None and pair.full.claimed is None:
        return []
    rows = []
    for name, played in policies_of(pair):
        rows.append(rate_row(f"{name}: claimed by the reward", rate_of(played.claimed)))
        rows.append(rate_row(f"{name}: true, by the simulator", rate_of(played.true)))
    text = "Success of each episode's last state. Where the two differ, the reward is fooled."
    return [Section("Claimed and true success", text, rows)]


def _figures(config: ActorsConfig, outcome: Outcome) -> dict[str, object]:
    target = "none" if config.target is None else "not reached"
    if outcome.reached_at is not None and outcome.reached_seconds is not None:
        target = f"{outcome.reached_at} steps, {outcome.reached_seconds:.1f} s"
    values: dict[str, object] = {
        "environment steps": outcome.steps,
        "updates of the learner": outcome.updates,
        "seconds": round(outcome.seconds, 1),
        "evaluations, played beside (this process)": round(outcome.evaluation_seconds, 1),
        "target": target,
        "processor µs of an actor's step": round(1e6 * outcome.breakdown.step_cpu, 1),
        "share of network and weights": f"{outcome.breakdown.share_of_network:.0%}",
        "learner's µs per environment step": round(1e6 * outcome.learner_seconds, 1),
    }
    if not math.isnan(outcome.compressed_share):
        values["steps that acted compressed, from the first one on"] = (
            f"{outcome.compressed_share:.0%}"
        )
        values["pushes by which their weights were behind (median)"] = (
            "none acted" if math.isnan(outcome.staleness) else round(outcome.staleness)
        )
    return values


def _texts(rows: Sequence[Row], kind: str) -> list[dict[str, object]]:
    return [{"step": row["step"], "what": row["text"]} for row in rows if row["kind"] == kind]


def _evaluations(rows: Sequence[Row]) -> list[dict[str, object]]:
    found = []
    for row in rows:
        if row["kind"] not in ("evaluation", "final"):
            continue
        full, compressed = row["full"], row["compressed"] or {}
        line: dict[str, object] = {
            "step": row["step"],
            "full": full["mean"],
            "compressed": compressed.get("mean"),
            "episodes": len(row["seeds"]),
        }
        for name in ("claimed", "true"):
            if full.get(name) is not None:
                line[f"{name} success"] = f"{full[name]:.0%}"
        found.append(line)
    return found
