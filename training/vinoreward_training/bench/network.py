"""Bench rows about one inference and the way from the scene to the reward."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs import constants as c
from vinoreward_envs.camera.pictures import camera_spec
from vinoreward_envs.camera.renderers import make_camera
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.constants import FIXED_OBJECT
from vinoreward_envs.scene.hover import HoverScene
from vinoreward_training.bench.statistics import Row, interleaved, speed_row
from vinoreward_training.classifier.fresh_scenes import fresh_scenes
from vinoreward_training.configs.bench import BenchConfig

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle
    from vinoreward_envs.camera.spec import CameraSpec

ARTICLE_SHORT_SIDE = 224
"""The article resizes its picture to this on the shorter side."""
FRESH_PICTURES = 200
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


def scene_camera(bundle: Bundle, renderer: Any = "fast") -> CameraSpec:
    """Return the camera whose pictures the bundle was trained on, drawn by ``renderer``."""

    return camera_spec(renderer, None, None, bundle)


def one_thread() -> None:
    """Keep torch on one thread, as the other candidates are."""
    import torch

    torch.set_num_threads(1)


def backends_rows(config: BenchConfig) -> list[Row]:
    """Time one picture on every backend and precision, against eager PyTorch."""

    one_thread()
    bundle = Bundle.load(config.bundle)
    picture = np.ascontiguousarray(bundle.golden.images[:1])
    quantization = bundle.spec.quantization
    wanted = [("torch", "fp32"), ("onnxruntime", "fp32"), ("openvino", "fp32")]
    if quantization is not None and quantization.passed:
        wanted += [("onnxruntime", "int8"), ("openvino", "int8")]
    size = f"{bundle.spec.picture.width}x{bundle.spec.picture.height}"
    with contextlib.ExitStack() as stack:
        candidates: dict[str, Callable[[], object]] = {}
        for name, precision in wanted:
            backend = stack.enter_context(bundle.backend(name, precision=precision))
            candidates[f"{name} {precision}"] = functools.partial(backend.infer, picture)
        times = interleaved(candidates, rounds=config.rounds, calls=20, warm_up=20)
    rows = []
    for name, timing in times.items():
        if name == "torch fp32":
            continue
        rows.append(
            speed_row(
                "backends",
                f"{bundle.spec.architecture} {size}, batch 1, one thread: {name} against eager "
                "PyTorch",
                times["torch fp32"],
                timing,
                at_least=5.0 if name == "openvino int8" else None,
            )
        )
    if "openvino int8" not in times:
        rows.append(
            Row(
                "backends",
                f"{size}, batch 1, one thread: openvino int8 against eager PyTorch",
                None,
                target=">= 5 x",
                met=False,
                note="the bundle has no INT8 network that passed its gate",
            )
        )
    rows.append(_as_used_row(config, bundle, size))
    return rows


def _as_used_row(config: BenchConfig, bundle: Bundle, size: str) -> Row:
    """Time the classifier as users get it, second looks included, on pictures of fresh scenes."""

    pictures = fresh_scenes(FRESH_PICTURES, config.seed, camera=scene_camera(bundle))[0]
    with Classifier(bundle, backend="torch") as eager, Classifier(bundle) as ours:

        def one_after_another(classifier: Classifier) -> Callable[[], object]:
            following = itertools.cycle(range(len(pictures)))

            def call() -> object:
                index = next(following)
                return classifier.probability(pictures[index : index + 1])

            return call

        # Equally many calls in every turn, so both see the same pictures in a round.
        times = interleaved(
            {"eager": one_after_another(eager), "ours": one_after_another(ours)},
            rounds=config.rounds,
            calls=50,
            warm_up=20,
        )
        share = ours.second_looks / ours.looks
        used = ours.precision.upper() + ("" if ours.band is None else " with second looks")
    row = speed_row(
        "backends",
        f"as the classifier uses it, {size}, {FRESH_PICTURES} pictures of fresh scenes one by one: "
        f"{used} against eager PyTorch",
        times["eager"],
        times["ours"],
        note="" if share == 0 else f"{share:.1%} of the pictures were looked at twice",
    )
    return dataclasses.replace(row, details={**row.details, "second_looks": share})


def article_path(joints: npt.NDArray[Any], pose: npt.NDArray[Any]) -> Callable[[], float]:
    """Return the article's way from a posed scene to a decision, in PyTorch.

    960x720 from TinyRenderer, PIL resize of the short side to 224, ImageNet normalisation,
    SqueezeNet 1.0. The weights are not trained: they do not change the time.
    """
    import torch
    from PIL import Image

    from vinoreward.backends.torch_networks import build

    camera = make_camera(
        CameraSpec(height=c.ARTICLE_HEIGHT, width=c.ARTICLE_WIDTH, renderer="tiny", mesh="full")
    )
    torch.manual_seed(0)
    network = build("squeezenet1_0").eval()
    mean = torch.tensor(IMAGENET_MEAN).view(3, 1, 1)
    std = torch.tensor(IMAGENET_STD).view(3, 1, 1)
    width = round(ARTICLE_SHORT_SIDE * c.ARTICLE_WIDTH / c.ARTICLE_HEIGHT)

    def decide() -> float:
        image = Image.fromarray(camera.render(joints, pose))
        small = image.resize((width, ARTICLE_SHORT_SIDE), Image.Resampling.BILINEAR)
        planes = torch.from_numpy(np.array(small)).permute(2, 0, 1).float().div(255.0)
        with torch.no_grad():
            logits = network(((planes - mean) / std).unsqueeze(0))
        return float(torch.softmax(logits, 1)[0, 1])

    return decide


def reward_path_rows(config: BenchConfig) -> list[Row]:
    """Time render, preprocess and inference: ours against the article's, for the same pose."""

    one_thread()
    bundle = Bundle.load(config.bundle)
    with contextlib.ExitStack() as stack:
        classifier = stack.enter_context(Classifier(bundle))
        scene = HoverScene(camera=scene_camera(bundle))
        stack.callback(scene.close)
        scene.place_object(FIXED_OBJECT)
        scene.move_gripper((0.55, -0.1))
        pose = scene.object_pose
        theirs = article_path(scene.joints, np.eye(4) if pose is None else pose)
        times = interleaved(
            {
                "ours": lambda: classifier.probability(scene.render()[None]),
                "article": theirs,
            },
            rounds=config.rounds,
            calls={"ours": 50, "article": 1},
        )
    return [
        speed_row(
            "reward-path",
            "render + preprocess + infer: ours against the article's with PyTorch",
            times["article"],
            times["ours"],
            at_least=100.0,
        )
    ]
