"""``vinoreward quantize``: an INT8 network that decides as the FP32 one does, or none."""

from __future__ import annotations

import dataclasses
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.errors import ConfigError, DatasetError, QuantizationRefusedError
from vinoreward_training.dataset import Dataset, load_dataset, split_by_episode

if TYPE_CHECKING:
    from vinoreward.backends.spec import NetworkSpec
    from vinoreward.bundles.bundle import Bundle

BACKENDS = ("openvino", "onnxruntime")
"""Every backend that may run the INT8 network; the gate holds for the worst of them."""
METHOD = "nncf-ptq"

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class QuantizeConfig:
    """Add an INT8 network to a bundle, if it makes the same decisions.

    The gate compares decisions, not errors: on held-out frames, half of them the ones closest to
    the threshold. Above the limit the INT8 threshold is fitted again on one half of the frames and
    measured on the other; if that does not help either, the bundle stays as it is.

    Examples:
        vinoreward quantize --bundle runs/classifier/bundle --data data/hover
        vinoreward quantize --bundle runs/classifier/bundle --data data/hover --max-flips 0.001
    """

    bundle: Path = Path("runs/classifier/bundle")
    """The bundle."""
    data: Path = Path("data/hover")
    """Pictures of where it will be used, best those it was trained on."""
    max_flips: float = 0.005
    """Largest share of decisions that may differ from FP32."""
    boundary: int = 1000
    """Frames closest to the threshold in the comparison; as many random ones are added."""
    calibration: int = 300
    """Training frames on which NNCF sees the range of activations."""
    seed: int = 0
    """Decides which frames are taken at random."""
    success_label: str = "success"
    """Which sub-folder of the data holds the successes."""


@dataclass(frozen=True)
class Flips:
    """Decisions that differ between two networks.

    Attributes:
        count: frames whose decision differs.
        frames: frames compared.
        high: one-sided 95 % Clopper-Pearson upper bound of the share.
    """

    count: int
    frames: int
    high: float

    @property
    def share(self) -> float:
        """Share of differing decisions."""
        return self.count / self.frames


def count_flips(before: npt.NDArray[np.bool_], after: npt.NDArray[np.bool_]) -> Flips:
    """Compare decisions (N,) with decisions (N,)."""
    from vinoreward.rewards.calibration import clopper_pearson

    count = int((before != after).sum())
    return Flips(count, len(before), clopper_pearson(count, len(before), 0.95, "upper")[1])


def boundary_rich(
    log_odds: Floats, threshold: float, *, boundary: int, seed: int
) -> npt.NDArray[np.int64]:
    """Choose the frames closest to the threshold and as many random others, without repeats.

    At most half of the frames count as close: a small set keeps its random half.

    Args:
        log_odds: (N,) of the FP32 network.
        threshold: in log-odds.
        boundary: how many close ones.
        seed: decides the random ones.
    """
    order = np.argsort(np.abs(log_odds - threshold), kind="stable")
    close = min(boundary, len(order) // 2)
    others = np.random.default_rng([seed, 0x1E8]).permutation(order[close:])
    return np.sort(np.concatenate([order[:close], others[:close]]))


def refit_threshold(decisions: npt.NDArray[np.bool_], log_odds: Floats, start: float) -> float:
    """Return the threshold (log-odds) at which ``log_odds`` decides most like ``decisions``.

    Args:
        decisions: (N,) of the FP32 network.
        log_odds: (N,) of the INT8 network.
        start: among equally good thresholds the one closest to this is taken.
    """
    values = np.sort(log_odds)
    candidates = np.concatenate([[start], (values[1:] + values[:-1]) / 2])
    order = np.argsort(log_odds, kind="stable")
    positive = np.concatenate([[0], np.cumsum(decisions[order])])
    below = np.searchsorted(log_odds[order], candidates, side="left")
    # Positives below the candidate are lost, negatives at or above it are gained.
    lost = positive[below]
    gained = (len(decisions) - below) - (positive[-1] - lost)
    flips = lost + gained
    best = candidates[flips == flips.min()]
    return float(best[np.argmin(np.abs(best - start))])


def log_odds_of(
    spec: NetworkSpec, backend: str, images: npt.NDArray[np.uint8], bundle: Bundle
) -> Floats:
    """Return the calibrated log-odds (N,) of ``spec`` on ``backend``."""
    from vinoreward.backends.registry import load_backend

    success = bundle.spec.success_index
    with load_backend(backend, spec) as network:
        logits = np.concatenate(
            [network.infer(images[start : start + 1]) for start in range(len(images))]
        ).astype(np.float64)
    rest = np.delete(logits, success, axis=1)
    high = rest.max(axis=1, keepdims=True)
    others = high[:, 0] + np.log(np.exp(rest - high).sum(axis=1))
    values: Floats = (logits[:, success] - others) / bundle.spec.decision.temperature
    return values


@dataclass(frozen=True)
class GateResult:
    """What the gate found.

    Attributes:
        flips: the worst backend's.
        by_backend: each backend's.
        threshold: the INT8 network's own threshold (log-odds) if it was fitted again.
        notes: what happened, in sentences.
    """

    flips: Flips
    by_backend: dict[str, Flips]
    threshold: float | None
    notes: tuple[str, ...]


def gate(
    before: Floats, after: dict[str, Floats], threshold: float, *, max_flips: float
) -> GateResult:
    """Compare INT8 with FP32 decisions; fit the INT8 threshold again if they differ too often.

    Args:
        before: (N,) log-odds of the FP32 network.
        after: per backend (N,) log-odds of the INT8 network.
        threshold: of the FP32 network, in log-odds.
        max_flips: allowed share.

    Raises:
        QuantizationRefusedError: above the limit with either threshold.
    """
    decisions = before >= threshold
    first = {name: count_flips(decisions, values >= threshold) for name, values in after.items()}
    worst = max(first.values(), key=lambda flips: flips.share)
    if worst.share <= max_flips:
        return GateResult(worst, first, None, ("The threshold of FP32 serves.",))
    # Every other frame, so that both halves hold close and random frames.
    fit, held = np.arange(0, len(before), 2), np.arange(1, len(before), 2)
    merged = np.concatenate([values[fit] for values in after.values()])
    refitted = refit_threshold(np.tile(decisions[fit], len(after)), merged, threshold)
    second = {
        name: count_flips(decisions[held], values[held] >= refitted)
        for name, values in after.items()
    }
    again = max(second.values(), key=lambda flips: flips.share)
    if again.share > max_flips:
        counts = ", ".join(
            f"{name} {first[name].count} of {first[name].frames}, with a refitted threshold "
            f"{flips.count} of {flips.frames}"
            for name, flips in second.items()
        )
        raise QuantizationRefusedError(
            f"INT8 flips {again.share:.2%} of the decisions ({counts}). Expected at most "
            f"{max_flips:.2%}; the bundle is unchanged and stays FP32. Train longer or on more "
            "frames, or accept more with --max-flips."
        )
    note = (
        f"FP32's threshold flipped {worst.count} of {worst.frames}; fitted again on one half, "
        "measured on the other."
    )
    return GateResult(again, second, refitted, (note,))


def _frames(
    config: QuantizeConfig, bundle: Bundle
) -> tuple[Dataset, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the data, the calibration frames and the held-out ones, as the bundle was split."""
    picture = bundle.spec.picture
    size = None if picture.resize == "none" else (picture.height, picture.width)
    dataset = load_dataset(config.data, size=size, success_label=config.success_label)
    split_seed = bundle.spec.dataset.get("split_seed", config.seed)
    train, validation, test = split_by_episode(dataset, seed=int(split_seed))
    held = np.concatenate([validation, test])
    if len(held) < 200:
        raise DatasetError(
            f"{config.data} leaves {len(held)} held-out frames. Expected at least 200 to compare "
            "decisions on; capture more."
        )
    chosen = np.random.default_rng([config.seed, 0xCA1]).permutation(train)
    return dataset, np.sort(chosen[: config.calibration]), np.sort(held)


def _probability(log_odds: float) -> float:
    from vinoreward_training.evaluation import sigmoid

    return float(sigmoid(np.array([log_odds]))[0])


def run(config: QuantizeConfig) -> int:
    """Quantize, gate and save; return 0. The bundle is unchanged if the gate refuses."""
    from vinoreward.backends.int8 import quantize_onnx
    from vinoreward.bundles.bundle import Bundle
    from vinoreward.bundles.save import add_int8
    from vinoreward.bundles.schema import Quantization

    if not 0 <= config.max_flips < 1 or config.boundary < 1 or config.calibration < 1:
        raise ConfigError(
            f"max_flips={config.max_flips}, boundary={config.boundary}, calibration="
            f"{config.calibration}. Expected a share below 1 and positive numbers of frames."
        )
    bundle = Bundle.load(config.bundle)
    dataset, calibration, held = _frames(config, bundle)
    images = bundle.prepare(dataset.images)
    network = bundle.network("fp32")
    value = bundle.spec.decision.threshold
    threshold = float(np.log(value) - np.log1p(-value)) if 0 < value < 1 else np.inf
    print(f"FP32 on {len(held)} held-out frames ...", flush=True)
    everything = log_odds_of(network, BACKENDS[0], images[held], bundle)
    chosen = boundary_rich(everything, threshold, boundary=config.boundary, seed=config.seed)
    before, frames = everything[chosen], images[held][chosen]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.int8.onnx"
        print(f"NNCF on {len(calibration)} frames ...", flush=True)
        quantize_onnx(network.path, path, images[calibration])
        int8 = dataclasses.replace(network, path=path, sha256=None)
        after = {name: log_odds_of(int8, name, frames, bundle) for name in BACKENDS}
        found = gate(before, after, threshold, max_flips=config.max_flips)
        from vinoreward.backends.registry import load_backend

        with load_backend(BACKENDS[0], int8) as backend:
            golden = backend.infer(bundle.golden.images)
        detail = {
            "boundary_frames": min(config.boundary, len(held) // 2),
            "flip_rate_upper": found.flips.high,
            "by_backend": {name: flips.count for name, flips in found.by_backend.items()},
            "calibration_frames": len(calibration),
            "dataset_sha256": dataset.sha256,
            "notes": list(found.notes),
        }
        add_int8(
            bundle,
            path,
            Quantization(
                passed=True,
                flips=found.flips.count,
                frames=found.flips.frames,
                method=METHOD,
                max_flip_rate=config.max_flips,
                detail=detail,
            ),
            golden,
            None if found.threshold is None else _probability(found.threshold),
        )
    counts = ", ".join(f"{name} {flips.count}" for name, flips in found.by_backend.items())
    print(
        f"INT8 flips {found.flips.count} of {found.flips.frames} decisions "
        f"({found.flips.share:.2%}, at most {found.flips.high:.2%}; {counts}). {found.notes[0]}"
    )
    print(f"next: vinoreward train --bundle {bundle.path}")
    return 0
