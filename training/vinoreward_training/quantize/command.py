"""``vinoreward quantize``: an INT8 network that decides as the FP32 one does, or none.

The gate itself is in :mod:`vinoreward_training.quantize.gate`.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.backends.base import load_backend
from vinoreward.backends.convert import quantize_onnx
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import find, known_names
from vinoreward.bundles.save import add_int8
from vinoreward.bundles.schema import Quantization
from vinoreward.errors import ConfigError, DatasetError, QuantizationRefusedError
from vinoreward.rewards.classifier import success_log_odds
from vinoreward.rewards.second_look import logit
from vinoreward_training.classifier.evaluation import refuse_useless
from vinoreward_training.configs.quantize import QuantizeConfig
from vinoreward_training.data.dataset import SPLIT, Dataset, load_dataset, split_by_episode
from vinoreward_training.quantize.encoder import run_encoder
from vinoreward_training.quantize.gate import Floats, GateResult, gate, halves
from vinoreward_training.runs.next_command import to_train

if TYPE_CHECKING:
    from vinoreward.backends.network import NetworkSpec
    from vinoreward.bundles.bundle import Bundle

BACKENDS = ("openvino", "onnxruntime")
"""Every backend that may run the INT8 network; the gate holds for the worst of them."""
METHOD = "nncf-ptq"


def log_odds_of(
    spec: NetworkSpec, backend: str, images: npt.NDArray[np.uint8], bundle: Bundle
) -> Floats:
    """Return the calibrated log-odds (N,) of ``spec`` on ``backend``, with a progress bar."""
    from tqdm import tqdm

    with load_backend(backend, spec) as network:
        outputs = np.concatenate(
            [
                network.infer(images[start : start + 1])
                for start in tqdm(range(len(images)), desc=f"compare on {backend}", unit="frame")
            ]
        )
    # The classifier's own function: the gate must judge what will decide.
    return success_log_odds(outputs, bundle.spec)


def _frames(
    config: QuantizeConfig, bundle: Bundle
) -> tuple[Dataset, npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the data, the calibration frames and the held-out ones, as finetune splits them."""
    picture = bundle.spec.picture
    size = None if picture.resize == "none" else (picture.height, picture.width)
    dataset = load_dataset(config.data, size=size, success_label=config.success_label)
    if bundle.spec.dataset.get("split") != SPLIT and bundle.spec.dataset.get("sha256"):
        print(
            "note: this bundle was trained when data were split otherwise. If it was trained on "
            "these data, some of the frames compared were among those it was trained on."
        )
    train, validation, test = split_by_episode(dataset)
    held = np.concatenate([validation, test])
    if len(held) < 200:
        raise DatasetError(
            f"{config.data} leaves {len(held)} held-out frames. Expected at least 200 to compare "
            "decisions on; capture more."
        )
    chosen = np.random.default_rng([config.seed, 0xCA1]).permutation(train)
    return dataset, np.sort(chosen[: config.calibration]), np.sort(held)


def compare(
    config: QuantizeConfig,
    bundle: Bundle,
    int8: NetworkSpec,
    images: npt.NDArray[np.uint8],
    episodes: npt.NDArray[np.int64],
) -> GateResult:
    """Run both networks on held-out frames and judge the INT8 one by its decisions.

    Args:
        config: the limits.
        bundle: whose FP32 network and threshold count.
        int8: the network to judge.
        images: ``(N, H, W, 3)`` uint8 as :meth:`Bundle.prepare` returns them.
        episodes: ``(N,)``.

    Raises:
        QuantizationRefusedError: above a limit, or the frames cannot show it.
    """

    print(f"FP32 on {len(images)} held-out frames ...", flush=True)
    before = log_odds_of(bundle.network("fp32"), BACKENDS[0], images, bundle)
    print(f"INT8 on the held-out frames, {' and '.join(BACKENDS)} ...", flush=True)
    return gate(
        before,
        {name: log_odds_of(int8, name, images, bundle) for name in BACKENDS},
        halves(episodes, seed=config.seed),
        logit(bundle.spec.decision.threshold),
        boundary=config.boundary,
        max_flips=config.max_flips,
        max_second_looks=config.max_second_looks,
        seed=config.seed,
    )


def _quantize(config: QuantizeConfig, bundle: Bundle) -> GateResult:
    """Quantize a classifier, put the network into the bundle and return what the gate found."""

    dataset, calibration, held = _frames(config, bundle)
    images = bundle.prepare(dataset.images)
    network = bundle.network("fp32")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.int8.onnx"
        print(f"NNCF on {len(calibration)} frames ...", flush=True)
        quantize_onnx(network.path, path, images[calibration])
        int8 = dataclasses.replace(network, path=path, sha256=None)
        found = compare(config, bundle, int8, images[held], dataset.episodes[held])
        with load_backend(BACKENDS[0], int8) as backend:
            golden = backend.infer(bundle.golden.images)
        add_int8(
            bundle,
            path,
            Quantization(
                passed=True,
                flips=found.flips.count,
                frames=found.flips.frames,
                method=METHOD,
                max_flip_rate=config.max_flips,
                detail=_detail(found, calibration_frames=len(calibration), data=dataset.sha256),
            ),
            golden,
            found.band,
        )
    return found


def run(config: QuantizeConfig) -> int:
    """Quantize, gate and save; return 0. The bundle is unchanged if the gate refuses.

    Raises:
        ConfigError: settings that cannot work, or the name of an installed bundle.
        ModelNotFoundError: no such bundle.
        DatasetError: the data cannot be used.
        QuantizationRefusedError: the gate refuses.
        UselessClassifierError: its training called the classifier useless; not with ``force``.
    """

    if (
        not 0 <= config.max_flips < 1
        or not 0 <= config.max_second_looks <= 1
        or config.boundary < 1
        or config.calibration < 1
    ):
        raise ConfigError(
            f"max_flips={config.max_flips}, max_second_looks={config.max_second_looks}, boundary="
            f"{config.boundary}, calibration={config.calibration}. Expected shares below 1 and "
            "positive numbers of frames."
        )
    if not config.bundle.exists() and str(config.bundle) in known_names():
        installed = find(str(config.bundle))
        raise ConfigError(
            f"{config.bundle} is an installed bundle, which is only read. Expected a folder of "
            f"your own to put the INT8 network into; copy it, cp -r {installed} my-bundle, "
            "and give the copy with --bundle."
        )
    bundle = Bundle.load(config.bundle)
    try:
        if bundle.spec.kind == "encoder":
            return run_encoder(config, bundle)
        refuse_useless(str(config.bundle), bundle.spec.metrics, force=config.force)
        found = _quantize(config, bundle)
    except QuantizationRefusedError:
        print(f"next: {to_train(bundle.path, bundle.spec)}")  # in FP32, which works all the same
        raise
    print(_sentences(found))
    print(f"next: {to_train(bundle.path, bundle.spec)}")
    return 0


def _detail(found: GateResult, *, calibration_frames: int, data: str) -> dict[str, object]:
    return {
        "flip_rate_upper": found.flips.high,
        "flips_without_second_look": found.alone.count,
        "flip_rate_without_second_look": found.alone.share,
        "second_looks_boundary_rich": found.looks_boundary,
        "second_looks_held_out": found.looks_all,
        "by_backend": {name: flips.count for name, flips in found.by_backend.items()},
        "calibration_frames": calibration_frames,
        "dataset_sha256": data,
    }


def _sentences(found: GateResult) -> str:
    if found.band is None:
        return f"INT8 alone flips {found.flips} of the decisions and needs no second look."
    return (
        f"INT8 alone flips {found.alone} of the decisions on the boundary-rich set.\n"
        f"With FP32 looking again within {found.band:.3g} log-odds of the threshold: "
        f"{found.flips}.\n"
        f"Second looks: {found.looks_boundary:.1%} of the boundary-rich set, "
        f"{found.looks_all:.1%} of all held-out frames."
    )
