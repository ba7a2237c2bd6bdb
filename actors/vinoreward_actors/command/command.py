"""``vinoreward actors``: one training, a profile, or a study of pull periods."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vinoreward.files import write_json
from vinoreward_actors.actor_learner.acting.profile import PARTS
from vinoreward_actors.command.config import NONE, OFF, ActorsConfig
from vinoreward_actors.command.profile import profile
from vinoreward_actors.command.report import (
    Row,
    aligned,
    draw_study,
    gap_words,
    policies_of,
    share_words,
)
from vinoreward_actors.command.run import read_rows, read_summary, train
from vinoreward_actors.command.settings import SETTINGS, command, presets, recorded
from vinoreward_training.policy.evaluate import rate_of
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.next_command import resume_command, sibling_path
from vinoreward_training.runs.report import Section, write_report
from vinoreward_training.runs.run_folder import RunFolder, plain, plain_numbers
from vinoreward_training.runs.settings import YamlText
from vinoreward_training.tasks.trust import trust_args

__all__ = ["SETTINGS", "run"]

Study = Mapping[int, Sequence[Mapping[str, Any]]]
"""Pull period to the summaries of its runs, one for each seed."""


def run(config: ActorsConfig) -> int:
    """Run the command; print the results and the next command."""
    if config.list_presets:
        for name, settings in presets().items():
            print(f"{name:<34} {_about(settings)}")
        print("\nnext: vinoreward actors --preset NAME --out runs/NAME")
        return 0
    if config.profile_only is not None:
        profile(config)
        return 0
    if config.pull_study:
        return _study(config)
    return _train(config)


def _about(settings: Mapping[str, object]) -> str:
    words = [str(settings.get(name, "")) for name in ("task", "algorithm", "network")]
    compress = settings.get("compress", "none")
    if compress == "none":
        compress = f"full precision on {settings.get('backend', 'openvino')}"
    if settings.get("bits", 32) != 32:
        compress = f"{compress}, pushes of {settings['bits']} bits"
    return "  ".join([*filter(None, words), str(compress)])


def _train(config: ActorsConfig) -> int:
    outcome = train(config)
    if outcome is None:
        summary = read_summary(config.out)
        arrived = summary["reached_at"] is not None and summary["steps"] < config.steps
        hint = "without its --target, which it reached" if arrived else "with more --steps"
        print(f"the run in {config.out} is finished; to continue, run it {hint}")
        print(f"report: {config.out / 'report.html'}")
        more = config.steps if arrived else 2 * max(config.steps, int(summary["steps"]))
        further = " --target None" if summary["reached_at"] is not None else ""
        print(f"next:   {_again(config)} --steps {more}{further}")
        return 0
    pair = outcome.pair
    print(f"steps: {outcome.steps}, updates: {outcome.updates}, {outcome.seconds:.1f} s")
    for name, played in policies_of(pair):
        print(f"{name}: return {played.mean:.4g} ± {played.error:.2g} (standard error)")
        if played.claimed is not None or played.true is not None:
            print(f"  claimed success: {rate_of(played.claimed) or 'not known'}")
            print(f"  true success:    {rate_of(played.true) or 'not known'}")
    share = share_words(outcome.compressed_share, outcome.staleness)
    if share:
        print(share)
    if config.target is not None:
        reached = "not reached"
        if outcome.reached_at is not None:
            reached = f"reached at step {outcome.reached_at}, {outcome.reached_seconds:.1f} s"
        print(f"target {config.target:g}: {reached}")
    print(f"\n{outcome.verdict}\n{gap_words(pair)}\n")
    print(f"policy: {config.out / 'policy.json'}")
    print(f"curve:  {config.out / 'returns.png'}")
    print(f"report: {config.out / 'report.html'}")
    words = [
        "play",
        "--run",
        str(config.out),
        *trust_args(config.task),
        *trust_args(config.truth, "--truth"),
    ]
    print(f"play:   vinoreward {shlex.join(words)}")
    print(f"next:   {_next(config, outcome.updates)}")
    return 0


def _again(config: ActorsConfig) -> str:
    return resume_command(
        "actors",
        config.out,
        *trust_args(config.task, "--task"),
        *trust_args(config.truth, "--truth"),
    )


def _next(config: ActorsConfig, updates: int) -> str:
    """Return the next command for the user: the other arm of the comparison."""
    if updates == 0:
        return f"{_again(config)} --steps {10 * config.steps}"
    if config.compress == "none":
        out = sibling_path(config.out, "int8")
        return command(config, compress="quantize: int8", out=out, resume=False)
    if config.environments == 1:
        out = sibling_path(config.out, "8-environments")
        return command(config, compress="none", environments=8, out=out, resume=False)
    return f"tensorboard --logdir {config.out / 'logs'}"


def _study(config: ActorsConfig) -> int:
    try:
        table = study(config)
    except KeyboardInterrupt:
        print(f"\nStopped. Continue with: {command(config, resume=True)}")
        raise
    print()
    print(aligned(table))
    print(f"\nplot:   {config.out / 'pull_study.png'}")
    print(f"report: {config.out / 'report.html'}")
    best = max(table, key=lambda row: float(str(row["return"])))
    period = int(str(best["pull period"]))
    out = sibling_path(config.out, "run")
    print(f"next:   {command(config, pull_study=(), pull_period=period, out=out, resume=False)}")
    return 0


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
        monitor=OFF if config.compress == NONE else YamlText("watch"),
        resume=(folder / "config.yaml").is_file(),
    )


def study(config: ActorsConfig) -> list[dict[str, object]]:
    """Train once for each pull period and seed; write and print one table and one plot.

    Skips finished runs; with ``resume``, a stopped study continues where it was.
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
        image = draw_study(folder / "pull_study.png", rows, finals)
        settings, machine = plain(recorded(config)), describe_machine()
        result = {"table": table, "seeds": list(seeds), "config": settings, "machine": machine}
        write_json(folder / "pull_study.json", plain_numbers(result))
        section = Section(
            "How often to pull weights",
            f"Seeds {seeds[0]} to {seeds[-1]}, the same for every period. Returns are of the "
            "learner's last policy, without exploration.",
            table,
            [image],
        )
        title = f"Pull periods: {config.algorithm} on {config.task}"
        write_report(folder / "report.html", title, [section])
    return table


def final_returns(runs: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the final return of each run from the summaries, NaN for none."""
    # JSON has no NaN.
    returns = (run["full_return"] for run in runs)
    return [float("nan") if value is None else float(value) for value in returns]


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
        cpu, pulling = (
            [sum(run["breakdown"]["cpu"][part] for part in parts) for run in runs]
            for parts in (PARTS, ("pull", "decode", "load"))
        )
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
