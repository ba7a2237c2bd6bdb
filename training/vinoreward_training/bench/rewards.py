"""Bench rows about the learned reward: its speed, the camera's, and whether it decides rightly."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

import vinoreward  # noqa: F401  (registers the environments)
from vinoreward.bundles.bundle import Bundle
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.constants import (
    ARTICLE_HEIGHT,
    ARTICLE_WIDTH,
    FIXED_OBJECT,
    SUCCESS_DISTANCE,
    WORKSPACE_HIGH,
    WORKSPACE_LOW,
)
from vinoreward_envs.making import spec_of
from vinoreward_envs.scene import HoverScene, make_camera
from vinoreward_training.bench.rows import (
    Row,
    inference_times,
    interleaved,
    range_row,
    share_row,
    speed_row,
    speed_rows,
)
from vinoreward_training.capture.hover import (
    CATEGORIES,
    draw,
    fresh_category,
    fresh_scenes,
    take,
)
from vinoreward_training.classifier.dead_camera import FAMILIES, UNSEEN_FAMILIES, held_out
from vinoreward_training.classifier.evaluation import evaluate_classifier
from vinoreward_training.configs import BenchConfig
from vinoreward_training.tasks.many import make_envs

TOGETHER = (4, 8)
"""Environments that are stepped together, as by ``train --num-envs``."""
DEAD_PART = 3
"""Dead-camera frames of the bench: neither validation's (1) nor test's (2)."""
ARTICLE_SHORT_SIDE = 224
"""The article resizes its image to this on the shorter side."""
FRESH_IMAGES = 200
IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
SCENES = (
    "a quarter each success, near miss within 10 cm, far, and object removed or moved after arrival"
)
"""The scenes of ``fresh_category``, in words."""

GUARDED_EPISODES = 600
"""Clean episodes in which the guard's alarms are counted."""

Images = npt.NDArray[np.uint8]


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
    """Return the fast camera for images like those the bundle was trained on."""
    return spec_of(bundle)


def one_thread() -> None:
    """Keep torch on one thread, as the other candidates are."""
    import torch

    torch.set_num_threads(1)


def backends_rows(config: BenchConfig) -> list[Row]:
    """Time one image on every backend and precision, against eager PyTorch."""
    one_thread()
    bundle = Bundle.load(config.bundle)
    image = np.ascontiguousarray(bundle.golden.images[:1])
    quantization = bundle.spec.quantization
    wanted = [("torch", "fp32"), ("onnxruntime", "fp32"), ("openvino", "fp32")]
    int8 = quantization is not None and quantization.passed
    if int8:
        wanted += [("onnxruntime", "int8"), ("openvino", "int8")]
    size = f"{bundle.spec.image.width}x{bundle.spec.image.height}"
    backends = {f"{name} {one}": bundle.backend(name, precision=one) for name, one in wanted}
    times = inference_times(backends, image, config.rounds)
    what = f"{bundle.spec.architecture} {size}, batch 1, one thread: {{}} against eager PyTorch"
    rows = speed_rows("backends", what, times, {"openvino int8": 5.0})
    if not int8:
        note = "the bundle has no INT8 network that passed its gate"
        missing = what.format("openvino int8")
        rows.append(Row("backends", missing, None, target=">= 5 x", note=note))
    return [*rows, _as_used_row(config, bundle, size)]


def _as_used_row(config: BenchConfig, bundle: Bundle, size: str) -> Row:
    """Time the classifier as users get it, second looks included, on images of fresh scenes."""
    images = fresh_scenes(FRESH_IMAGES, config.seed, camera=scene_camera(bundle))[0]

    def one_after_another(classifier: Classifier) -> Callable[[], object]:
        following = itertools.cycle(np.split(images, len(images)))
        return lambda: classifier.probability(next(following))

    with Classifier(bundle, backend="torch") as eager, Classifier(bundle) as ours:
        candidates = {"eager": one_after_another(eager), "ours": one_after_another(ours)}
        # Equally many calls in every turn, so both see the same images in a round.
        times = interleaved(candidates, rounds=config.rounds, calls=50, warm_up=20)
        share = ours.second_looks / ours.scored
        used = ours.precision.upper() + ("" if ours.band is None else " with second looks")
    return speed_row(
        "backends",
        f"as the classifier uses it, {size}, {FRESH_IMAGES} images of fresh scenes one by one: "
        f"{used} against eager PyTorch",
        times["eager"],
        times["ours"],
        note="" if share == 0 else f"{share:.1%} of the images were looked at twice",
    )


def by_hand(
    network: Any, size: tuple[int, int], mean: Sequence[float], std: Sequence[float]
) -> Callable[[npt.NDArray[np.uint8]], Any]:
    """Return the usual way from an image to a network's output: PIL, a tensor, eager PyTorch."""
    import torch
    from PIL import Image

    middle, spread = (torch.tensor(values).view(3, 1, 1) for values in (mean, std))

    def output(image: npt.NDArray[np.uint8]) -> Any:
        small = Image.fromarray(image)
        if small.size != size:
            small = small.resize(size, Image.Resampling.BILINEAR)
        planes = torch.from_numpy(np.array(small)).permute(2, 0, 1).float().div(255.0)
        with torch.no_grad():
            return network(((planes - middle) / spread).unsqueeze(0))[0]

    return output


def article_path(joints: npt.NDArray[Any], pose: npt.NDArray[Any]) -> Callable[[], float]:
    """Return the article's way from a posed scene to a decision, in PyTorch with random weights.

    960x720 from TinyRenderer, PIL resize of the short side to 224, ImageNet normalisation,
    SqueezeNet 1.0.
    """
    import torch

    from vinoreward.backends.torch_classifiers import build

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
    with scene, Classifier(bundle) as classifier:
        scene.place_object(FIXED_OBJECT)
        scene.move_gripper((0.55, -0.1))
        joints, pose = scene.pose()
        times = interleaved(
            {
                "article": article_path(joints, np.eye(4) if pose is None else pose),
                "ours": lambda: classifier.probability(scene.render()[None]),
            },
            rounds=config.rounds,
            calls={"ours": 50},
        )
    what = "render + preprocess + infer: {} against the article's with PyTorch"
    return speed_rows("reward-path", what, times, {"ours": 100.0})


def step_rows(config: BenchConfig) -> list[Row]:
    """Time a step of our default environment against the article's, the oracle's, and together."""
    one_thread()
    with contextlib.ExitStack() as stack:

        def stepper(**arguments: Any) -> Stepper:
            made = gym.make("PandaHover-v0", bundle=config.bundle, **arguments)
            return Stepper(stack.enter_context(contextlib.closing(made)), config.seed)

        def together(count: int) -> Callable[[], object]:
            made = make_envs(count, "PandaHover-v0", bundle=config.bundle, processes=False)
            envs = stack.enter_context(contextlib.closing(made))
            envs.seed(config.seed)
            envs.reset()
            return lambda: envs.step(np.stack([envs.action_space.sample() for _ in range(count)]))

        times = interleaved(
            {
                "ours": stepper(),
                "oracle": stepper(backend="oracle"),
                "article": stepper(backend="torch", fidelity="article"),
                **{str(count): together(count) for count in TOGETHER},
            },
            rounds=config.rounds,
            calls={"ours": 40, "oracle": 40, "article": 10, **{str(n): 10 for n in TOGETHER}},
        )
    what = "time of a PandaHover-v0 step, resets included: "
    article = f'{what}fidelity="article" with PyTorch over our default'
    oracle = f"{what}our default over the oracle reward, which needs no image"
    return [
        speed_row("step", article, times["article"], times["ours"]),
        speed_row("step", oracle, times["ours"], times["oracle"]),
        *(
            speed_row(
                "step",
                f"{what}our default over one of {count} environments stepped together in one "
                "process, with one classification",
                times["ours"],
                times[str(count)] / count,
            )
            for count in TOGETHER
        ),
    ]


def camera_rows(config: BenchConfig) -> list[Row]:
    """Compare the fast camera with TinyRenderer on random scenes: time, grey levels, decisions.

    TinyRenderer draws the full meshes. The fast camera draws them at the bundle's level, as users
    do, and also in full: only then do differences come from the renderer alone.
    """
    from tqdm import tqdm

    bundle = Bundle.load(config.bundle)
    spec = scene_camera(bundle)
    specs = {"fast": spec, "full": dataclasses.replace(spec, mesh="full")}
    specs["tiny"] = dataclasses.replace(spec, renderer="tiny")
    with contextlib.ExitStack() as stack:
        scene = stack.enter_context(HoverScene(camera=spec))
        cameras = {name: stack.enter_context(make_camera(one)) for name, one in specs.items()}
        # The network alone, here as for INT8: what the guard withholds would look like agreement.
        classifier = stack.enter_context(Classifier(bundle, guarded=False))
        greys: dict[str, list[float]] = {name: [] for name in cameras}
        claims: dict[str, list[bool]] = {name: [] for name in cameras}
        for index in tqdm(range(config.scenes), desc="camera", unit="scene"):
            category = fresh_category(index)
            random = np.random.default_rng([config.seed, 2, index])
            take(scene, draw(category, random), category)
            at = scene.pose()
            drawn = {name: camera.render(*at) for name, camera in cameras.items()}
            for name, image in drawn.items():
                greys[name].append(float(np.abs(image.astype(np.int16) - drawn["tiny"]).mean()))
                # One by one: the way an environment asks.
                claims[name].append(bool(classifier.compute_reward(image[None])[0] > 0))
        times = interleaved(
            {name: functools.partial(camera.render, *at) for name, camera in cameras.items()},
            rounds=config.rounds,
            calls={"fast": 30, "full": 15, "tiny": 2},
        )
    rows = []
    for name in ("fast", "full") if spec.mesh != "full" else ("fast",):
        mesh = specs[name].mesh
        meshes = "full meshes" if mesh == "full" else f"meshes at {mesh} % of the triangles"
        what = f'camera="fast" ({meshes}) against "tiny" at {spec.width}x{spec.height}'
        # The targets are those of the setting that users have; the other one explains it.
        goals = name == "fast"
        rows += [
            speed_row(
                "camera",
                f"{what}: time of an image, tiny over fast",
                times["tiny"],
                times[name],
                at_least=20.0 if goals else None,
            ),
            range_row(
                "camera",
                f"{what}: mean absolute difference",
                float(np.mean(greys[name])),
                "grey levels",
                values=greys[name],
                spread=f"least and greatest of {config.scenes} scenes",
                target="<= 1.0 grey levels" if goals else "",
            ),
            share_row(
                "camera",
                f"{what}: equal decisions",
                int(np.equal(claims[name], claims["tiny"]).sum()),
                config.scenes,
                " scenes",
                target=">= 99.5 %" if goals else "",
                note=f"random scenes, {SCENES}" if goals else "",
            ),
        ]
    return rows


def classifier_rows(config: BenchConfig) -> list[Row]:
    """Judge fresh scenes, for false positives and recall, and images of a failing camera."""
    bundle = Bundle.load(config.bundle)
    images, labels, categories = fresh_scenes(
        config.scenes, config.seed, camera=scene_camera(bundle)
    )
    names = [*FAMILIES, *UNSEEN_FAMILIES]
    each = -(-3 * config.scenes // (2 * len(names)))
    failures = np.flatnonzero(labels == 0)
    frames = held_out(DEAD_PART, images, failures, seed=config.seed, count=each, families=names)
    with Classifier(bundle) as classifier:
        judged = evaluate_classifier(classifier, images, labels, categories)
        claimed = {
            family: int((classifier.compute_reward(drawn) > 0).sum()) for family, drawn in frames
        }
        precision = classifier.precision
    counts = judged.rates
    what = f"shipped classifier ({precision}), {config.scenes} fresh scenes"
    unseen = sum(claimed[family] for family in UNSEEN_FAMILIES)
    return [
        Row(
            "classifier",
            f"{what}: 95 % upper bound of the false-positive rate",
            100.0 * counts.fpr_high,
            "%",
            spread=f"{counts.false_positives} of {len(failures)} failures claimed",
            target="< 1 %",
            details={"by_category": judged.categories, "precision": precision},
        ),
        share_row(
            "classifier",
            f"{what}: recall on successes",
            counts.true_positives,
            int((labels == 1).sum()),
            target="> 95 %",
        ),
        share_row(
            "classifier",
            f"{'FP32' if precision == 'fp32' else 'INT8 with second looks'}: dead-camera frames "
            "claimed",
            sum(claimed.values()),
            each * len(names),
            f", {unseen} of them of the {len(UNSEEN_FAMILIES)} families that training does not "
            "show",
            target="< 1 %",
            details={"claimed": claimed, "frames_each": each},
        ),
    ]


def guard_rows(config: BenchConfig) -> list[Row]:
    """Time a step with the guard against one without; count its alarms in clean episodes."""
    one_thread()
    name = "PandaHoverRandom-v0"
    with contextlib.ExitStack() as stack:

        def made(on_ood: str) -> gym.Env[Any, Any]:
            env = gym.make(name, bundle=config.bundle, on_ood=on_ood)
            return stack.enter_context(contextlib.closing(env))

        both = {one: Stepper(made(one), config.seed) for one in ("withhold", "ignore")}
        times = interleaved(both, rounds=config.rounds, calls=100, warm_up=20)
        env, frames, ood, episodes = made("withhold"), 0, 0, 0
        env.action_space.seed(config.seed)
        for episode in range(GUARDED_EPISODES):
            env.reset(seed=config.seed + episode)
            before, over = ood, False
            while not over:
                _, _, terminated, truncated, info = env.step(env.action_space.sample())
                frames, ood = frames + 1, ood + (info.get("reward_ood", 0.0) > 1.0)
                over = terminated or truncated
            episodes += ood > before
    what = f"{name}, random play: "
    return [
        speed_row(
            "guard",
            f"{what}time of a step, with the guard over without",
            times["withhold"],
            times["ignore"],
        ),
        share_row(
            "guard",
            f"{what}clean frames that are out of distribution",
            ood,
            frames,
            target="<= 1 %",
        ),
        share_row(
            "guard",
            f"{what}clean episodes with an out-of-distribution frame",
            episodes,
            GUARDED_EPISODES,
            target="<= 2 %",
        ),
    ]


def int8_rows(config: BenchConfig) -> list[Row]:
    """Count the decisions that INT8 changes near the boundary, with and without second looks."""
    bundle = Bundle.load(config.bundle)
    what = "INT8 as the classifier uses it against FP32: decisions flipped on a boundary-rich set"
    target = "<= 0.5 %"
    if bundle.resolve_precision("openvino", "auto") != "int8":
        return [Row("int8", what, None, "%", target=target, note="no INT8 that passed")]
    images = boundary_images(config, bundle)
    alone = dataclasses.replace(bundle.spec.decision, int8_band=None)
    unaided = dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, decision=alone))

    def claims(bundle: Bundle, precision: str) -> npt.NDArray[np.bool_]:
        with Classifier(bundle, precision=precision, guarded=False) as classifier:
            return np.asarray(classifier.compute_reward(images) > 0)

    exact = claims(bundle, "fp32")
    flips, flips_unaided = (int((exact != claims(b, "auto")).sum()) for b in (bundle, unaided))
    band = {"band": bundle.spec.decision.int8_band}
    unaided_what = "INT8 without second looks: flipped on the same set"
    return [
        share_row("int8", what, flips, len(images), target=target, details=band),
        share_row("int8", unaided_what, flips_unaided, len(images)),
    ]


def boundary_images(config: BenchConfig, bundle: Bundle) -> Images:
    """Return ``config.scenes`` images, most of them with the gripper near the success radius."""
    images = []
    with HoverScene(camera=scene_camera(bundle)) as scene:
        for index in range(config.scenes):
            random = np.random.default_rng([config.seed, 1, index])
            # Four of five on the boundary, the fifth anything that a capture holds.
            category = "near_miss" if index % 5 else CATEGORIES[index // 5 % len(CATEGORIES)]
            placement = draw(category, random)
            if index % 5 and placement.object_last is not None:
                gripper = _near_boundary(random, placement.object_last)
                placement = dataclasses.replace(placement, gripper=gripper)
            images.append(take(scene, placement, category).image)
    return np.stack(images)


def _near_boundary(random: np.random.Generator, centre: tuple[float, float]) -> tuple[float, float]:
    """Draw a point of the workspace within 1.5 cm of the success radius around ``centre``."""
    while True:
        angle = random.uniform(0.0, 2.0 * math.pi)
        radius = random.uniform(SUCCESS_DISTANCE - 0.015, SUCCESS_DISTANCE + 0.015)
        point = (centre[0] + radius * math.cos(angle), centre[1] + radius * math.sin(angle))
        if all(map(lambda low, at, high: low <= at <= high, WORKSPACE_LOW, point, WORKSPACE_HIGH)):
            return point
