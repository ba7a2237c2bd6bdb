"""``vinoreward actors``: full-precision learner, compressed actors."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence

from vinoreward_training.actors.profile import profile
from vinoreward_training.actors.report import gap_words, share_words
from vinoreward_training.actors.resolve import command, presets, resolve
from vinoreward_training.actors.run import read_summary, train
from vinoreward_training.actors.study import study
from vinoreward_training.configs.actors import ActorsConfig
from vinoreward_training.policy.evaluate import rate_of
from vinoreward_training.runs.next_command import again, beside
from vinoreward_training.tasks.environments import naming

__all__ = ["ActorsConfig", "run"]


def run(config: ActorsConfig) -> int:
    """Run the command; print the results and the next command."""

    if config.list_presets:
        for name, settings in presets().items():
            print(f"{name:<34} {_about(settings)}")
        print("\nnext: vinoreward actors --preset NAME --out runs/NAME")
        return 0
    settled = resolve(config)
    if settled.profile_only is not None:
        profile(settled)
        return 0
    if settled.pull_study:
        return _study(settled)
    return _train(settled)


def _about(settings: Mapping[str, object]) -> str:
    words = [str(settings.get(name, "")) for name in ("task", "algorithm", "network")]
    compress = settings.get("compress", "none")
    if compress == "none":
        compress = f"full precision on {settings.get('backend', 'openvino')}"
    if settings.get("bits", 32) != 32:
        compress = f"{compress}, pushes of {settings['bits']} bits"
    return "  ".join([*filter(None, words), str(compress)])


def _train(config: ActorsConfig) -> int:

    found = train(config)
    if found is None:
        summary = read_summary(config.out)
        arrived = summary["reached_at"] is not None and summary["steps"] < config.steps
        hint = "without its --target, which it reached" if arrived else "with more --steps"
        print(f"the run in {config.out} is finished; to continue, run it {hint}")
        print(f"report: {config.out / 'report.html'}")
        more = config.steps if arrived else 2 * max(config.steps, int(summary["steps"]))
        further = " --target None" if summary["reached_at"] is not None else ""
        print(f"next:   {_again(config)} --steps {more}{further}")
        return 0
    pair = found.pair
    print(f"steps: {found.steps}, updates: {found.updates}, {found.seconds:.1f} s")
    for name, played in (("full precision", pair.full), ("compressed", pair.compressed)):
        if played is None:
            continue
        print(f"{name}: return {played.mean:.4g} ± {played.error:.2g} (standard error)")
        if played.claimed is not None or played.true is not None:
            print(f"  claimed success: {rate_of(played.claimed) or 'not known'}")
            print(f"  true success:    {rate_of(played.true) or 'not known'}")
    share = share_words(found.compressed_share, found.staleness)
    if share:
        print(share)
    if config.target is not None:
        reached = "not reached"
        if found.reached_at is not None:
            reached = f"reached at step {found.reached_at}, {found.reached_seconds:.1f} s"
        print(f"target {config.target:g}: {reached}")
    print(f"\n{found.verdict}\n{gap_words(pair)}\n")
    print(f"policy: {config.out / 'policy.json'}")
    print(f"curve:  {config.out / 'returns.png'}")
    print(f"report: {config.out / 'report.html'}")
    words = ["play", "--run", str(config.out), *naming(config.task)]
    print(f"play:   vinoreward {shlex.join(words)}")
    print(f"next:   {_next(config, found.updates)}")
    return 0


def _again(config: ActorsConfig) -> str:
    return again("actors", config.out, *naming(config.task, "--task"))


def _next(config: ActorsConfig, updates: int) -> str:
    """Return the next command for the user: the other arm of the comparison."""

    if updates == 0:
        return f"{_again(config)} --steps {10 * config.steps}"
    if config.compress == "none":
        out = beside(config.out, "int8")
        return command(config, compress="int8", out=out, resume=False)
    if config.environments == 1:
        out = beside(config.out, "8-environments")
        return command(config, compress="none", environments=8, out=out, resume=False)
    return f"tensorboard --logdir {config.out / 'logs'}"


def _study(config: ActorsConfig) -> int:

    try:
        table = study(config)
    except KeyboardInterrupt:
        print(f"\nStopped. Continue with: {command(config, resume=True)}")
        raise
    print()
    for line in _aligned(table):
        print(line)
    print(f"\nplot:   {config.out / 'pull_study.png'}")
    print(f"report: {config.out / 'report.html'}")
    best = max(table, key=lambda row: float(str(row["return"])))
    period = int(str(best["pull period"]))
    out = beside(config.out, "run")
    print(f"next:   {command(config, pull_study=(), pull_period=period, out=out, resume=False)}")
    return 0


def _aligned(table: Sequence[Mapping[str, object]]) -> list[str]:
    columns = list(table[0])
    lines = [columns, *([str(row[name]) for name in columns] for row in table)]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    return [
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]
