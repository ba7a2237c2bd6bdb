"""What an audit found, as a section of the bundle's model card."""

from __future__ import annotations

from pathlib import Path

from vinoreward.errors import BundleError
from vinoreward.files import write_text
from vinoreward_training.audit.report import NOT_CHECKED, AuditReport
from vinoreward_training.configs import AuditConfig
from vinoreward_training.runs.bundles import card_of
from vinoreward_training.runs.report import bullets, markdown_table

CARD = "README.md"
TITLE = "## Audit"


def own_card(folder: Path) -> str:
    """Return the card of a bundle, empty without one.

    BundleError if it is a link, as what that points to is not ours to change, or cannot be read.
    """
    path = folder / CARD
    if path.is_symlink():
        raise BundleError(
            f"{path} is a link to {path.resolve()}. Expected a card of the bundle's own; copy the "
            "bundle to write an audit into its card."
        )
    return (card_of(folder) or "").replace("\r\n", "\n")


def write_card(folder: Path, report: AuditReport, config: AuditConfig, precision: str) -> Path:
    """Write the section in place of an earlier one; return the card's path.

    ``precision`` is what the network ran in. Errors are those of :func:`own_card`.
    """
    before, _, rest = (own_card(folder) or f"# {report.bundle}\n").partition(f"\n{TITLE}\n")
    _, others, later = rest.partition("\n## ")
    after = f"\n\n## {later.strip()}" if others else ""
    section = _section(report, config, precision)
    write_text(folder / CARD, f"{before.rstrip()}\n\n{TITLE}\n\n{section}{after}\n")
    return folder / CARD


def _section(report: AuditReport, config: AuditConfig, precision: str) -> str:
    clean, *shifts = report.battery.rows
    claimed, frames = report.battery.dead_total()
    worst = max(shifts, key=lambda row: row.rates.false_positives)
    failures = sum(row.rates.false_positives + row.rates.true_negatives for row in shifts)
    facts: dict[str, object] = {
        "made by": "`vinoreward audit`"
        + (f" in {config.env}" if config.env else " without an environment")
        + f", seed {config.seed}, {precision.upper()}",
        "clean images": f"recall {clean.rates.recall:.1%}, false claims "
        f"{clean.rates.false_positives} of "
        f"{clean.rates.false_positives + clean.rates.true_negatives}"
        + (
            ""
            if clean.withheld is None
            else f"; {clean.withheld} are out of distribution for the guard"
        ),
        "dead cameras": f"{claimed} of {frames} frames are claimed",
        f"{len(shifts)} shifts": f"{sum(row.rates.false_positives for row in shifts)} of "
        f"{failures} failures are claimed, most under {worst.name}: {worst.rates.false_positives}",
    }
    if report.causes is not None:
        facts |= {
            f"claims after this: {one.name}": f"{one.stay} of {one.claimed} stay"
            for one in report.causes.changes
        }
    facts |= {
        f"search, {one.space}": f"{one.claimed} of {one.failures} failures are claimed, area "
        f"{one.area()}"
        for one in report.searched
    }
    parts = [
        f"**{report.verdict}**",
        "\n".join(f"- {fault}" for fault in report.faults),
        f"**{report.robustness}**",
        "\n".join(f"- {miss}" for miss in report.misses),
        bullets(facts),
        "False claims on clean images, by kind of failure and by distance:",
        markdown_table(report.shown_bands),
        "\n".join([*report.notes, NOT_CHECKED]),
    ]
    return "\n\n".join(part for part in parts if part)
