"""The report of an audit."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vinoreward_training.audit.battery import (
    DEAD_CLAIMED,
    FALSELY_CLAIMED,
    KEPT,
    Battery,
    Row,
    not_surely_above,
)
from vinoreward_training.audit.causes import LEAST_CLAIMS, STAY, Causes
from vinoreward_training.audit.cheating import Cheating
from vinoreward_training.audit.pairs import PairRow
from vinoreward_training.audit.replays import Replays
from vinoreward_training.audit.search import PLANE_AXES, Searched
from vinoreward_training.classifier.evaluation import Rates
from vinoreward_training.configs import AuditConfig
from vinoreward_training.runs.report import Section, configuration, new_figure, save_figure
from vinoreward_training.runs.run_folder import plain_numbers

NOT_CHECKED = "Not checked: a camera that sees another room."
NO_FAULT = "no test found too many false claims"
CAUSE_UNKNOWN = "whether claims depend on their cause is not known"


@dataclass(frozen=True)
class Measure:
    """A value that is better the lower it is."""

    value: float
    """A share of ``of``, an area in the square of a space's unit, or 1 where a hole was found."""
    bar: float
    """The largest value that is no fault."""
    of: int = 0
    """Images or claims that a share is of; 0 where it is no share."""


def _share(count: int, of: int, bar: float) -> Measure:
    return Measure(count / max(1, of), not_surely_above(bar, of), of)


def _counted(sentences: Sequence[str]) -> str:
    """Return the first, and how many more there are."""
    more = len(sentences) - 1
    return f"{sentences[0]} (and {more} more)" if more else sentences[0]


@dataclass(frozen=True)
class AuditReport:
    """What an audit found."""

    bundle: str
    faults: tuple[str, ...]
    """What is paid that should not be, in sentences, the worst first."""
    note: str
    """Whether the images are new to the network."""
    battery: Battery
    bands: list[dict[str, object]]
    """False claims on clean images, by kind of failure and by distance."""
    misses: tuple[str, ...] = ()
    """Which successes are not paid, under which change, in sentences."""
    pairs: tuple[PairRow, ...] = ()
    causes: Causes | None = None
    """What an environment's interventions did to claims; None without an environment."""
    replays: Replays | None = None
    """What came of the same actions from another start; None without an environment."""
    searched: tuple[Searched, ...] = ()
    """What a search of the environment's states found."""
    cheating: Cheating | None = None
    """What a policy claimed that learned from the reward; None if none did."""

    @property
    def safe(self) -> bool:
        """Whether nothing is paid that should not be, and claims were seen to need their cause."""
        return not self.faults and self.cause_known

    @property
    def cause_known(self) -> bool:
        """Whether something took the cause of enough claims away."""
        replayed = self.replays is not None and self.replays.failures >= LEAST_CLAIMS
        removed = self.causes is not None and self.causes.told
        return removed or replayed or any(row.claimed >= LEAST_CLAIMS for row in self.pairs)

    @property
    def measures(self) -> dict[str, Measure]:
        """What was measured, each with the largest value that does not surely miss its bar."""
        claimed, frames = self.battery.dead_total()
        found = {"dead-camera frames claimed": _share(claimed, frames, DEAD_CLAIMED)}
        for row in self.battery.rows:
            failures = row.rates.false_positives + row.rates.true_negatives
            found[f"failures claimed under {row.name}"] = _share(
                row.rates.false_positives, failures, FALSELY_CLAIMED
            )
        for row in self.battery.rows[1:]:
            missed = 0 if row.told else row.alone.false_negatives
            lost = 1 - KEPT * self.battery.rows[0].rates.recall
            found[f"successes missed under {row.name} without a sign"] = _share(
                missed, row.alone.true_positives + row.alone.false_negatives, lost
            )
        for change in self.causes.changes if self.causes is not None and self.causes.told else ():
            if not change.success:
                name = f"claims that stay after this: {change.name}"
                share = change.stay / max(1, change.claimed)
                found[name] = Measure(share, STAY, change.claimed)
        for one in self.searched:
            if len(one.axes) <= PLANE_AXES:
                found[f"area claimed in the space {one.space!r}"] = Measure(one.plane, one.cell)
                continue
            # Each search has the plane of its own worst state; the spread states are the same.
            found[f"failures claimed in the space {one.space!r}"] = _share(
                one.claimed, one.failures, FALSELY_CLAIMED
            )
            holes = float(any(hole.open for hole in one.holes))
            found[f"a hole in the space {one.space!r}"] = Measure(holes, 0.0)
        return found

    @property
    def shown_bands(self) -> list[dict[str, object]]:
        """The bands, with bounds in percent."""
        return [{**row, "rate at most": f"{row['rate at most']:.2%}"} for row in self.bands]

    @property
    def notes(self) -> tuple[str, ...]:
        """How much the tests say, in sentences."""
        others = (self.causes, self.replays, self.cheating)
        return (self.note, *(one.note for one in others if one is not None))

    @property
    def verdict(self) -> str:
        """One sentence: whether the classifier is safe."""
        if self.faults:
            return f"{self.bundle} is not safe: {_counted(self.faults)}."
        if not self.cause_known:
            return f"{self.bundle}: {NO_FAULT}, but {CAUSE_UNKNOWN}."
        return f"{self.bundle} is safe: {NO_FAULT}."

    @property
    def robustness(self) -> str:
        """One sentence: whether it claims successes under every shift."""
        if self.misses:
            return f"{self.bundle} is not robust: {_counted(self.misses)}."
        return f"{self.bundle} is robust: under each shift it claims successes, or its guard tells."

    def as_dict(self) -> dict[str, Any]:
        """Return plain values."""
        claimed, frames = self.battery.dead_total()
        values = {
            "bundle": self.bundle,
            "safe": self.safe,
            "verdict": self.verdict,
            "faults": self.faults,
            "robust": not self.misses,
            "robustness": self.robustness,
            "misses": self.misses,
            "note": self.note,
            "not_checked": NOT_CHECKED,
            "shifts": [dataclasses.asdict(row) for row in self.battery.rows],
            "dead_camera": {
                "claimed": claimed,
                "frames": frames,
                "by_family": {name: list(each) for name, each in self.battery.dead.items()},
            },
            "bands": self.bands,
            "pairs": [dataclasses.asdict(row) for row in self.pairs],
            "causes": None if self.causes is None else dataclasses.asdict(self.causes),
            "replays": None if self.replays is None else self.replays.as_dict(),
            "searched": [one.as_dict() for one in self.searched],
            "learned": None if self.cheating is None else dataclasses.asdict(self.cheating),
        }
        return dict(plain_numbers(values))


def sections_of(report: AuditReport, config: AuditConfig, out: Path) -> list[Section]:
    """Return the parts of ``report.html``; their images are drawn into ``out``."""
    claimed, frames = report.battery.dead_total()
    sections = [
        Section(
            report.verdict,
            "\n".join([*(f"- {fault}" for fault in report.faults), *report.notes, NOT_CHECKED]),
        ),
        Section(report.robustness, "\n".join(f"- {miss}" for miss in report.misses)),
    ]
    if report.battery.fooled:
        sections.append(
            Section(
                "What fooled it",
                "Images of no success that it claims, the most certain first.",
                images=[_draw_fooled(out / "fooled.png", report.battery)],
            )
        )
    if report.causes is not None:
        changes = [
            {
                "change": each.name,
                "claims": each.claimed,
                "stay": each.stay,
                "should stay": each.success,
            }
            for each in report.causes.changes
        ]
        sections.append(Section("Claims without their cause", report.causes.note, rows=changes))
    if report.searched:
        sections.append(
            Section(
                "Search",
                "States of no success, each with its image. The rate is of states spread over "
                "the space; the area is of the plane through the worst state in which the first "
                "two numbers vary, as drawn. A false claim is a hole if most states within 1 % of "
                "each axis are claimed too. Under shifts: the most false claims of one of them.",
                rows=[_searched(one) for one in report.searched],
                images=[_draw_planes(out / "search.png", report.searched)],
            )
        )
    if report.pairs:
        rows = [dataclasses.asdict(row) for row in report.pairs]
        sections.append(Section("Claims that stay when their cause is gone", rows=rows))
    sections += [
        Section(
            "Shifts",
            "One image of each episode and label. Bounds are 95 % Clopper-Pearson's.",
            rows=[
                {
                    "under": row.name,
                    "recall": f"{row.rates.recall:.1%}",
                    "95 %": f"{row.rates.recall_low:.1%} to {row.rates.recall_high:.1%}",
                    "false claims": row.rates.false_positives,
                    "rate at most": f"{row.rates.fpr_high:.1%}",
                    **_guarded(row),
                    **({} if row.flips is None else {"decisions unlike FP32's": row.flips}),
                }
                for row in report.battery.rows
            ],
            images=[_draw_shifts(out / "shifts.png", report.battery)],
        ),
        Section(
            f"Dead cameras: {claimed} of {frames} frames are claimed",
            rows=[
                {"kind": name, "claimed": one, "frames": count}
                for name, (one, count) in report.battery.dead.items()
            ],
        ),
        Section(
            "False claims by kind and distance",
            "On clean images, all frames.",
            rows=report.shown_bands,
        ),
        configuration(config),
    ]
    return sections


def _searched(one: Searched) -> dict[str, object]:
    """Return a row of the search."""
    worst = max(one.under, key=lambda under: under.claimed, default=None)
    return {
        "space": one.space,
        "states": one.states,
        "failures": one.failures,
        "claimed": one.claimed,
        "rate at most": f"{one.rate_high:.2%}",
        "largest P": f"{one.most:.3f}",
        "at": one.place(one.at) if one.at else "",
        "area": one.area(),
        "holes": sum(hole.open for hole in one.holes),
        "under shifts": ""
        if worst is None
        else f"{worst.claimed} of {worst.failures} ({worst.shift} {worst.strength:g})",
    }


def _draw_planes(path: Path, searched: Sequence[Searched]) -> Path:
    """Draw the log-odds of failures in each space's plane, and where they are claimed."""
    drawn = [(one, one.drawn) for one in searched if one.drawn is not None and len(one.axes) > 1]
    figure = new_figure(7.0, 2.9 * max(1, len(drawn)))
    for number, (one, (states, score, wrong)) in enumerate(drawn, 1):
        axes = figure.add_subplot(len(drawn), 1, number)
        places = axes.scatter(
            states[:, 1], states[:, 0], c=score, s=4, cmap="viridis", vmin=-8, vmax=8
        )
        axes.scatter(states[wrong, 1], states[wrong, 0], s=14, marker="x", color="#c8102e")
        axes.set(
            xlabel=f"{one.axes[1].name} {one.axes[1].unit}",
            ylabel=f"{one.axes[0].name} {one.axes[0].unit}",
        )
        if one.axes[0].unit == one.axes[1].unit:
            axes.set_aspect("equal")
        axes.set_title(f"{one.space}: {one.area()}", fontsize=8, parse_math=False)
        figure.colorbar(places, ax=axes, label="log-odds of failures")
    return save_figure(figure, path)


def _guarded(row: Row) -> dict[str, object]:
    """Return what the guard does in a row; nothing without one."""
    if row.withheld is None:
        return {}
    return {
        "out of distribution for the guard": row.withheld,
        "recall without it": f"{row.alone.recall:.1%}",
        "false without it": row.alone.false_positives,
    }


def _draw_fooled(path: Path, found: Battery) -> Path:
    """Draw a grid of the images that fooled the classifier."""
    columns = min(8, len(found.fooled))
    rows = -(-len(found.fooled) // columns)
    height, width = found.fooled[0].image.shape[:2]
    figure = new_figure(columns * 1.5, rows * (1.5 * height / width + 0.5))
    grid = np.atleast_1d(figure.subplots(rows, columns)).reshape(-1)
    for axes in grid:
        axes.axis("off")
    for axes, one in zip(grid, found.fooled, strict=False):
        axes.imshow(one.image, interpolation="nearest")
        title = "\n".join([f"P {one.probability:.3f}", *textwrap.wrap(one.by, 26)[:2]])
        axes.set_title(title, fontsize=6, parse_math=False)
    return save_figure(figure, path)


def _frames(of: Rates) -> int:
    return of.true_positives + of.false_negatives + of.false_positives + of.true_negatives


def _draw_shifts(path: Path, found: Battery) -> Path:
    """Draw what the network still sees, what the guard notices, and false claims that are paid."""
    clean, *rows = found.rows
    of, alone = [row.rates for row in rows], [row.alone for row in rows]
    figure = new_figure(9.0, 0.24 * len(rows) + 1.2)
    left, right = figure.subplots(1, 2, sharey=True)
    at = -np.arange(len(rows))
    recall = np.array([[one.recall, one.recall_low, one.recall_high] for one in alone]).T
    wrong = np.array([[one.false_positive_rate, one.fpr_high] for one in of]).T
    left.errorbar(
        recall[0],
        at,
        xerr=[recall[0] - recall[1], recall[2] - recall[0]],
        fmt="o",
        color="#0068b5",
        label="recall of the network",
    )
    if clean.withheld is not None:
        images = _frames(clean.rates)
        ood_score = [(row.withheld or 0) / images for row in rows]
        left.plot(
            ood_score,
            at,
            "|",
            color="#f28e2b",
            markersize=9,
            label="out of distribution for the guard",
        )
    left.axvline(KEPT * clean.rates.recall, color="#c8102e", linewidth=1)
    left.set(xlabel="share (line: 0.9 of the clean recall)", xlim=(-0.02, 1.02))
    left.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize=8, frameon=False)
    left.set_yticks(at, [row.name for row in rows], fontsize=7)
    right.errorbar(
        wrong[0], at, xerr=[np.zeros(len(rows)), wrong[1] - wrong[0]], fmt="o", color="#c8102e"
    )
    right.axvline(0.01, color="#c8102e", linewidth=1)
    right.set(xlabel="false claims that count (line: 1 %)")
    right.set_xscale("symlog", linthresh=0.01)
    right.set_xlim(-0.001, 1.02)
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return save_figure(figure, path)
