"""``--profile-only``: a short run that shows whether compressing actors can pay."""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from vinoreward.errors import ConfigError
from vinoreward.files import write_json
from vinoreward_actors.actor_learner.acting.profile import Breakdown
from vinoreward_actors.command.build import build
from vinoreward_actors.command.config import NONE, OFF, ActorsConfig
from vinoreward_actors.command.report import aligned, breakdown_rows, draw_profile, share_words
from vinoreward_actors.command.run import difference
from vinoreward_actors.command.settings import command, recorded
from vinoreward_actors.policies.backends import choice as backends
from vinoreward_training.runs.machine import describe_machine
from vinoreward_training.runs.report import Section, write_report
from vinoreward_training.runs.run_folder import RunFolder, plain

if TYPE_CHECKING:
    from vinoreward_actors.actor_learner.trainer import Progress

ENOUGH = 1000
"""Steps for a reliable profile; the first ones are slower."""
PAYS = 1.1
"""Minimum speed-up for which compression is worthwhile."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """Breakdown of a short run."""

    actor: Breakdown
    """Per environment step."""
    learner_seconds: float
    """Wall time of updates and pushes per environment step."""
    push_seconds: float | None
    """The compressor's time per version, without the first; None if it made only one."""
    share: str = ""
    """Sentence on the compressed steps and their age; empty without a compressor."""

    def step_seconds(self, config: ActorsConfig) -> float:
        """Return the wall time per environment step of a training: that of its slowest part."""
        return max(self.learner_seconds, self.actor.step_wall / config.actors)


def measure(config: ActorsConfig, steps: int) -> Measured:
    """Run for some steps and return the breakdown of their time."""
    import torch

    torch.set_num_threads(1)
    config = dataclasses.replace(config, resume=False, evaluate_every=0)
    print(f"measuring {steps} steps with compress={config.compress}", flush=True)
    parts = build(config)
    owner = parts.trainer(config, None)
    start: Breakdown | None = None
    calls = 0
    reports: list[Mapping[str, Any]] = []

    def watch(progress: Progress) -> bool:
        nonlocal start, calls
        calls += 1
        reports.extend(progress.compressor)
        if start is None and calls > 1 and parts.warm(progress):
            start = owner.profile()[0]
        return False

    summary = owner.learn(steps, watch)
    reports.extend(summary.compressor)
    if parts.chain is not None and start is None:
        errors = [str(one["error"]) for one in reports if "error" in one]
        why = f": {errors[-1].rstrip('.')}" if errors else ""
        raise ConfigError(
            f"no actor acted with {config.compress!r} in {summary.steps} steps{why}. Expected "
            "some thousand steps of a network that it can compress; give --profile-only more "
            "of them, or change --compress or --network."
        )
    # The first one includes one-time preparation.
    pushes = [one["seconds"] for one in reports if "seconds" in one][1:]
    return Measured(
        actor=difference(summary.profile, start),
        learner_seconds=summary.learner_seconds,
        push_seconds=statistics.median(pushes) if pushes else None,
        share=share_words(summary.compressed_share, summary.staleness),
    )


def profile(config: ActorsConfig) -> None:
    """Measure full-precision actors, and compressed ones if there is a chain; print advice."""
    steps = config.profile_only or 0
    spec = build(config).learner.spec
    table = [
        {"backend": name, "µs per call": f"{1e6 * cost.call:.1f}"}
        for name, cost in backends.measure(spec, config.environments).items()
    ]
    print(f"backends on this machine, {config.environments} observations a call")
    print(f"{aligned(table, left=1, indent=2)}\n", flush=True)
    with RunFolder(config.out, recorded(config), resume=config.resume) as folder:
        full = measure(dataclasses.replace(config, compress=NONE, monitor=OFF), steps)
        first, learner_seconds = full.actor, full.learner_seconds
        breakdowns = {"full precision": first}
        lines = [first.advice(learner_seconds, config.actors)]
        changes: dict[str, Any] = {"profile_only": None, "resume": False, "out": config.out / "run"}
        if first.steps < ENOUGH:
            lines.append(f"This is from only {first.steps} steps; {ENOUGH} or more are reliable.")
        if config.compress.strip().lower() not in ("", "none", "off"):
            compressed = measure(config, steps)
            breakdowns["compressed"] = compressed.actor
            lines.append(_ratio(config, first, compressed.actor))
            verdict = recommend(config, full, compressed)
            lines += verdict.words
            if compressed.push_seconds is not None:
                seconds = f"{compressed.push_seconds:.3g} s"
                lines.append(f"The compressor takes {seconds} for a version of the weights.")
            lines.append(f"{compressed.share.capitalize()}.")
            changes |= verdict.changes
        image = draw_profile(folder / "profile.png", breakdowns)
        record = {"breakdowns": plain(breakdowns), "learner_seconds": learner_seconds}
        record |= {"advice": lines, "machine": describe_machine()}
        write_json(folder / "profile.json", record)
        sections = [
            Section("Does compression pay here?", "\n".join(lines)),
            Section("Backends on this machine", rows=table),
            *(Section(name, rows=breakdown_rows(each)) for name, each in breakdowns.items()),
            Section("ActorQ's figure", images=[image]),
        ]
        title = f"Profile: {config.algorithm} on {config.task}"
        write_report(folder / "report.html", title, sections)
    for name, each in breakdowns.items():
        print(f"{name}: {1e6 * each.step_wall:.0f} µs of wall time per step, without waiting")
        print(f"{aligned(breakdown_rows(each), left=1, indent=2)}\n")
    print(f"learner: {learner_seconds * 1e6:.0f} µs of wall time per environment step\n")
    print("\n".join(lines))
    print(f"\nprofile: {image}")
    print(f"next:    {command(config, **changes)}")


class Verdict(NamedTuple):
    """Whether compressing its actors makes a training faster."""

    words: list[str]
    """Sentences for the user."""
    changes: dict[str, Any]
    """Of the settings, for the next run."""


def recommend(config: ActorsConfig, full: Measured, compressed: Measured) -> Verdict:
    """Recommend the next settings by the training's bottleneck, not an actor's step alone."""
    faster = _times(full.actor, compressed.actor) >= PAYS
    if full.learner_seconds * config.actors > full.actor.step_wall:
        words = "The training waits for its learner, so that does not help: leave out --compress."
        # Several environments would also wait for it.
        return Verdict([words] if faster else [], {"compress": "none", "monitor": "default"})
    eight = max(8, config.environments)
    without = {"compress": "none", "monitor": "default", "environments": eight}
    if not faster:
        return Verdict([], without)
    times = full.step_seconds(config) / max(compressed.step_seconds(config), 1e-12)
    words = f"The training would be about {times:.2f} times as fast"
    if times < PAYS:
        return Verdict([f"{words}: compressing does not pay here."], without)
    return Verdict([f"{words}."], {})


def _times(first: Breakdown, second: Breakdown) -> float:
    return first.step_wall / max(second.step_wall, 1e-12)


def _ratio(config: ActorsConfig, first: Breakdown, second: Breakdown) -> str:
    ratio = _times(first, second)
    words = f"With {config.compress} an actor's step takes {second.step_wall * 1e6:.0f} µs instead "
    words += f"of {first.step_wall * 1e6:.0f} µs: {ratio:.2f} times"
    if ratio < PAYS:
        return f"{words}. That does not pay here."
    return f"{words} as fast."
