"""``--pull-study``: compares pull periods in one command (ActorQ's last figure)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vinoreward.actor_learner.acting.profile import PARTS
from vinoreward.files import write_json
from vinoreward_training.actors.plots import draw_study
from vinoreward_training.actors.record import Row, plain_numbers, read_rows
from vinoreward_training.actors.resolve import recorded
from vinoreward_training.actors.run import read_summary, train
from vinoreward_training.configs.actors import ActorsConfig
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.report import Section, write_report
from vinoreward_training.runs.run_folder import RunFolder, plain

Study = Mapping[int, Sequence[Mapping[str, Any]]]


def run_of(config: ActorsConfig, period: int, seed: int) -> ActorsConfig:
    """Return the configuration of one run of a study.

    The monitor only watches, because one that changes the pull period would disturb the study.
    """
    folder = config.out / f"pull-{period}" / f"seed-{seed}"
    return dataclasses.replace(
        config,
        out=folder,
        seed=seed,
        pull_period=period,
        pull_study=(),
        monitor="off" if config.compress == "none" and config.bits == 32 else "watch",
        resume=(folder / "config.yaml").is_file(),
    )


def study(config: ActorsConfig) -> list[dict[str, object]]:
    """Train once for each pull period and seed; write and print one table and one plot.

    Skips finished runs; with ``resume``, a stopped study continues where it was.

    Raises:
        ConfigError: invalid settings, or a folder with another run.
        KeyboardInterrupt: Ctrl-C; the current run has written its checkpoint.
    """
    seeds = range(config.seed, config.seed + config.study_seeds)
    summaries: dict[int, list[dict[str, Any]]] = {period: [] for period in config.pull_study}
    rows: dict[int, list[list[Row]]] = {period: [] for period in config.pull_study}
    with RunFolder(config.out, recorded(config), resume=config.resume) as folder:
        # Seeds in the outer loop, so that all periods see the same load of the machine.
        for seed in seeds:
            for period in config.pull_study:
                one = run_of(config, period, seed)
                print(f"pull period {period}, seed {seed}", flush=True)
                train(one)
                summaries[period].append(read_summary(one.out))
                rows[period].append(read_rows(one.out))
        table = table_of(summaries, rows)
        finals = {period: final_returns(runs) for period, runs in summaries.items()}
        picture = draw_study(folder / "pull_study.png", rows, finals)
        write_json(
            folder / "pull_study.json",
            plain_numbers(
                {
                    "table": table,
                    "seeds": list(seeds),
                    "config": plain(recorded(config)),
                    "machine": describe_machine(),
                }
            ),
        )
        write_report(
            folder / "report.html",
            f"Pull periods: {config.algorithm} on {config.task}",
            [
                Section(
                    "How often to pull weights",
                    f"Seeds {seeds[0]} to {seeds[-1]}, the same for every period. Returns are of "
                    "the learner's last policy, without exploration.",
                    table,
                    [picture],
                )
            ],
        )
    return table


def final_returns(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the final return of each run from the summaries, NaN for none."""
    # JSON has no NaN.
    found = (run["full_return"] for run in runs)
    return [float("nan") if value is None else float(value) for value in found]


def table_of(
    summaries: Study, rows: Mapping[int, Sequence[Sequence[Row]]]
) -> list[dict[str, object]]:
    """Return one row per pull period: means over seeds, and the spread of returns."""
    table: list[dict[str, object]] = []
    for period, runs in summaries.items():
        returns = final_returns(runs)
        lags = [
            float(row["learner"]["lag_mean"])
            for seed in rows[period]
            for row in seed
            if row["kind"] == "train" and row["learner"].get("lag_mean") is not None
        ]
        cpu = [sum(run["breakdown"]["cpu"][part] for part in PARTS) for run in runs]
        pulling = [
            sum(run["breakdown"]["cpu"][part] for part in ("pull", "decode", "load"))
            for run in runs
        ]
        table.append(
            {
                "pull period": period,
                "return": round(float(np.mean(returns)), 2),
                "of each seed": ", ".join(f"{value:.4g}" for value in returns),
                "mean lag": round(float(np.mean(lags)), 2) if lags else None,
                "actor µs per step": round(1e6 * float(np.mean(cpu)), 1),
                "of which pulling": f"{np.sum(pulling) / max(np.sum(cpu), 1e-12):.0%}",
                "seconds": round(float(np.mean([run["seconds"] for run in runs])), 1),
            }
        )
    return table
