"""``calibrate --average-shifts``: near the threshold a score is a mean over shifted images."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from toy_environments import HEIGHT, WIDTH, save_column_bundle
from vinoreward_training.quantize.command import compare

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Decision
from vinoreward.rewards.classifier import Classifier, sigmoid
from vinoreward_training.classifier import calibrate
from vinoreward_training.classifier.camera_failure import logits_by_family
from vinoreward_training.cli import main
from vinoreward_training.configs import QuantizeConfig
from vinoreward_training.data.dataset import load_dataset, split_by_episode


def draw(folder: Path, noise: float, seed: int = 1) -> Path:
    """Write images whose columns are redder in a success, each with noise of its own."""
    random = np.random.default_rng(seed)
    for index in range(1200):
        label = ("failure", "success")[index % 2]
        image = random.integers(0, 256, (HEIGHT, WIDTH, 3), dtype=np.uint8)
        columns = random.normal(150 if index % 2 else 110, noise, WIDTH)
        image[..., 0] = np.clip(columns, 0, 255).astype(np.uint8)
        (folder / label).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / label / f"{index:04d}.png")
    return folder


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return draw(tmp_path_factory.mktemp("drawn") / "data", noise=20.0)


@pytest.mark.slow
def test_the_means_better_the_rates_and_the_bundle_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], data: Path
) -> None:
    """And a further calibration goes on as it was only if asked."""
    path, recalls = save_column_bundle(tmp_path / "bundle").path, {}
    words = ["calibrate", "--bundle", str(path), "--data", str(data), "--target-fpr", "0.05"]
    for name, options in {"means": ["--average-shifts"], "own": []}.items():
        assert main([*words, *options]) == 0
        said = capsys.readouterr().out
        bundle = Bundle.load(path)
        band = bundle.spec.decision.translation_band
        card = (path / "README.md").read_text()
        note = "note: the bundle no longer scores translation averages"
        assert (note in said) is (name == "own")
        if name == "own":
            assert band is None and said.count("translation average") == 1
            assert "translation average: none" in card
        else:
            assert band is not None and band > 0 and "note: the bundle" not in said
            assert f"within {band:.3g} log-odds of the threshold" in card
        recalls[name] = as_it_reports(bundle, data, said)
    assert recalls["means"] > recalls["own"] + 0.1


def as_it_reports(bundle: Bundle, data: Path, said: str) -> float:
    """Check what was reported with what the classifier does; return its recall."""
    dataset, metrics, decision = load_dataset(data), bundle.spec.metrics, bundle.spec.decision
    train, validation, test = split_by_episode(dataset)
    choosing = np.sort(np.concatenate([train, validation]))  # the network has seen none of them
    plain = dataclasses.replace(decision, translation_band=None)
    own = dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, decision=plain))
    with Classifier(bundle, guarded=False) as classifier, Classifier(own, guarded=False) as before:

        def claims(images: np.ndarray) -> np.ndarray:
            return classifier.compute_reward(images)

        truth = dataset.labels[test] == 1
        claimed = claims(dataset.images[test]) > 0
        assert (claimed & truth).sum() == metrics["test"]["true_positives"]
        assert (claimed & ~truth).sum() == metrics["test"]["false_positives"]
        dead = logits_by_family(claims, dataset, test, 2, 0)
        counts = {family: int(each.sum()) for family, each in dead.items()}
        assert counts == metrics["dead_camera"]["by_family"]
        chosen_for = decision.chosen_for
        first = claims(dataset.images[choosing]) > 0
        right = dataset.labels[choosing] == 1
        assert (first & ~right).sum() == chosen_for.get("at_raised", chosen_for)["false_positives"]
        if decision.translation_band is not None:
            measured = dataset.images[np.concatenate([choosing, test])]
            assert (claims(measured) != before.compute_reward(measured)).any()
            band = f"{decision.translation_band:.3g}"
            assert f"within {band} log-odds of the threshold" in said
    return float(metrics["test"]["recall"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "seed", "rate"),
    [(22.0, 0, "0.02"), (6.0, 1, "0.05")],
)
def test_what_is_reported_is_what_the_classifier_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], noise: float, seed: int, rate: str
) -> None:
    """Few claims beside the band, dead cameras beyond it, a test frame that is farthest away."""
    path = save_column_bundle(tmp_path / "bundle").path
    data = draw(tmp_path / "data", noise=noise, seed=seed)
    words = ["--data", str(data), "--target-fpr", rate, "--average-shifts"]
    assert main(["calibrate", "--bundle", str(path), *words]) == 0
    as_it_reports(Bundle.load(path), data, capsys.readouterr().out)


@dataclasses.dataclass(frozen=True)
class Found:
    """What stands for an evaluation: its threshold is above all dead-camera frames."""

    decision: Decision

    @staticmethod
    def of(scores: calibrate._Scores) -> Found:
        highest = max(0.0, *(float(each[:, 1].max()) for each in scores.dead[0].values()))
        return Found(Decision(threshold=float(sigmoid(np.array(highest)))))


@pytest.mark.parametrize(("dead", "widest"), [(-4.0, 0.5), (5.0, 5.0)])
def test_the_band_holds_a_dead_camera_only_where_it_would_move_the_threshold(
    dead: float, widest: float
) -> None:
    def logits(*odds: float) -> np.ndarray:
        return np.stack([np.zeros(len(odds)), np.array(odds)], axis=1)

    def scores(frames: np.ndarray, dead: float) -> calibrate._Scores:
        return calibrate._Scores(frames, ({"noise": logits(dead)}, {"noise": logits(-3.0)}))

    own, means = logits(-7.0, -0.5, 0.2, 7.0), logits(-7.0, 0.1, 0.3, 7.0)
    found = calibrate._with_shifts(
        Found.of,  # type: ignore[arg-type]
        scores(own, dead),
        scores(means, -2.0),
        1,
        np.arange(4),
    )
    assert found is not None and found.decision.threshold == 0.5
    assert (
        found.decision.translation_band == pytest.approx(widest)
        and found.decision.translation_band > widest
    )


@pytest.mark.slow
def test_int8_is_compared_on_images_that_are_cut_already(tmp_path: Path) -> None:
    """The network itself stands for INT8: no decision may differ."""
    made = save_column_bundle(
        tmp_path / "bundle", decision=Decision(threshold=0.5, translation_band=2.0)
    )
    image = dataclasses.replace(made.spec.image, crop=(1, 2, HEIGHT, WIDTH))
    bundle = dataclasses.replace(made, spec=dataclasses.replace(made.spec, image=image))
    whole = np.random.default_rng(0).integers(0, 256, (400, HEIGHT + 3, WIDTH + 5, 3), np.uint8)
    config = QuantizeConfig(max_second_looks=1.0, boundary=100)
    images = bundle.prepare(whole)
    found = compare(config, bundle, bundle.network("fp32"), images, np.arange(400))
    assert found.flips.count == 0 and found.band is not None and found.band >= 2.0


@pytest.mark.slow
def test_means_that_change_nothing_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, data: Path
) -> None:
    monkeypatch.setattr(calibrate, "translations", lambda images: (images,) * 3)
    path = save_column_bundle(tmp_path / "bundle").path
    words = ["--data", str(data), "--target-fpr", "0.05", "--average-shifts"]
    assert main(["calibrate", "--bundle", str(path), *words]) == 0
    assert "change no decision" in capsys.readouterr().out
    assert Bundle.load(path).spec.decision.translation_band is None
