"""From a posed scene to a decision: ours against the article's, with PyTorch.

The article draws 960x720 with TinyRenderer, resizes the short side to 224 with PIL, normalises as
for ImageNet, and runs SqueezeNet 1.0 (here with random weights).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from harness import Benchmark, Row, Value, interleaved, one_thread, times
from scenes import shipped
from vinoreward.rewards.classifier import Classifier
from vinoreward_envs.camera.spec import CameraSpec
from vinoreward_envs.constants import ARTICLE_HEIGHT, ARTICLE_WIDTH, FIXED_OBJECT
from vinoreward_envs.making import spec_of
from vinoreward_envs.scene import HoverScene, make_camera

SHORT_SIDE = 224
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
ROWS = {"reward path": Row("render, preprocess and infer, against the article's", "≥100×")}


def article_path(joints: Any, pose: Any) -> Callable[[], float]:
    """Return the article's way to a probability."""
    import torch
    from PIL import Image

    from vinoreward.backends.torch_classifiers import build

    spec = CameraSpec(height=ARTICLE_HEIGHT, width=ARTICLE_WIDTH, renderer="tiny", mesh="full")
    camera = make_camera(spec)
    network = build("squeezenet1_0").eval()
    middle, spread = (torch.tensor(values).view(3, 1, 1) for values in (MEAN, STD))
    size = (round(SHORT_SIDE * ARTICLE_WIDTH / ARTICLE_HEIGHT), SHORT_SIDE)

    def probability() -> float:
        image = Image.fromarray(camera.render(joints, pose))
        small = np.array(image.resize(size, Image.Resampling.BILINEAR))
        planes = torch.from_numpy(small).permute(2, 0, 1).float().div(255.0)
        with torch.no_grad():
            logits = network(((planes - middle) / spread).unsqueeze(0))[0]
        return float(torch.softmax(logits, 0)[1])

    return probability


def measure(options: Any) -> Iterator[tuple[str, Value]]:
    """Time both in turns, for the same pose."""
    one_thread()
    bundle = shipped()
    with HoverScene(camera=spec_of(bundle)) as scene, Classifier(bundle) as classifier:
        scene.place_object(FIXED_OBJECT)
        scene.move_gripper((0.55, -0.1))
        candidates = {
            "article": article_path(*scene.pose()),
            "ours": lambda: classifier.probability(scene.render()[None]),
        }
        timings = interleaved(candidates, rounds=options.rounds, calls={"ours": 50})
    yield "reward path", times(timings["article"], timings["ours"])


BENCH = Benchmark("Learned rewards", ROWS, measure, rounds=20)

if __name__ == "__main__":
    sys.exit(BENCH.main())
