"""Bench row about fewer bits: bytes, divergence and paired return of a trained policy, in a plot.

The policy is SAC's on Pendulum, trained here. The default monitor judges every variant.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward_actors.actor_learner.acting.environments import EnvironmentSpec
from vinoreward_actors.actor_learner.acting.evaluation import Evaluator
from vinoreward_actors.compression.chain import (
    CompressionContext,
    CompressorChain,
    Stage,
    check_policy,
)
from vinoreward_actors.compression.distill import Distill
from vinoreward_actors.compression.prune import Prune
from vinoreward_actors.compression.quantize import Quantize
from vinoreward_actors.monitoring import (
    CompressionSetting,
    MonitorBatch,
    PairedReturns,
    default_monitor,
    paired_gap,
)
from vinoreward_actors.policies.policy import Policy, forward
from vinoreward_actors.policies.wire import encode
from vinoreward_training.bench.actor_steps import BITS
from vinoreward_training.bench.rows import Row, mean_row
from vinoreward_training.configs import BenchConfig
from vinoreward_training.runs.report import new_figure, save_figure

TASK = "Pendulum-v1"
TRAINING_STEPS = 6000
EPISODES = 20
LOOK = 200
"""Rows that the monitor sees at a time."""
NNCF = "int8, every layer, ranges as NNCF's default"
_WIDTHS = {f"{bits} bits": bits for bits in BITS}
LEAST_KL = 1e-6
"""Nats: drawn in place of zero, as the axis is logarithmic."""
ACTS, CAUGHT, RETURN = "tab:blue", "tab:red", "tab:gray"


@dataclass(frozen=True)
class Variant:
    """What a compression cost."""

    name: str
    nbytes: int
    """On the wire."""
    kl_max: float
    """The largest KL(teacher || variant) over recent observations, nats."""
    lost: float
    """By how much the mean return fell, over the same starts."""
    error: float
    """Standard error of that difference."""
    verdict: str = ""
    """What the default monitor does first; empty if it lets the variant act."""
    bits: int | None = None
    """Of every weight, for a point of the curves; None for what is another compression."""


def _variants() -> dict[str, list[Stage]]:
    return {
        "32 bits": [],
        "16 bits": [Quantize("fp16")],
        **{f"{n} bits": [Quantize(f"w{n}", first=True, head=True)] for n in BITS if n <= 8},
        "int8 (first layer and head in float)": [Quantize("int8")],
        NNCF: [Quantize("int8", first=True, head=True, ranges="mean")],
        "pruned by half": [_PruneAlone(0.5)],
        "pruned by half, distilled, int8": [Prune(0.5), Distill(400, batch=256), Quantize("int8")],
    }  # fmt: skip


class _PruneAlone(Prune):
    """Pruning without the distillation that must follow it: to show why it must."""

    def check(self, following: Any) -> None:
        """Allow what :class:`Prune` refuses."""


def trained(seed: int) -> tuple[Policy, npt.NDArray[np.float32]]:
    """Train SAC on Pendulum; return its policy and its last observations (N, 3)."""
    from stable_baselines3 import SAC

    from vinoreward_actors.actor_learner.learners.sb3_network import policy_of

    model = SAC(
        "MlpPolicy", TASK, learning_rate=1e-3, learning_starts=200, batch_size=128, seed=seed,
        device="cpu",
    )  # fmt: skip
    model.learn(TRAINING_STEPS)
    buffer: Any = model.replay_buffer
    return policy_of(model), buffer.observations[: buffer.pos, 0][-2000:].astype(np.float32)


def verdict(teacher: Policy, variant: Policy, seen: npt.NDArray[np.float32]) -> str:
    """Show the default monitor a variant's outputs; say what it changes first, if anything."""
    monitor = default_monitor(teacher.spec.head, CompressionSetting(bits=8))
    for start in range(0, len(seen), LOOK):
        rows = seen[start : start + LOOK]
        count = np.full(len(rows), 1)
        pi, mu = forward(teacher, rows), forward(variant, rows)
        monitor.observe(
            MonitorBatch(teacher.spec, pi, mu, versions=count, learner_version=1, network=count)
        )
        if not monitor.setting.enabled:
            return "disables compression"
        if monitor.setting.bits != 8:
            return f"moves it to {monitor.setting.bits or 32} bits"
    return ""


def actor_bits_rows(config: BenchConfig) -> list[Row]:
    """Compress a trained policy in every way; say bytes, divergence, return and verdict."""
    seed = config.first_seed
    teacher, seen = trained(seed)
    starts = range(config.seed, config.seed + EPISODES)
    variants = []
    with Evaluator(EnvironmentSpec(TASK), "numpy") as evaluator:
        whole = evaluator.play(teacher, starts, "numpy")
        for name, stages in _variants().items():
            chain = functools.reduce(CompressorChain.add, stages, CompressorChain())
            variant = chain.compress(teacher, CompressionContext(teacher, seen, seed=seed))
            played = evaluator.play(variant, starts, "numpy")
            gap = paired_gap(PairedReturns(whole.returns, played.returns))
            variants.append(
                Variant(
                    name,
                    encode(variant).nbytes,
                    check_policy(variant, teacher, seen).kl_max,
                    gap.mean,
                    gap.error,
                    verdict(teacher, variant, seen),
                    _WIDTHS.get(name),
                )
            )
    title = f"SAC on {TASK}, one network, trained with seed {seed}: what bits cost"
    image = draw(config.out / "actor-bits.png", variants, whole.mean, title)
    return [_row(one, whole.mean, image, seed) for one in variants]


def _row(one: Variant, whole: float, image: Path, seed: int) -> Row:
    caught = one.name == NNCF
    return mean_row(
        "actor-bits",
        f"SAC on {TASK} ({whole:.0f} in full precision), {one.name}: return lost over {EPISODES} "
        "paired episodes",
        one.lost,
        one.error,
        "one standard error",
        target="the default monitor lets it act no longer" if caught else "",
        met=bool(one.verdict) if caught else None,
        note=f"{one.nbytes / 1e3:.1f} kB; largest KL {one.kl_max:.2g} nats; the default monitor "
        f"{one.verdict or 'lets it act'}; one network for all, trained with seed {seed} for "
        f"{TRAINING_STEPS} steps; {image.name}",
        details={
            "bits": one.bits,
            "nbytes": one.nbytes,
            "kl_max": one.kl_max,
            "mean_return": whole - one.lost,
            "verdict": one.verdict,
        },
    )


def draw(path: Path, variants: Sequence[Variant], whole: float, title: str) -> Path:
    """Draw bytes, largest KL and paired return of one network, from many bits to few.

    Widths are joined by a line; other compressions stand to the right of them, on their own.
    ``whole`` is the mean return in full precision.
    """
    figure = new_figure(9.0, 7.0)
    panels = figure.subplots(3, 1, sharex=True)
    figure.suptitle(title)
    kl = [max(one.kl_max, LEAST_KL) for one in variants]
    returns = [whole - one.lost for one in variants]
    panels[2].axhline(whole, color=RETURN, linestyle="--", linewidth=1, label="full precision")
    for axes, values, words in (
        (panels[0], [one.nbytes / 1e3 for one in variants], ".0f"),
        (panels[1], kl, ".2g"),
        (panels[2], returns, ".0f"),
    ):
        widths = [(at, values[at]) for at, one in enumerate(variants) if one.bits is not None]
        if widths:
            axes.plot(*zip(*widths, strict=True), color=ACTS, linewidth=1.2)
        for at, (one, value) in enumerate(zip(variants, values, strict=True)):
            colour, marker = (CAUGHT, "s") if one.verdict else (ACTS, "o")
            error = one.error if axes is panels[2] else None
            axes.errorbar(at, value, yerr=error, fmt=marker, color=colour, capsize=3, zorder=3)
            text = format(one.kl_max if axes is panels[1] else value, words)
            place = {"xytext": (2, 10), "textcoords": "offset points", "ha": "center"}
            axes.annotate(text, (at, value), fontsize=8, **place)
        axes.margins(y=0.25)
        axes.grid(alpha=0.3)
    panels[0].set(ylabel="kB on the wire")
    panels[1].set(yscale="log", ylabel="largest KL, nats")
    panels[2].set(ylabel="mean return, same starts")
    names = [textwrap.fill(one.name, 13) for one in variants]
    panels[2].set_xticks(range(len(variants)), names, fontsize=8)
    panels[0].plot([], [], "o", color=ACTS, label="the default monitor lets it act")
    verdicts = " or ".join(sorted({one.verdict for one in variants if one.verdict}))
    if verdicts:
        panels[0].plot([], [], "s", color=CAUGHT, label=f"the default monitor {verdicts}")
    panels[0].set_ylim(bottom=0)
    panels[0].legend(loc="upper right", fontsize=8)
    panels[2].legend(loc="lower left", fontsize=8)
    return save_figure(figure, path)
