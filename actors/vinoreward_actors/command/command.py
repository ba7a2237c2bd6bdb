"""``vinoreward actors``: one training, or a profile."""

from __future__ import annotations

import shlex

from vinoreward_actors.command.config import ActorsConfig
from vinoreward_actors.command.profile import profile
from vinoreward_actors.command.report import gap_words, policies_of, share_words
from vinoreward_actors.command.run import read_summary, train
from vinoreward_actors.command.settings import SETTINGS, command
from vinoreward_training.policy.evaluate import rate_of
from vinoreward_training.runs.next_command import resume_command, sibling_path
from vinoreward_training.tasks.trust import trust_args

__all__ = ["SETTINGS", "run"]


def run(config: ActorsConfig) -> int:
    """Run the command; print the results and the next command."""
    if config.profile_only is not None:
        profile(config)
        return 0
    return _train(config)


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
