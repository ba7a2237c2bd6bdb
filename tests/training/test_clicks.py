"""A classifier of few labels: a frozen network's features, kept on disk, and its last layer."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fake_cameras import fake_camera
from tray import NETWORK, tiny_weights, tray_images, write_tray

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import ConfigError, DatasetError, ModelNotFoundError, TooFewNegativesError
from vinoreward.files import cache_folder
from vinoreward.rewards.classifier import Classifier
from vinoreward_training.classifier import finetune
from vinoreward_training.classifier.embeddings import Embeddings
from vinoreward_training.classifier.last_layer import fit_last_layer
from vinoreward_training.classifier.networks import module_for
from vinoreward_training.cli import main
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import load_dataset
from vinoreward_training.watch.clicks import Clicks
from vinoreward_training.watch.learner import Learner
from vinoreward_training.watch.session import Status, watch

pytest.importorskip("timm")


@pytest.fixture(autouse=True)
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Keep features out of the user's folder, and leave cores to others."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config_of(folder: Path, seed: int = 0, **more: object) -> FinetuneConfig:
    options = {"data": folder / "data", "out": folder / "run", "freeze": True, "int8": "off"}
    weights = tiny_weights(folder, seed)
    return FinetuneConfig(network=NETWORK, weights=weights, **(options | more))  # type: ignore[arg-type]


@contextlib.contextmanager
def opened(config: FinetuneConfig) -> Iterator[Embeddings]:
    module = module_for(config, load_dataset(config.data))
    with contextlib.closing(Embeddings(module, NETWORK, (48, 64))) as embeddings:
        yield embeddings


def test_features_are_computed_once(tmp_path: Path) -> None:
    images, _ = write_tray(tmp_path / "data", 6)
    config = config_of(tmp_path)
    with opened(config) as first:
        features = first(images[:4])
        np.testing.assert_allclose(features, first.compute(images[:4]), rtol=1e-4, atol=1e-5)
    with opened(config) as second:
        np.testing.assert_array_equal(second(images[[2, 4, 2]])[[0, 2]], features[[2, 2]])
        assert (second.computed, second.reused) == (1, 2)
        assert features.dtype == np.float32 and features.shape[0] == 4


def test_features_of_another_network_are_not_read(tmp_path: Path) -> None:
    images, _ = write_tray(tmp_path / "data", 4)
    with opened(config_of(tmp_path)) as first:
        features = first(images)
        first.set_layer(np.ones(features.shape[1]), 1.0)
    with opened(config_of(tmp_path, seed=1)) as other:
        assert np.abs(other(images) - features).max() > 1e-3 and other.computed == 4
    assert len(list(cache_folder("embeddings").iterdir())) == 2


@pytest.mark.parametrize("harm", ["a flipped byte", "cut", "no database"])
def test_a_harmed_file_is_made_anew(
    harm: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images, _ = write_tray(tmp_path / "data", 4)
    config = config_of(tmp_path)
    with opened(config) as first:
        features = first(images)
    (file,) = cache_folder("embeddings").iterdir()
    content = bytearray(file.read_bytes())
    if harm == "a flipped byte":
        content[content.index(features[1].tobytes()) + 9] ^= 1
    elif harm == "cut":
        del content[len(content) // 2 :]
    else:
        content[:] = b"no database" * 100
    file.write_bytes(content)
    with opened(config) as second:
        np.testing.assert_allclose(second(images), features, rtol=1e-4, atol=1e-5)
    assert re.search(r"is harmed \(.+\): its features are computed again", capsys.readouterr().out)
    with opened(config) as third:
        third(images)
        assert third.reused == 4


def test_without_a_place_features_are_kept_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images, _ = write_tray(tmp_path / "data", 4)
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with opened(config_of(tmp_path)) as embeddings:
        embeddings(images)
        embeddings(images)
        assert (embeddings.computed, embeddings.reused) == (4, 4)
    assert "kept in memory only" in capsys.readouterr().out


@pytest.mark.full
def test_forty_labels_tell_most_of_a_toy_scene(tmp_path: Path) -> None:
    labels, fresh = np.arange(40) % 2, np.arange(200) % 2
    learned = []
    for seed in range(5):
        folder = tmp_path / f"clicks-{seed}"
        clicks = Clicks(folder, "here")
        for episode, image in enumerate(tray_images(labels, seed)):
            clicks.add(image, bool(labels[episode]), episode, 1)
        clicks.close()
        with Learner(config_of(tmp_path, data=folder)) as learner:
            model = learner.fit()
            assert model is not None
            prediction = model.classifier.predict(tray_images(fresh, 100 + seed))
            claims = prediction.probability >= model.classifier.threshold
            learned.append((claims[fresh == 1].mean(), claims[fresh == 0].mean()))
            assert re.match(r"false positives <= \d+% of 20 failing episodes", learner.rate)
    recall, false_positives = np.array(learned).T
    assert recall.min() >= 0.9 and false_positives.max() <= 0.05, learned


@pytest.mark.full
def test_finetune_makes_a_bundle_of_forty_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tray(tmp_path / "data", 40)
    config = config_of(tmp_path)
    assert finetune.run(config) == 0
    said = capsys.readouterr().out
    assert "the last layer is fitted on 40 images; 140 features were computed, 0 known" in said
    bundle = Bundle.load(tmp_path / "run" / "bundle")
    chosen = bundle.spec.decision.chosen_for
    assert chosen["negatives"] == chosen["negative_episodes"] == 20
    assert chosen["target_fpr"] == 0.15
    fresh = np.arange(200) % 2
    with Classifier(bundle) as classifier:
        claims = classifier.compute_reward(tray_images(fresh, 7)) == 1
    assert claims[fresh == 1].mean() >= 0.9 and claims[fresh == 0].mean() <= 0.05
    # Weights that learned all images cannot be tested on them.
    again = FinetuneConfig(
        data=config.data, out=tmp_path / "again", network=NETWORK, freeze=True,
        weights=bundle.path / "model.safetensors",
    )  # fmt: skip
    with pytest.raises(DatasetError, match="was trained on 100% of the images"):
        finetune.run(again)


def test_no_image_is_scored_by_a_layer_that_saw_its_episode(tmp_path: Path) -> None:
    """Labels that say nothing are learned by heart, but not for episodes that were held out."""
    write_tray(tmp_path / "data", 4)
    random = np.random.default_rng(0)
    colours = random.integers(0, 256, (20, 1, 1, 3), dtype=np.uint8)
    images = np.repeat(np.tile(colours, (1, 48, 64, 1)), 4, axis=0)
    labels = np.repeat(random.permutation(20) % 2, 4)
    with opened(config_of(tmp_path)) as embeddings:
        layer = fit_last_layer(embeddings, images, labels, np.repeat(np.arange(20), 4))
    assert layer.log_odds is not None
    assert ((layer.log_odds > 0) == labels).mean() < 0.75


def test_too_few_labels_and_options_that_mean_nothing_are_refused(tmp_path: Path) -> None:
    write_tray(tmp_path / "data", 12)
    with pytest.raises(TooFewNegativesError, match="6 episodes with failures"):
        finetune.run(config_of(tmp_path))
    with pytest.raises(ConfigError, match="epochs"):
        finetune.run(config_of(tmp_path, out=tmp_path / "other", epochs=3))


def test_watch_learns_from_each_label(tmp_path: Path) -> None:
    labels = np.arange(28) % 2
    images, shown, done, said = tray_images(labels, 3), list[Status](), [0], list[str]()
    clicks = Clicks(tmp_path / "data", "here")

    def keys() -> str:
        """Label each image that is shown, in an episode of its own."""
        if done[0] == len(shown):
            return ""
        done[0] = len(shown)
        return "sn" if label_of(shown[-1]) else "fn"

    def label_of(status: Status) -> int:
        return int(labels[(images == status.image).all((1, 2, 3)).argmax()])

    with Learner(config_of(tmp_path)) as learner:
        status = watch(
            fake_camera(images, hz=14, live=False),
            clicks=clicks,
            learner=learner,
            keys=keys,
            show=shown.append,
            say=said.append,
        )
    clicks.close()
    assert shown[0].probability is None and "at least one success" in shown[0].false_positives
    assert sum(status.labels) == len(shown) >= 24
    assert np.mean([one.claimed == label_of(one) for one in shown[14:]]) >= 0.85
    assert "false positives unknown: 5 failing" in "\n".join(said)
    assert re.match(r"false positives <= \d\d% of 1[234] failing episodes", status.false_positives)


def test_watch_refuses_what_it_cannot_learn_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="initial weights"):
        Learner(FinetuneConfig(data=tmp_path / "data"))
    with pytest.raises(ModelNotFoundError, match="no weights at"):
        Learner(FinetuneConfig(data=tmp_path / "data", weights=tmp_path / "none.pt"))
    assert main(["watch", "--camera", "0", "--learn", "--bundle", "mine"]) == 1
    assert "--bundle 'mine'" in capsys.readouterr().err
    assert main(["watch", "--camera", "0", "--pretrained"]) == 1
    assert "watch without --learn" in capsys.readouterr().err
