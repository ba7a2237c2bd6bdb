"""The plot of the bench row about fewer bits: bytes, divergence and return over the bits."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vinoreward.files import atomic_path
from vinoreward_training.runs.curves import new_figure

LEAST_KL = 1e-6
"""Nats; full precision has none, and a logarithm no place for that."""
ACTS, CAUGHT, RETURN = "tab:blue", "tab:red", "tab:gray"


@dataclass(frozen=True)
class Variant:
    """What a compression cost.

    Attributes:
        name: in words.
        nbytes: on the wire.
        kl_max: the largest KL(teacher || variant) over recent observations, nats.
        lost: by how much the mean return fell, over the same starts.
        error: standard error of that difference.
        verdict: what the default monitor did first, in words; empty if it let the variant act.
        bits: of every weight, for a point of the curves; None for what is another compression.
    """

    name: str
    nbytes: int
    kl_max: float
    lost: float
    error: float
    verdict: str = ""
    bits: int | None = None


def draw(path: Path, variants: Sequence[Variant], whole: float, title: str) -> Path:
    """Draw bytes, largest KL and paired return of one network, from many bits to few.

    Widths are joined by a line; other compressions stand to the right of them, on their own.

    Args:
        path: of the PNG.
        variants: at least one, in order.
        whole: mean return in full precision.
        title: of the picture.
    """
    figure = new_figure(9.0, 7.0)
    panels = figure.subplots(3, 1, sharex=True)
    figure.suptitle(title)
    _panel(panels[0], variants, lambda one: one.nbytes / 1e3, lambda one: f"{one.nbytes / 1e3:.0f}")
    panels[0].set(ylabel="kB on the wire")
    _panel(
        panels[1], variants, lambda one: max(one.kl_max, LEAST_KL), lambda one: f"{one.kl_max:.2g}"
    )
    panels[1].set(yscale="log", ylabel="largest KL, nats")
    panels[2].axhline(whole, color=RETURN, linestyle="--", linewidth=1, label="full precision")
    _panel(
        panels[2],
        variants,
        lambda one: whole - one.lost,
        lambda one: f"{whole - one.lost:.0f}",
        errors=True,
    )
    panels[2].set(ylabel="mean return, same starts")
    panels[2].set_xticks(range(len(variants)), [_label(one) for one in variants], fontsize=8)
    for axes in panels:
        axes.margins(y=0.25)
        axes.grid(alpha=0.3)
    panels[0].plot([], [], "o", color=ACTS, label="the default monitor lets it act")
    verdicts = " or ".join(sorted({one.verdict for one in variants if one.verdict}))
    if verdicts:
        panels[0].plot([], [], "s", color=CAUGHT, label=f"the default monitor {verdicts}")
    panels[0].set_ylim(bottom=0)
    panels[0].legend(loc="upper right", fontsize=8)
    panels[2].legend(loc="lower left", fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as part:
        figure.savefig(part, format="png", dpi=110)
    return path


def _panel(
    axes: Any,
    variants: Sequence[Variant],
    value: Callable[[Variant], float],
    words: Callable[[Variant], str],
    *,
    errors: bool = False,
) -> None:
    widths = [(at, value(one)) for at, one in enumerate(variants) if one.bits is not None]
    if widths:
        axes.plot(*zip(*widths, strict=True), color=ACTS, linewidth=1.2)
    for at, one in enumerate(variants):
        colour, marker = (CAUGHT, "s") if one.verdict else (ACTS, "o")
        error = one.error if errors else None
        axes.errorbar(at, value(one), yerr=error, fmt=marker, color=colour, capsize=3, zorder=3)
        axes.annotate(
            words(one),
            (at, value(one)),
            xytext=(2, 10),
            textcoords="offset points",
            ha="center",
            fontsize=8,
        )


def _label(one: Variant) -> str:
    """Return a variant's name in short lines."""
    return textwrap.fill(one.name, 13)
