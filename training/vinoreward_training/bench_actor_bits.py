"""Bench row about fewer bits: bytes, divergence and paired return of a trained policy, in a plot.

The policy is one that matters: SAC's on Pendulum, trained here. The monitor is shown every variant
as it would meet it in a training, and says whether it would have stopped it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.environments import Environments, EnvironmentSpec
from vinoreward.compression.chain import CompressorChain
from vinoreward.compression.context import CompressionContext
from vinoreward.compression.distill import Distill
from vinoreward.compression.prune import Prune
from vinoreward.compression.quality import check_policy
from vinoreward.compression.quantize import Quantize
from vinoreward.compression.stage import Stage
from vinoreward.files import atomic_path
from vinoreward.monitoring import CompressionSetting, MonitorBatch, default_monitor
from vinoreward.policies.distributions import Exploration, act
from vinoreward.policies.policy import Policy
from vinoreward.policies.reference import forward
from vinoreward.policies.wire import encode
from vinoreward_training.bench_settings import BenchConfig
from vinoreward_training.bench_statistics import Row

TASK = "Pendulum-v1"
TRAINING_STEPS = 6000
EPISODES = 20
LOOK = 200
"""Rows that the monitor sees at a time."""
NNCF = "int8, every layer, ranges as NNCF's default"


def _variants() -> dict[str, list[Stage]]:
    return {
        "32 bits": [],
        "16 bits": [Quantize("fp16")],
        **{f"{bits} bits": [_every_layer(bits)] for bits in (8, 6, 4, 3, 2)},
        "int8 (first layer and head in float)": [Quantize("int8")],
        NNCF: [Quantize("int8", first=True, head=True, ranges="mean")],
        "pruned by half": [_PruneAlone(0.5)],
        "pruned by half, distilled, int8": [Prune(0.5), Distill(), Quantize("int8")],
    }  # fmt: skip


def _every_layer(bits: int) -> Quantize:
    return Quantize(f"w{bits}", first=True, head=True)


class _PruneAlone(Prune):
    """Pruning without the distillation that must follow it: to show why it must."""

    def check(self, following: Any) -> None:
        """Allow what :class:`Prune` refuses."""


@dataclass(frozen=True)
class Variant:
    """What a compression cost.

    Attributes:
        name: in words.
        nbytes: on the wire.
        kl_max: the largest KL(teacher || variant) over recent observations, nats.
        lost: by how much the mean return fell, over the same starts.
        error: standard error of that difference.
        stopped: whether the default monitor stopped it.
    """

    name: str
    nbytes: int
    kl_max: float
    lost: float
    error: float
    stopped: bool


def trained(seed: int) -> tuple[Policy, npt.NDArray[np.float32]]:
    """Train SAC on Pendulum; return its policy and its last observations (N, 3)."""
    from stable_baselines3 import SAC

    from vinoreward.actor_learner.learners.sb3_network import policy_of

    model = SAC(
        "MlpPolicy", TASK, learning_rate=1e-3, learning_starts=200, batch_size=128, seed=seed,
        device="cpu",
    )  # fmt: skip
    model.learn(TRAINING_STEPS)
    buffer: Any = model.replay_buffer
    return policy_of(model), buffer.observations[: buffer.pos, 0][-2000:].astype(np.float32)


def returns(policy: Policy, seed: int) -> npt.NDArray[np.float64]:
    """Return (EPISODES,) returns of greedy actions; the same starts for every policy."""
    environments = Environments(EnvironmentSpec(TASK), policy.spec, EPISODES, seed)
    found = np.zeros(EPISODES)
    over = np.zeros(EPISODES, dtype=bool)
    greedy, random = Exploration(greedy=True), np.random.default_rng(0)
    while not over.all():
        acted = act(policy.spec, forward(policy, environments.observations), random, greedy)
        stepped = environments.step(acted.actions)
        found += np.where(over, 0.0, stepped.rewards)
        over |= stepped.terminated | stepped.truncated
    environments.close()
    return found


def stopped(teacher: Policy, variant: Policy, seen: npt.NDArray[np.float32]) -> bool:
    """Let the default monitor look at a variant's outputs; return whether it stops it."""
    monitor = default_monitor(teacher.spec.head, CompressionSetting(bits=8))
    for start in range(0, len(seen), LOOK):
        rows = seen[start : start + LOOK]
        count = np.full(len(rows), 1)
        monitor.observe(
            MonitorBatch(
                spec=teacher.spec,
                pi=forward(teacher, rows),
                mu=forward(variant, rows),
                versions=count,
                learner_version=1,
                network=count,
            )
        )
        if monitor.setting.bits != CompressionSetting(bits=8).bits or not monitor.setting.enabled:
            return True
    return False


def bits_rows(config: BenchConfig) -> list[Row]:
    """Compress a trained policy in every way; say bytes, divergence, return and verdict."""
    teacher, seen = trained(config.first_seed)
    whole = returns(teacher, config.seed)
    found = []
    for name, stages in _variants().items():
        chain = CompressorChain()
        for stage in stages:
            chain.add(stage)
        variant = chain.compress(teacher, CompressionContext(teacher, seen, seed=config.first_seed))
        apart = whole - returns(variant, config.seed)
        found.append(
            Variant(
                name,
                encode(variant).nbytes,
                check_policy(variant, teacher, seen).kl_max,
                float(apart.mean()),
                float(apart.std(ddof=1) / np.sqrt(len(apart))),
                stopped(teacher, variant, seen),
            )
        )
    picture = draw(config.out / "actor-bits.png", found)
    return [_row(one, float(whole.mean()), picture) for one in found]


def _row(one: Variant, whole: float, picture: Path) -> Row:
    caught = one.name == NNCF
    return Row(
        "actor-bits",
        f"SAC on {TASK} ({whole:.0f} in full precision), {one.name}: return lost over {EPISODES} "
        "paired episodes",
        one.lost,
        "reward",
        low=one.lost - one.error,
        high=one.lost + one.error,
        spread="one standard error",
        target="stopped by the default monitor" if caught else "",
        met=one.stopped if caught else None,
        note=f"{one.nbytes / 1e3:.0f} kB; largest KL {one.kl_max:.2g} nats; the default monitor "
        f"{'stops' if one.stopped else 'lets it act'}; {picture.name}",
        details={"nbytes": one.nbytes, "kl_max": one.kl_max, "stopped": one.stopped},
    )


def draw(path: Path, variants: list[Variant]) -> Path:
    """Draw return lost against bytes, one point a variant, coloured by its largest KL."""
    from vinoreward_training.model_card import new_figure

    figure = new_figure(8.0, 5.0)
    axes = figure.add_subplot()
    points = axes.scatter(
        [one.nbytes / 1e3 for one in variants],
        [max(one.lost, 0.1) for one in variants],
        c=[np.log10(max(one.kl_max, 1e-6)) for one in variants],
        s=60,
        cmap="viridis",
        zorder=3,
    )
    for index, one in enumerate(variants):
        axes.annotate(
            f"{one.name}{', stopped' if one.stopped else ''}",
            (one.nbytes / 1e3, max(one.lost, 0.1)),
            xytext=(5, 5 + 11 * (index % 3)),  # neighbours do not cover each other
            textcoords="offset points",
            fontsize=7,
        )
    axes.set(
        xscale="log", yscale="log", xlabel="kB on the wire", ylabel="return lost (0.1: none)",
        title=f"SAC on {TASK}: what fewer bits cost",
    )  # fmt: skip
    axes.grid(alpha=0.3)
    figure.colorbar(points, label="log10 of the largest KL, nats")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as part:
        figure.savefig(part, format="png", dpi=110)
    return path
