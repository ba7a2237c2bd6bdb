"""Classifiers trained elsewhere become calibrated bundles, and what was told wrongly shows."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import tiny_network as tiny
import torch
import torchvision
from PIL import Image
from torch import nn

from vinoreward import LearnedReward
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import find
from vinoreward.errors import (
    ConfigError,
    ImageMismatchError,
    TooFewNegativesError,
    VinorewardError,
)
from vinoreward.rewards.classifier import Classifier
from vinoreward.rewards.ood import guard_of
from vinoreward_training.classifier import calibrate, import_classifier
from vinoreward_training.classifier.finetune import USELESS
from vinoreward_training.cli import main
from vinoreward_training.configs import CalibrateConfig, ImportClassifierConfig, QuantizeConfig
from vinoreward_training.data.dataset import load_dataset, split_by_episode
from vinoreward_training.quantize import command as quantize
from vinoreward_training.runs.bundles import with_guard

SIZE = (32, 40)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LABELS = ("failure", "success")
# The exporter that names inputs and axes is an old one.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


def normalised(images: np.ndarray) -> np.ndarray:
    """Prepare images by hand, as the training of the foreign network did."""
    floats = (images.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return np.ascontiguousarray(floats.transpose(0, 3, 1, 2))


def draw(folder: Path, count: int) -> Path:
    """Write noise images: a success has a red half, a failure a blue, a green or a dark one."""
    random = np.random.default_rng(0)
    for index in range(count):
        image = random.integers(60, 120, (*SIZE, 3), dtype=np.uint8)
        kind = 0 if index % 2 else 1 + index // 2 % 3
        if kind < 3:
            image[:, :20, [0, 2, 1][kind]] += 90
        path = folder / ("failure" if kind else "success") / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)
    return folder


class Colours(nn.Module):
    """Tell by the mean colour, and saturate: 255 times as much colour says nothing any more."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.AvgPool2d(4), nn.Conv2d(3, 2, 1, bias=False), nn.ReLU())
        self.say = nn.Linear(2, outputs)
        with torch.no_grad():
            red, other = self.look[1].weight[:, :, 0, 0]
            red.copy_(torch.tensor([1.0, 0.0, 0.0]))
            other.copy_(torch.tensor([0.0, 1.0, 1.0]))
            weights = torch.tensor([[0.0, 0.0], [8.0, -2.0]])[-outputs:]
            self.say.weight.copy_(weights)
            self.say.bias.copy_(torch.tensor([0.0, -1.5])[-outputs:])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.say(torch.tanh(self.look(images).mean((2, 3))))


def to_onnx(net: nn.Module, path: Path, batch: int | None = None) -> Path:
    torch.onnx.export(
        net.eval(),
        (torch.zeros(batch or 2, 3, *SIZE),),
        str(path),
        dynamo=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes=None if batch else {"x": {0: "n"}},
    )
    return path


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Images, and a network that knows them with a head of two and with one of one."""
    folder = tmp_path_factory.mktemp("foreign")
    draw(folder / "data", 240)
    to_onnx(Colours(2), folder / "two.onnx")
    to_onnx(Colours(1), folder / "one.onnx")
    to_onnx(Colours(1), folder / "batch1.onnx", 1)
    return folder


@pytest.fixture(autouse=True)
def few_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try other descriptions of a network on fewer frames, which here tell as much."""
    monkeypatch.setattr(calibrate, "SAMPLE", 24)


def config_of(foreign: Path, out: Path, model: str, **changes: Any) -> ImportClassifierConfig:
    given = {"labels": LABELS, "mean": MEAN, "std": STD, **changes}
    return ImportClassifierConfig(model=foreign / model, out=out, **given)


def calibrated(foreign: Path, out: Path, model: str = "two.onnx", **changes: Any) -> int:
    import_classifier.run(config_of(foreign, out, model, **changes))
    return calibrate.run(CalibrateConfig(bundle=out, data=foreign / "data", target_fpr=0.05))


@pytest.fixture(scope="module")
def ready(foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A calibrated bundle, which nobody writes to."""
    folder = tmp_path_factory.mktemp("ready") / "bundle"
    assert calibrated(foreign, folder) == 0
    return folder


@pytest.fixture
def own(ready: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return shutil.copytree(ready, tmp_path / "bundle")


def by_hand(net: nn.Module, images: np.ndarray) -> np.ndarray:
    """Return PyTorch's probability of success for images prepared by hand."""
    with torch.no_grad():
        outputs = net.eval()(torch.from_numpy(normalised(images))).double().numpy()
    if outputs.shape[1] == 1:
        return 1 / (1 + np.exp(-outputs[:, 0]))
    powers = np.exp(outputs)
    return powers[:, 1] / powers.sum(axis=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "output", "more"),
    [
        ("two.onnx", "logits", {}),
        ("batch1.onnx", "logit", {}),
        ("weights.pt", "logit", {"architecture": "squeezenet1_1", "size": SIZE}),
    ],
)
def test_an_imported_classifier_gives_the_probabilities_of_the_original(
    foreign: Path, tmp_path: Path, model: str, output: str, more: dict[str, Any]
) -> None:
    net: nn.Module = Colours(2 if output == "logits" else 1)
    if more:
        torch.manual_seed(0)
        net = torchvision.models.squeezenet1_1(num_classes=1)
        torch.save(net.state_dict(), foreign / model)
    import_classifier.run(config_of(foreign, tmp_path / "bundle", model, **more))
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.spec.output == output
    images = load_dataset(foreign / "data").images[::30]
    expected = by_hand(net, images)
    for backend in ("openvino", "onnxruntime"):
        with Classifier(bundle, backend=backend) as classifier:
            assert classifier.probability(images) == pytest.approx(expected, abs=1e-4)


class Shown(gym.Env[np.ndarray, int]):
    """Shows the images of a data set one after the other; the observation is the image."""

    observation_space = gym.spaces.Box(0, 255, (*SIZE, 3), np.uint8)
    action_space = gym.spaces.Discrete(1)

    def __init__(self, images: np.ndarray) -> None:
        self.images = images

    def reset(self, **kwargs: Any) -> tuple[np.ndarray, dict[str, Any]]:
        self.at = -1
        return self.images[0], {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.at += 1
        return self.images[self.at], 0.0, False, False, {}


@pytest.mark.slow
def test_import_calibrate_quantize_and_wrap(
    foreign: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(quantize.LEAST_HELD_OUT, "classifier", 50)
    out = tmp_path / "bundle"
    assert calibrated(foreign, out, "one.onnx") == 0
    said = capsys.readouterr().out
    assert f"next: vinoreward calibrate --bundle {out}" in said
    assert f"next: vinoreward quantize --bundle {out}" in said
    bundle = Bundle.load(out)
    decision, test = bundle.spec.decision, bundle.spec.metrics["test"]
    assert decision.chosen_for["target_fpr"] == 0.05
    assert decision.chosen_for["episodes_reach_target"]
    assert test["recall"] > 0.9
    assert len(bundle.golden.images) == 8
    level = bundle.spec.metrics["verdict"]["level"]
    assert f"Verdict: {level}" in (out / "README.md").read_text()
    gated = QuantizeConfig(bundle=out, data=foreign / "data", max_second_looks=1.0, calibration=16)
    assert quantize.run(gated) == 0
    quantized = Bundle.load(out)
    assert quantized.resolve_precision("openvino") == "int8"
    data = load_dataset(foreign / "data")
    raw = by_hand(Colours(1), data.images[::30])
    with Classifier(out, precision="fp32") as classifier:
        expected = np.log(raw / (1 - raw)) / decision.temperature
        found = classifier.log_odds(data.images[::30])
        assert found == pytest.approx(expected, abs=1e-3, rel=1e-3)
    shown = split_by_episode(data)[2]
    env = LearnedReward(Shown(data.images[shown]), out, image_source="obs",
                        terminate_on_success=False)  # fmt: skip
    env.reset()
    claims = [env.step(0)[1] for _ in shown]
    env.close()
    truth = data.labels[shown]
    assert np.mean(np.array(claims)[truth == 1]) > 0.9
    assert np.mean(np.array(claims)[truth == 0]) < 0.05


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        ({"color_order": "BGR"}, "import-classifier with --color-order RGB"),
        ({"success_label": "failure"}, "--success-label success (the label is inverted)"),
        ({"scale": 1.0}, "import-classifier with --scale 255"),
    ],
)
def test_what_was_told_wrongly_shows_in_the_numbers_and_is_named(
    foreign: Path,
    tmp_path: Path,
    changes: dict[str, Any],
    cause: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert calibrated(foreign, tmp_path / "bundle", **changes) == USELESS
    said = capsys.readouterr().out
    assert "verdict: useless" in said
    assert cause in said
    assert "next: vinoreward quantize" not in said
    assert Bundle.load(tmp_path / "bundle").spec.metrics["verdict"]["level"] == "useless"


def harmed(folder: Path, how: str) -> Path:
    """Write a network that cannot be imported."""
    import onnx

    path = tiny.network(folder / f"{how}.onnx", float_input=True)
    model = onnx.load(path)
    if how == "external":
        onnx.save_model(
            model, path, save_as_external_data=True, location="data.bin", size_threshold=0
        )
        return path
    if how == "custom":
        model.graph.node[0].domain = "com.mine"
        model.opset_import.append(onnx.helper.make_opsetid("com.mine", 1))
    elif how == "nan":
        broken = np.full((3, 2), np.nan, np.float32)
        weights = next(item for item in model.graph.initializer if item.name == "weights")
        weights.CopyFrom(onnx.numpy_helper.from_array(broken, "weights"))
    elif how == "planes":
        model.graph.node.pop(), model.graph.node.pop()
        model.graph.node[-1].output[0] = "logits"
        sizes = model.graph.output[0].type.tensor_type.shape
        sizes.dim[1].dim_value = 3
        sizes.dim.add().dim_value = sizes.dim.add().dim_value = 1
    onnx.save(model, path)
    return path


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("external", "external data.*with its weights inside the file"),
        ("custom", "domain 'com.mine'.*from usual operators"),
        ("nan", "NaN or infinity for 4 of 4 inputs.*weights are broken"),
        ("planes", "Expected images .* flattened at its end"),
    ],
)
def test_a_network_that_cannot_be_imported_is_named_with_the_remedy(
    tmp_path: Path, how: str, words: str
) -> None:
    path = harmed(tmp_path, how)
    out = tmp_path / "bundle"
    with pytest.raises(VinorewardError, match=words):
        import_classifier.run(config_of(tmp_path, out, path.name))
    assert not out.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"labels": (), "mean": None}, "does not say labels, mean.*give --labels, --mean"),
        ({"labels": ("success",)}, "2 outputs, but there are 1 labels.*give --labels"),
        ({"success_label": "done"}, "success_label is 'done'. Expected one of failure, success"),
        ({"output": "logit"}, "Expected one output for 'logit'.*correct --output"),
        ({"output_index": 3}, "Expected one input and output number 3"),
        ({"architecture": "resnet18"}, "--architecture, which a file with its graph would ignore"),
        ({"module": "net.py:build"}, "--module, which a file with its graph would ignore"),
    ],
)
def test_options_that_do_not_fit_the_file_are_named(
    tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    tiny.network(tmp_path / "net.onnx", float_input=True)
    with pytest.raises(ConfigError, match=words):
        import_classifier.run(config_of(tmp_path, tmp_path / "bundle", "net.onnx", **changes))


def test_a_lerobot_folder_says_itself_what_else_would_be_given(tmp_path: Path) -> None:
    folder = Path(__file__).parents[1] / "data" / "lerobot" / "resnet10"
    for given in ({"mean": MEAN}, {"size": (64, 64)}, {"labels": ("success", "failure")}):
        option = f"--{next(iter(given))}, which a folder of LeRobot"
        with pytest.raises(ConfigError, match=option):
            import_classifier.run(
                ImportClassifierConfig(model=folder, out=tmp_path / "bundle", **given)  # type: ignore[arg-type]
            )


class Runs:
    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return eval, ("open('was-here', 'w').close()",)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "cannot be read as a state dict.*Expected names and tensors"),
        ({"architecture": "resnet19"}, "torchvision has no classifier 'resnet19'"),
        ({"architecture": None}, "Expected also --architecture"),
        ({"size": None}, "Expected also --size HEIGHT WIDTH"),
    ],
)
def test_a_file_of_weights_runs_no_code_and_needs_its_network(
    tmp_path: Path, changes: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save({"weights": Runs()}, tmp_path / "weights.pt")
    given = {"architecture": "resnet18", "size": SIZE} | changes
    with pytest.raises(VinorewardError, match=words):
        import_classifier.run(config_of(tmp_path, tmp_path / "bundle", "weights.pt", **given))
    assert not (tmp_path / "was-here").exists()


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "module._orig_mod."])
@pytest.mark.parametrize("outputs", [1, 2])
def test_what_a_wrapper_put_before_every_name_of_a_state_dict_is_taken_off(
    tmp_path: Path, prefix: str, outputs: int
) -> None:
    torch.manual_seed(0)
    net = torchvision.models.squeezenet1_1(num_classes=outputs)
    state = {prefix + name: value for name, value in net.state_dict().items()}
    torch.save({"state_dict": state} if prefix == "model." else state, tmp_path / "weights.pt")
    given = {"architecture": "squeezenet1_1", "size": SIZE}
    import_classifier.run(config_of(tmp_path, tmp_path / "bundle", "weights.pt", **given))
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.spec.output == ("logit" if outputs == 1 else "logits")
    with torch.no_grad():
        wanted = net.eval()(torch.from_numpy(normalised(bundle.golden.images))).numpy()
    np.testing.assert_allclose(bundle.golden.logits, wanted, atol=1e-4)


def test_weights_of_another_network_are_told_in_a_few_lines(tmp_path: Path) -> None:
    torch.save(torchvision.models.resnet18().state_dict(), tmp_path / "weights.pt")
    given = {"architecture": "squeezenet1_1", "size": SIZE}
    with pytest.raises(VinorewardError, match="give the module that the file belongs to") as caught:
        import_classifier.run(config_of(tmp_path, tmp_path / "bundle", "weights.pt", **given))
    assert len(str(caught.value)) < 700


def test_a_torchscript_program_is_called_that(tmp_path: Path) -> None:
    with pytest.warns(FutureWarning):
        torch.jit.save(torch.jit.script(nn.Linear(2, 2)), tmp_path / "weights.pt")
    given = {"architecture": "resnet18", "size": SIZE}
    with pytest.raises(VinorewardError, match=r"TorchScript.*state_dict\(\)"):
        import_classifier.run(config_of(tmp_path, tmp_path / "bundle", "weights.pt", **given))


def test_options_that_would_be_ignored_or_guessed_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import onnx

    own = tiny.network(tmp_path / "own.onnx")
    model = onnx.load(tiny.network(tmp_path / "absolute.onnx", softmax=True))
    model.graph.node[-1].output[0] = "before"
    model.graph.node.append(onnx.helper.make_node("Abs", ["before"], ["logits"]))
    onnx.save(model, tmp_path / "absolute.onnx")
    common = ["--labels", "failure", "success", "--out", str(tmp_path / "bundle")]
    normal = ["--mean", *map(str, MEAN), "--std", *map(str, STD)]
    assert main(["import-classifier", "--model", str(own), *common, *normal]) == 1
    assert "--mean, --std would never be applied" in capsys.readouterr().err
    assert main(["import-classifier", "--model", str(tmp_path / "absolute.onnx"), *common]) == 1
    assert "give --output probabilities or --output logits" in capsys.readouterr().err
    assert not (tmp_path / "bundle").exists()


def imported(tmp_path: Path, **changes: Any) -> CalibrateConfig:
    """Import the tiny network; return the command that calibrates it."""
    tiny.network(tmp_path / "net.onnx", float_input=True)
    import_classifier.run(config_of(tmp_path, tmp_path / "bundle", "net.onnx", **changes))
    return CalibrateConfig(bundle=tmp_path / "bundle", data=tmp_path / "data", target_fpr=0.02)


def test_too_few_failures_are_refused_before_anything_is_written(tmp_path: Path) -> None:
    config = imported(tmp_path)
    draw(tmp_path / "data", 120)
    before = tiny.snapshot(tmp_path / "bundle")
    with pytest.raises(TooFewNegativesError, match="Expected at least 149"):
        calibrate.run(config)
    assert tiny.snapshot(tmp_path / "bundle") == before


def test_images_of_another_size_are_refused_without_resize(tmp_path: Path) -> None:
    config = imported(tmp_path, resize=False)
    draw(tmp_path / "data", 40)
    with pytest.raises(ImageMismatchError, match="Expected 6 x 8"):
        calibrate.run(config)


def test_squeezed_images_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = imported(tmp_path)
    for path in draw(tmp_path / "data", 120).rglob("*.png"):
        Image.open(path).crop((0, 0, 16, 32)).save(path)
    with pytest.raises(TooFewNegativesError):
        calibrate.run(config)
    assert "images of 32 x 16 are squeezed to 6 x 8" in capsys.readouterr().out


def test_an_openvino_ir_is_refused_with_the_way_out(tmp_path: Path) -> None:
    (tmp_path / "net.xml").write_text("<net/>")
    with pytest.raises(ConfigError, match=r"OpenVINO IR.*export the network as ONNX"):
        import_classifier.run(config_of(tmp_path, tmp_path / "bundle", "net.xml"))
    assert not (tmp_path / "bundle").exists()


def test_a_threshold_that_nobody_chose_is_said_when_the_bundle_is_wrapped(tmp_path: Path) -> None:
    imported(tmp_path)
    env = Shown(np.zeros((2, *SIZE, 3), np.uint8))
    with pytest.warns(UserWarning, match="threshold of 0.5 was chosen for no .* calibrate"):
        LearnedReward(env, tmp_path / "bundle", image_source="obs").close()
    # A threshold of the user's own needs no calibration; a warning would fail the test.
    LearnedReward(env, tmp_path / "bundle", image_source="obs", success_threshold=0.7).close()


# --- the guard ---------------------------------------------------------------------------------


def test_a_bundle_gets_a_guard_and_keeps_everything_else(
    foreign: Path, own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A guard of its own folder knows these images, and not those of a camera that died."""
    folder, before = own, Bundle.load(own)
    guard = guard_of(before)
    assert guard is not None
    assert before.spec.metrics["guard"]["frames"] > 0
    card = (folder / "README.md").read_text()
    assert "clean test frames are out of distribution" in card
    images = load_dataset(foreign / "data").images
    assert (guard.ood_score(images) > 1).mean() < 0.05
    assert (guard.ood_score(np.zeros_like(images)) > 1).all()

    capsys.readouterr()
    assert main(["guard", "--bundle", str(folder), "--data", str(foreign / "data")]) == 0
    assert "clean test frames are out of distribution" in capsys.readouterr().out
    after = Bundle.load(folder)
    assert after.spec.files["guard.npz"] == before.spec.files["guard.npz"]
    assert after.spec.decision == before.spec.decision
    for name in ("model.onnx", "golden.npz"):
        assert after.spec.files[name] == before.spec.files[name]
    assert (folder / "README.md").read_text() == card

    # Other images change the guard, and the card's line on it alone.
    few = draw(tmp_path / "few", 300)
    assert main(["guard", "--bundle", str(folder), "--data", str(few)]) == 0
    said = capsys.readouterr().out.splitlines()[0]
    lines = (folder / "README.md").read_text().splitlines()
    changed = [new for old, new in zip(card.splitlines(), lines, strict=True) if old != new]
    assert changed == [f"- {said}"] and " clean test frames are out of distribution" in said


def test_a_guard_of_other_images_does_not_stay(own: Path, tmp_path: Path) -> None:
    """A new calibration on too few episodes for a guard leaves none, and says why."""
    assert guard_of(Bundle.load(own)) is not None
    few = draw(tmp_path / "few", 110)
    config = CalibrateConfig(bundle=own, data=few, target_fpr=0.3)
    assert calibrate.run(config) in (0, USELESS)
    after = Bundle.load(own)
    assert guard_of(after) is None
    assert "it takes 20 episodes" in after.spec.metrics["guard"]["why"]


def test_a_guard_leaves_int8_alone(tmp_path: Path) -> None:
    """Decisions, band and both networks are those of before."""
    folder = tmp_path / "bundle"
    shutil.copytree(find("panda-hover-classifier"), folder)
    before = Bundle.load(folder)
    guard = guard_of(before)
    assert guard is not None
    other = dataclasses.replace(guard, limit=guard.limit * 2)
    with_guard(before, other.to_bytes(), {"frames": 1}, "it knows one frame")
    after = Bundle.load(folder)
    differing = {
        name for name in after.spec.files if after.spec.files[name] != before.spec.files[name]
    }
    assert differing == {"guard.npz"} and set(after.spec.files) == set(before.spec.files)
    assert after.resolve_precision("openvino") == "int8"
    metrics = {**before.spec.metrics, "guard": {"frames": 1}}
    assert after.spec == dataclasses.replace(
        before.spec, metrics=metrics, files=after.spec.files, versions=after.spec.versions
    )
    np.testing.assert_array_equal(after.golden.logits_int8, before.golden.logits_int8)


def test_a_guard_that_cannot_be_is_refused_and_nothing_changes(
    own: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = draw(tmp_path / "few", 90)
    before = (own / "bundle.json").read_bytes()
    assert main(["guard", "--bundle", str(own), "--data", str(few)]) == 1
    assert re.search(
        r"gives no guard: it takes 20 episodes.*Expected more", capsys.readouterr().err
    )
    assert main(["guard", "--bundle", "panda-hover-encoder", "--data", str(few)]) == 1
    assert "installed bundle, which is only read" in capsys.readouterr().err
    assert (own / "bundle.json").read_bytes() == before
