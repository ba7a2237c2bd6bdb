"""Bench rows about speed: one inference, scene to reward, a whole step, the camera."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.camera.pictures import camera_spec, make_camera
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.constants import ARTICLE_HEIGHT, ARTICLE_WIDTH, FIXED_OBJECT
from vinoreward_envs.scene.hover import HoverScene
from vinoreward_training.bench.rows import (
    Row,
    interleaved,
    share_row,
    speed_row,
    speed_rows,
)
from vinoreward_training.configs import BenchConfig
from vinoreward_training.data.capture_hover import draw, fresh_category, fresh_scenes, take

ARTICLE_SHORT_SIDE = 224
"""The article resizes its picture to this on the shorter side."""
FRESH_PICTURES = 200
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SCENES = (
    "a quarter each success, near miss within 10 cm, far, and object removed or moved after arrival"
)
"""The scenes of :func:`vinoreward_training.data.capture_hover.fresh_category`, in words."""


class Stepper:
    """Steps an environment with random actions, over and over; resets are part of the call."""

    def __init__(self, env: gym.Env[Any, Any], seed: int = 0) -> None:
        self.env = env
        self._over = False
        env.action_space.seed(seed)
        env.reset(seed=seed)

    def __call__(self) -> None:
        """Take one step, after a reset where the last one ended the episode."""
        if self._over:
            self.env.reset()
        _, _, terminated, truncated, _ = self.env.step(self.env.action_space.sample())
        self._over = terminated or truncated


def scene_camera(bundle: Bundle) -> CameraSpec:
    """Return the fast camera for pictures like those the bundle was trained on."""
    return camera_spec("fast", None, None, bundle)


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
    int8 = quantization is not None and quantization.passed
    if int8:
        wanted += [("onnxruntime", "int8"), ("openvino", "int8")]
    size = f"{bundle.spec.picture.width}x{bundle.spec.picture.height}"
    with contextlib.ExitStack() as stack:
        candidates: dict[str, Callable[[], object]] = {}
        for name, precision in wanted:
            backend = stack.enter_context(bundle.backend(name, precision=precision))
            candidates[f"{name} {precision}"] = functools.partial(backend.infer, picture)
        times = interleaved(candidates, rounds=config.rounds, calls=20, warm_up=20)
    what = f"{bundle.spec.architecture} {size}, batch 1, one thread: {{}} against eager PyTorch"
    rows = speed_rows("backends", what, times, {"openvino int8": 5.0})
    if not int8:
        note = "the bundle has no INT8 network that passed its gate"
        missing = what.format("openvino int8")
        rows.append(Row("backends", missing, None, target=">= 5 x", note=note))
    return [*rows, _as_used_row(config, bundle, size)]


def _as_used_row(config: BenchConfig, bundle: Bundle, size: str) -> Row:
    """Time the classifier as users get it, second looks included, on pictures of fresh scenes."""
    pictures = fresh_scenes(FRESH_PICTURES, config.seed, camera=scene_camera(bundle))[0]

    def one_after_another(classifier: Classifier) -> Callable[[], object]:
        following = itertools.cycle(np.split(pictures, len(pictures)))
        return lambda: classifier.probability(next(following))

    with Classifier(bundle, backend="torch") as eager, Classifier(bundle) as ours:
        # Equally many calls in every turn, so both see the same pictures in a round.
        times = interleaved(
            {"eager": one_after_another(eager), "ours": one_after_another(ours)},
            rounds=config.rounds,
            calls=50,
            warm_up=20,
        )
        share = ours.second_looks / ours.looks
        used = ours.precision.upper() + ("" if ours.band is None else " with second looks")
    return speed_row(
        "backends",
        f"as the classifier uses it, {size}, {FRESH_PICTURES} pictures of fresh scenes one by one: "
        f"{used} against eager PyTorch",
        times["eager"],
        times["ours"],
        note="" if share == 0 else f"{share:.1%} of the pictures were looked at twice",
    )


def by_hand(
    network: Any, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Callable[[npt.NDArray[np.uint8]], Any]:
    """Return the usual way from a picture to a network's output: PIL, a tensor, eager PyTorch."""
    import torch
    from PIL import Image

    middle, spread = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))

    def output(picture: npt.NDArray[np.uint8]) -> Any:
        image = Image.fromarray(picture)
        if image.size != size:
            image = image.resize(size, Image.Resampling.BILINEAR)
        planes = torch.from_numpy(np.array(image)).permute(2, 0, 1).float().div(255.0)
        with torch.no_grad():
            return network(((planes - middle) / spread).unsqueeze(0))[0]

    return output


def article_path(joints: npt.NDArray[Any], pose: npt.NDArray[Any]) -> Callable[[], float]:
    """Return the article's way from a posed scene to a decision, in PyTorch.

    960x720 from TinyRenderer, PIL resize of the short side to 224, ImageNet normalisation,
    SqueezeNet 1.0. The weights are not trained: they do not change the time.
    """
    import torch

    from vinoreward.backends.torch_networks import build

    camera = make_camera(
        CameraSpec(height=ARTICLE_HEIGHT, width=ARTICLE_WIDTH, renderer="tiny", mesh="full")
    )
    torch.manual_seed(0)
    width = round(ARTICLE_SHORT_SIDE * ARTICLE_WIDTH / ARTICLE_HEIGHT)
    network = build("squeezenet1_0").eval()
    logits = by_hand(network, (width, ARTICLE_SHORT_SIDE), IMAGENET_MEAN, IMAGENET_STD)
    return lambda: float(torch.softmax(logits(camera.render(joints, pose)), 0)[1])


def reward_path_rows(config: BenchConfig) -> list[Row]:
    """Time render, preprocess and inference: ours against the article's, for the same pose."""
    one_thread()
    bundle = Bundle.load(config.bundle)
    scene = HoverScene(camera=scene_camera(bundle))
    with contextlib.closing(scene), Classifier(bundle) as classifier:
        scene.place_object(FIXED_OBJECT)
        scene.move_gripper((0.55, -0.1))
        pose = scene.object_pose
        times = interleaved(
            {
                "article": article_path(scene.joints, np.eye(4) if pose is None else pose),
                "ours": lambda: classifier.probability(scene.render()[None]),
            },
            rounds=config.rounds,
            calls={"ours": 50},
        )
    what = "render + preprocess + infer: {} against the article's with PyTorch"
    return speed_rows("reward-path", what, times, {"ours": 100.0})


def step_rows(config: BenchConfig) -> list[Row]:
    """Time a step of our default environment against the article's, and the oracle's."""
    one_thread()
    with contextlib.ExitStack() as stack:

        def stepper(**arguments: Any) -> Stepper:
            made = gym.make("PandaHover-v0", bundle=config.bundle, **arguments)
            return Stepper(stack.enter_context(contextlib.closing(made)), config.seed)

        times = interleaved(
            {
                "ours": stepper(),
                "oracle": stepper(backend="oracle"),
                "article": stepper(backend="torch", fidelity="article"),
            },
            rounds=config.rounds,
            calls={"ours": 40, "oracle": 40, "article": 10},
        )
    what = "time of a PandaHover-v0 step, resets included: "
    return [
        speed_row(
            "step",
            f'{what}fidelity="article" with PyTorch over our default',
            times["article"],
            times["ours"],
        ),
        speed_row(
            "step",
            f"{what}our default over the oracle reward, which needs no picture",
            times["ours"],
            times["oracle"],
        ),
    ]


def camera_rows(config: BenchConfig) -> list[Row]:
    """Compare the fast camera with TinyRenderer on random scenes: time, grey levels, decisions.

    TinyRenderer always draws the full meshes. The fast camera draws them at the bundle's level,
    which is what users compare, and once more in full, which is what says whether the two
    renderers agree: the rest of the difference is the simplified arm.
    """
    from tqdm import tqdm

    bundle = Bundle.load(config.bundle)
    spec = scene_camera(bundle)
    with contextlib.ExitStack() as stack:
        scene = stack.enter_context(contextlib.closing(HoverScene(camera=spec)))
        cameras = {
            name: stack.enter_context(contextlib.closing(make_camera(which)))
            for name, which in {
                "fast": spec,
                "full": dataclasses.replace(spec, mesh="full"),
                "tiny": dataclasses.replace(spec, renderer="tiny"),
            }.items()
        }
        classifier = stack.enter_context(Classifier(bundle))
        greys: dict[str, list[float]] = {name: [] for name in cameras}
        claims: dict[str, list[bool]] = {name: [] for name in cameras}
        for index in tqdm(range(config.scenes), desc="camera", unit="scene"):
            category = fresh_category(index)
            random = np.random.default_rng([config.seed, 2, index])
            take(scene, draw(category, random), category)
            joints, pose = scene.joints, scene.object_pose
            pictures = {name: camera.render(joints, pose) for name, camera in cameras.items()}
            for name, picture in pictures.items():
                difference = picture.astype(np.int16) - pictures["tiny"]
                greys[name].append(float(np.abs(difference).mean()))
                # One by one: the way an environment asks.
                claims[name].append(bool(classifier.compute_reward(picture[None])[0] > 0))
        joints, pose = scene.joints, scene.object_pose
        times = interleaved(
            {
                name: functools.partial(camera.render, joints, pose)
                for name, camera in cameras.items()
            },
            rounds=config.rounds,
            calls={"fast": 30, "full": 15, "tiny": 2},
        )
    rows = []
    for name in ("fast", "full") if spec.mesh != "full" else ("fast",):
        mesh = spec.mesh if name == "fast" else "full"
        drawn = "full meshes" if mesh == "full" else f"meshes at {mesh} % of the triangles"
        what = f'camera="fast" ({drawn}) against "tiny" at {spec.width}x{spec.height}'
        # The targets are those of the setting that users have; the other one explains it.
        goals = name == "fast"
        rows += [
            speed_row(
                "camera",
                f"{what}: time of a picture, tiny over fast",
                times["tiny"],
                times[name],
                at_least=20.0 if goals else None,
            ),
            Row(
                "camera",
                f"{what}: mean absolute difference",
                float(np.mean(greys[name])),
                "grey levels",
                low=min(greys[name]),
                high=max(greys[name]),
                spread=f"least and greatest of {config.scenes} scenes",
                target="<= 1.0 grey levels" if goals else "",
            ),
            share_row(
                "camera",
                f"{what}: equal decisions",
                int(np.equal(claims[name], claims["tiny"]).sum()),
                config.scenes,
                spread=" scenes",
                target=">= 99.5 %" if goals else "",
                note=f"random scenes, {SCENES}" if goals else "",
            ),
        ]
    return rows
