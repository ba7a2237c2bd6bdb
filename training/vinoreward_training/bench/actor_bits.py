"""Bench row about fewer bits: bytes, divergence and paired return of a trained policy, in a plot.

The policy is one that matters: SAC's on Pendulum, trained here. The monitor is shown every variant
as it would meet it in a training, and says what it would have done.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.actor_learner.acting.environments import Environments, EnvironmentSpec
from vinoreward.compression.chain import CompressorChain
from vinoreward.compression.context import CompressionContext
from vinoreward.compression.distill import Distill
from vinoreward.compression.prune import Prune
from vinoreward.compression.quality import check_policy
from vinoreward.compression.quantize import Quantize
from vinoreward.compression.stage import Stage
from vinoreward.monitoring import CompressionSetting, MonitorBatch, default_monitor
from vinoreward.policies.distributions import Exploration, act
from vinoreward.policies.policy import Policy
from vinoreward.policies.reference import forward
from vinoreward.policies.wire import encode
from vinoreward_training.bench.actor_bits_plot import Variant, draw
from vinoreward_training.bench.rows import Row
from vinoreward_training.configs.bench import BenchConfig

TASK = "Pendulum-v1"
TRAINING_STEPS = 6000
EPISODES = 20
LOOK = 200
"""Rows that the monitor sees at a time."""
BITS = (32, 16, 8, 6, 4, 3, 2)
NNCF = "int8, every layer, ranges as NNCF's default"
_WIDTHS = {f"{bits} bits": bits for bits in BITS}


def _variants() -> dict[str, list[Stage]]:
    return {
        "32 bits": [],
        "16 bits": [Quantize("fp16")],
        **{f"{bits} bits": [_every_layer(bits)] for bits in BITS if bits <= 8},
        "int8 (first layer and head in float)": [Quantize("int8")],
        NNCF: [Quantize("int8", first=True, head=True, ranges="mean")],
        "pruned by half": [_PruneAlone(0.5)],
        "pruned by half, distilled, int8": [Prune(0.5), Distill(400, batch=256), Quantize("int8")],
    }  # fmt: skip


def _every_layer(bits: int) -> Quantize:
    return Quantize(f"w{bits}", first=True, head=True)


class _PruneAlone(Prune):
    """Pruning without the distillation that must follow it: to show why it must."""

    def check(self, following: Any) -> None:
        """Allow what :class:`Prune` refuses."""


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


def verdict(teacher: Policy, variant: Policy, seen: npt.NDArray[np.float32]) -> str:
    """Let the default monitor look at a variant's outputs; say what it changes first, if anything.

    Where the variant no longer acts as it is, what the monitor would see next is something else.
    """
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
        if not monitor.setting.enabled:
            return "disables compression"
        if monitor.setting.bits != 8:
            return f"moves it to {monitor.setting.bits or 32} bits"
    return ""


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
                verdict(teacher, variant, seen),
                _WIDTHS.get(name),
            )
        )
    mean = float(whole.mean())
    title = f"SAC on {TASK}, one network, trained with seed {config.first_seed}: what bits cost"
    picture = draw(config.out / "actor-bits.png", found, mean, title)
    return [_row(one, mean, picture, config.first_seed) for one in found]


def _row(one: Variant, whole: float, picture: Path, seed: int) -> Row:
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
        target="the default monitor lets it act no longer" if caught else "",
        met=bool(one.verdict) if caught else None,
        note=f"{one.nbytes / 1e3:.1f} kB; largest KL {one.kl_max:.2g} nats; the default monitor "
        f"{one.verdict or 'lets it act'}; one network for all, trained with seed {seed} for "
        f"{TRAINING_STEPS} steps; {picture.name}",
        details={
            "bits": one.bits,
            "nbytes": one.nbytes,
            "kl_max": one.kl_max,
            "mean_return": whole - one.lost,
            "verdict": one.verdict,
        },
    )
