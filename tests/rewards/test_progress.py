"""Progress is read from a network's last column, and paid without changing what is best."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from corridor_forms import sb3, single, vector
from hypothesis import given, settings
from hypothesis import strategies as st
from toy_environments import (
    PASSED,
    Corridor,
    cell_log_odds,
    cell_progress,
    save_progress_bundle,
    save_toy_bundle,
)

from vinoreward import Bundle, Judge, LearnedReward
from vinoreward.bundles.locate import INT8_FILE
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import BundleError, BundleParityError, ConfigError
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.decision import RewardOptions
from vinoreward.rewards.reward_model import RewardModel

PATH = [1, 1, 0, 1, 0, 0, 1, 1, 1, 1]
"""A claim, six steps that end in a truncation, and a claim."""


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return save_progress_bundle(tmp_path_factory.mktemp("progress") / "toy")


def test_it_stands_beside_the_probability_in_every_form(bundle: Bundle) -> None:
    cells = range(8)
    for backend in ("openvino", "onnxruntime"):
        with Classifier(bundle, backend=backend) as classifier:
            found = classifier.predict(bundle.golden.images)
            assert found.log_odds == pytest.approx([cell_log_odds(n) for n in cells], abs=1e-3)
            assert found.progress == pytest.approx([cell_progress(n) for n in cells], abs=1e-5)
            assert classifier.predict(bundle.golden.images[:0]).progress.shape == (0,)  # type: ignore[union-attr]
    with Classifier(bundle, threads=2) as classifier:
        many = np.tile(bundle.golden.images, (8, 1, 1, 1))
        expected = np.tile([cell_progress(n) for n in cells], 8)
        assert classifier.predict(many).progress == pytest.approx(expected, abs=1e-5)


def paid(gamma: float, success: float, step: float) -> list[tuple[float, ...]]:
    """What :data:`PATH` must be paid from cell 3, restated; cells from 5 are claimed."""
    cell, steps, found = 3, 0, list[tuple[float, ...]]()
    for action in PATH:
        before, cell, steps = cell, cell + (1 if action else -1), steps + 1
        claimed = cell >= 5
        following = 0.0 if claimed or cell == 0 else success * cell_progress(cell)
        reward = (success if claimed else step) + gamma * following
        found.append((reward - success * cell_progress(before), cell_progress(cell)))
        if claimed or steps == 6:
            cell, steps = 3, 0
    return found


@pytest.mark.parametrize("form", [single, vector, sb3])
def test_it_is_paid_as_a_potential_in_units_of_a_success(
    form: Callable[..., list[tuple[float, ...]]], bundle: Bundle
) -> None:
    options = {"success_reward": 10.0, "step_reward": -1.0, "gamma": 0.9}
    found = form(
        bundle=bundle, keys=("reward_progress",), actions=PATH, reward_mode="progress", **options
    )
    np.testing.assert_allclose(found, paid(0.9, 10.0, -1.0), atol=1e-4)


IMAGES = np.zeros((256, 6, 8, 3), np.uint8)
IMAGES[..., 0] = np.arange(256)[:, None, None]


@settings(max_examples=60, deadline=None)
@given(
    reds=st.lists(st.integers(0, 255), min_size=2, max_size=12),
    gamma=st.floats(0.5, 1.0),
    success=st.floats(0.1, 100.0),
    ends=st.booleans(),
)
def test_shaping_telescopes_and_a_loop_earns_nothing(
    bundle: Bundle, reds: list[int], gamma: float, success: float, ends: bool
) -> None:
    """Ng, Harada and Russell 1999: what is added, discounted, is the potential of the last image
    less that of the first one, whatever lies between; 0 in a loop without discount."""
    options = RewardOptions(
        reward_mode="progress", success_reward=success, gamma=gamma, success_threshold=1.0,
        terminate_on_success=False,
    )  # fmt: skip
    model = RewardModel(bundle, options)
    with Classifier(bundle) as classifier:
        seen = classifier.predict(IMAGES[reds]).progress
    model.reset(images=IMAGES[reds[:1]])
    rewards = [
        model.score(IMAGES[[red]], terminated=np.array([ends and place == len(reds) - 2])).rewards[
            0
        ]
        for place, red in enumerate(reds[1:])
    ]
    model.close()
    steps = len(rewards)
    discounted = sum(gamma**place * reward for place, reward in enumerate(rewards))
    last = 0.0 if ends else gamma**steps * seen[-1]
    assert discounted == pytest.approx(success * (last - seen[0]), abs=1e-4 * success)


def test_a_loop_of_images_sums_to_nothing(bundle: Bundle) -> None:
    model = RewardModel(bundle, RewardOptions(reward_mode="progress", gamma=1.0))
    loop = [40, 90, 150, 90, 170, 60, 40]
    model.reset(images=IMAGES[loop[:1]])
    total = sum(float(model.score(IMAGES[[red]]).rewards[0]) for red in loop[1:])
    assert total == pytest.approx(0.0, abs=1e-6)


def test_an_image_that_does_not_count_has_no_progress(bundle: Bundle) -> None:
    env = LearnedReward(
        Corridor("image", first_cells=(3,)), bundle, image_source="obs", reward_mode="progress",
        gamma=1.0,
    )  # fmt: skip
    env.reset(seed=0)
    env.pause()
    assert env.step(1)[1] == pytest.approx(-cell_progress(3), abs=1e-5)
    env.pause(False)
    assert env.step(0)[1] == pytest.approx(cell_progress(3), abs=1e-5)


def test_what_says_nothing_of_progress_is_refused(tmp_path: Path) -> None:
    env = Corridor("image")
    for scorer in ({"bundle": save_toy_bundle(tmp_path / "toy")}, {"judge": Judge(len, 0.5)}):  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"says nothing of progress.*finetune --progress"):
            LearnedReward(env, image_source="obs", reward_mode="progress", **scorer)  # type: ignore[arg-type]


def test_int8_is_not_chosen_for_it(bundle: Bundle) -> None:
    files = {**bundle.spec.files, INT8_FILE: "0" * 64}
    spec = dataclasses.replace(bundle.spec, quantization=PASSED, files=files)
    for progress, precision in ((spec.progress, "fp32"), (None, "int8")):
        one = dataclasses.replace(bundle, spec=dataclasses.replace(spec, progress=progress))
        assert one.resolve_precision("openvino") == precision
        assert one.resolve_precision("openvino", "int8") == "int8"


def test_its_column_is_checked(bundle: Bundle, tmp_path: Path) -> None:
    value = bundle.spec.to_dict()
    assert BundleSpec.from_dict(value) == bundle.spec
    for wrong in ({"scale": 0.0}, {"horizon": -1.0}, {"offset": float("nan")}):
        with pytest.raises(BundleError, match="progress"):
            BundleSpec.from_dict({**value, "progress": {**value["progress"], **wrong}})
    logits = bundle.golden.logits + np.array([0, 0, 0.5], np.float32)
    files = {"model.onnx": bundle.path / "model.onnx"}
    saved = save_bundle(tmp_path / "other", bundle.spec, files, bundle.golden.images, logits)
    with pytest.raises(BundleParityError), Classifier(saved) as classifier:
        classifier.predict(bundle.golden.images)
