"""The report of an audit."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vinoreward_training.audit.checks import Check, FalsePositive, FalsePositives
from vinoreward_training.audit.corruptions import CorruptionReport, CorruptionRow
from vinoreward_training.audit.env import LEAST_CLAIMS
from vinoreward_training.audit.interventions import InterventionReport
from vinoreward_training.audit.learned_policy import LearnedPolicy
from vinoreward_training.audit.pairs import PairRow
from vinoreward_training.audit.progress import ProgressReport
from vinoreward_training.audit.replays import ReplayReport
from vinoreward_training.audit.search import SearchReport
from vinoreward_training.configs import AuditConfig
from vinoreward_training.runs.report import (
    Section,
    configuration,
    new_figure,
    save_figure,
)
from vinoreward_training.runs.run_folder import plain_numbers

NOT_CHECKED = "Not checked: a camera that sees another room."
NO_FAULT = "no test found too many false claims"
CAUSE_UNKNOWN = "whether claims depend on their cause is not known"


@dataclass
class AuditReport:
    """What an audit has found so far."""

    bundle: str
    note: str = ""
    """Whether the images are new to the network."""
    corruptions: CorruptionReport = field(default_factory=CorruptionReport)
    pairs: list[PairRow] = field(default_factory=list)
    interventions: InterventionReport | None = None
    """None without an environment, as those below."""
    replays: ReplayReport | None = None
    searches: list[SearchReport] = field(default_factory=list)
    learned_policy: LearnedPolicy | None = None
    progress: ProgressReport | None = None
    """None of a classifier without progress."""
    false_positives: FalsePositives = field(default_factory=FalsePositives)

    @property
    def checks(self) -> list[Check]:
        """All checks; of faults the worst first."""
        parts = (self.interventions, self.replays, *self.searches, self.learned_policy)
        checks = [row.check() for row in self.pairs]
        for part in (*parts, self.corruptions, self.progress):
            checks += part.checks() if part is not None else ()
        return checks

    @property
    def faults(self) -> list[str]:
        """Which failures are rewarded, and what is paid as progress, in sentences."""
        return [check.sentence for check in self.checks if check.failed and not check.miss]

    @property
    def misses(self) -> list[str]:
        """Which successes are not rewarded, in sentences."""
        return [check.sentence for check in self.checks if check.failed and check.miss]

    @property
    def safe(self) -> bool:
        """Whether no failure is rewarded, and claims were seen to need their cause."""
        return not self.faults and self.cause_known

    @property
    def cause_known(self) -> bool:
        """Whether something removed the cause of enough claims."""
        parts = self.interventions, self.replays
        removed = any(part is not None and part.conclusive for part in parts)
        return removed or any(row.claimed >= LEAST_CLAIMS for row in self.pairs)

    @property
    def measures(self) -> dict[str, Check]:
        """What two audits are compared by."""
        return {check.measure: check for check in self.checks if check.measure}

    @property
    def notes(self) -> list[str]:
        """How much the tests say, in sentences."""
        parts = (self.interventions, self.replays, self.learned_policy, self.progress)
        return [self.note, *(part.note for part in parts if part is not None)]

    @property
    def verdict(self) -> str:
        """One sentence: whether the classifier is safe."""
        if faults := self.faults:
            return f"{self.bundle} is not safe: {_counted(faults)}."
        if not self.cause_known:
            return f"{self.bundle}: {NO_FAULT}, but {CAUSE_UNKNOWN}."
        return f"{self.bundle} is safe: {NO_FAULT}."

    @property
    def robustness(self) -> str:
        """One sentence: whether it claims successes under every corruption."""
        if misses := self.misses:
            return f"{self.bundle} is not robust: {_counted(misses)}."
        return (
            f"{self.bundle} is robust: under each corruption it claims successes, or its guard "
            "notices."
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        claimed, frames = self.corruptions.failing_camera_total
        families = self.corruptions.failing_camera
        names = ("interventions", "replays", "learned_policy", "progress")
        parts = {name: getattr(self, name) for name in names}
        values = {
            **{name: getattr(self, name) for name in ("bundle", "safe", "verdict", "faults")},
            "robust": not self.misses,
            **{name: getattr(self, name) for name in ("robustness", "misses", "note")},
            "not_checked": NOT_CHECKED,
            "corruptions": [dataclasses.asdict(row) for row in self.corruptions.rows],
            "failing_camera": {"claimed": claimed, "frames": frames, "by_family": families},
            "pairs": [dataclasses.asdict(row) for row in self.pairs],
            **{name: part and dataclasses.asdict(part) for name, part in parts.items()},
            "searches": [one.as_dict() for one in self.searches],
        }
        return dict(plain_numbers(values))


def _counted(sentences: Sequence[str]) -> str:
    """Return the first, and how many more there are."""
    more = len(sentences) - 1
    return f"{sentences[0]} (and {more} more)" if more else sentences[0]


def _listed(sentences: Sequence[str]) -> str:
    return "\n".join(f"- {one}" for one in sentences)


def sections_of(report: AuditReport, config: AuditConfig, out: Path) -> list[Section]:
    """Return the parts of ``report.html``; their figures are saved in ``out``."""
    found, (claimed, frames) = report.corruptions, report.corruptions.failing_camera_total
    sections = [
        Section(report.verdict, "\n".join([_listed(report.faults), *report.notes, NOT_CHECKED])),
        Section(report.robustness, _listed(report.misses)),
    ]
    if images := report.false_positives.images:
        sections.append(
            Section(
                "False positives",
                "Images of failures that it claims, the most certain first.",
                images=[_draw_false_positives(out / "false_positives.png", images)],
            )
        )
    if report.interventions is not None:
        changes = [
            {
                "change": one.name,
                "claims": one.claimed,
                "stay": one.stay,
                "should stay": one.success,
            }
            for one in report.interventions.changes
        ]
        sections.append(
            Section("Claims without their cause", report.interventions.note, rows=changes)
        )
    if report.searches:
        sections.append(
            Section(
                "Search",
                "Failures, each with its image. The rate is of the sampled states. "
                "A false claim is a hole if most states within 1 % of each axis are claimed too. "
                "Corrupted: the most false claims under one corruption.",
                rows=[_search_row(one) for one in report.searches],
            )
        )
    if report.pairs:
        rows = [dataclasses.asdict(row) for row in report.pairs]
        sections.append(Section("Claims that stay when their cause is gone", rows=rows))
    if report.progress is not None:
        rows = [dataclasses.asdict(row) for row in report.progress.rows]
        sections.append(Section("Progress", report.progress.note, rows=rows))
    families = [
        {"kind": name, "claimed": one, "frames": count}
        for name, (one, count) in found.failing_camera.items()
    ]
    return [
        *sections,
        Section(
            "Corruptions",
            "One image of each episode and label. Bounds are 95 % Clopper-Pearson's.",
            rows=[_corruption_row(row) for row in found.rows],
        ),
        Section(f"Failing camera: {claimed} of {frames} frames are claimed", rows=families),
        configuration(config),
    ]


def _corruption_row(row: CorruptionRow) -> dict[str, object]:
    """Return a row of the corruptions, with what the OOD detector does if there is one."""
    values: dict[str, object] = {
        "under": row.name,
        "recall": f"{row.rates.recall:.1%}",
        "95 %": f"{row.rates.recall_low:.1%} to {row.rates.recall_high:.1%}",
        "false claims": row.rates.false_positives,
        "rate at most": f"{row.rates.fpr_high:.1%}",
    }
    if row.withheld is not None:
        values["out of distribution for the guard"] = row.withheld
        values["recall without it"] = f"{row.network.recall:.1%}"
        values["false without it"] = row.network.false_positives
    return values


def _search_row(one: SearchReport) -> dict[str, object]:
    worst = max(one.corrupted, key=lambda each: each.claimed, default=None)
    return {
        "space": one.space,
        "states": one.states,
        "failures": one.failures,
        "claimed": one.claimed,
        "rate at most": f"{one.rate_high:.2%}",
        "largest P": f"{one.most:.3f}",
        "at": one.place(one.at) if one.at else "",
        "holes": sum(hole.open for hole in one.holes),
        "corrupted": ""
        if worst is None
        else f"{worst.claimed} of {worst.failures} ({worst.corruption} {worst.strength:g})",
    }


def _draw_false_positives(path: Path, images: Sequence[FalsePositive]) -> Path:
    """Draw a grid of images."""
    columns = min(8, len(images))
    rows = -(-len(images) // columns)
    height, width = images[0].image.shape[:2]
    figure = new_figure(columns * 1.5, rows * (1.5 * height / width + 0.5))
    grid = figure.subplots(rows, columns, squeeze=False).reshape(-1)
    for axes in grid:
        axes.axis("off")
    for axes, one in zip(grid, images, strict=False):
        axes.imshow(one.image, interpolation="nearest")
        title = "\n".join([f"P {one.probability:.3f}", *textwrap.wrap(one.cause, 26)[:2]])
        axes.set_title(title, fontsize=6, parse_math=False)
    return save_figure(figure, path)
