"""Training through an encoder: the policy sees the latent, and only ever that encoder's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from toy_environments import HEIGHT, LATENT, save_toy_bundle, save_toy_encoder

from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import (
    ConfigError,
    ImageMismatchError,
    ModelNotFoundError,
)
from vinoreward_training.configs import PlayConfig, TrainConfig
from vinoreward_training.play.command import play
from vinoreward_training.policy.checkpoint import read_description
from vinoreward_training.policy.train import SETTINGS, train

PIXELS = "PandaHoverPixels-v0"
SMALL: dict[str, Any] = {
    "learning_starts": 20,
    "batch_size": 8,
    "policy_kwargs": {"net_arch": [8]},
}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Takes the hover scene's images, made small."""
    folder = tmp_path_factory.mktemp("encoder") / "toy"
    return save_toy_encoder(folder, resize="pil_bilinear")


def config(out: Path, encoder: Bundle | None, **changes: Any) -> TrainConfig:
    """A run of a few seconds."""
    settings: dict[str, Any] = {
        "env": PIXELS,
        "backend": "oracle",
        "timesteps": 40,
        "eval_episodes": 1,
        "eval_every": 100,
        "final_episodes": 2,
        "algorithm_kwargs": SMALL,
        "encoder": None if encoder is None else str(encoder.path),
    }
    return SETTINGS.of(out=out, **{**settings, **changes})


def test_a_policy_learns_from_the_latent_and_plays_and_goes_on_through_its_encoder(
    tmp_path: Path, encoder: Bundle
) -> None:
    out = tmp_path / "run"
    train(config(out, encoder))
    recorded = yaml.safe_load((out / "config.yaml").read_text(encoding="utf-8"))
    for found in (recorded, vars(read_description(out))):
        assert found["encoder"] == str(encoder.path)
    weights = torch.load(out / "policy.pt", weights_only=True)
    assert weights["actor.latent_pi.0.weight"].shape == (8, LATENT)
    result = play(PlayConfig(run=out, episodes=2, film=1))
    assert result.evaluation.true is not None
    assert result.film is not None and result.film.stat().st_size > 0
    assert train(SETTINGS.of(out=out, resume=True, timesteps=60)).steps == 60


def test_images_without_an_encoder_take_cnn_policy(tmp_path: Path) -> None:
    small = {"learning_starts": 100, "buffer_size": 50}
    arguments = config(tmp_path / "run", None, timesteps=12, algorithm_kwargs=small)
    train(arguments)
    weights = torch.load(tmp_path / "run" / "policy.pt", weights_only=True)
    assert any("features_extractor.cnn" in name for name in weights)


def test_errors_name_what_is_wrong(tmp_path: Path, encoder: Bundle) -> None:
    with pytest.raises(ModelNotFoundError, match="no-such-encoder"):
        train(dataclasses.replace(config(tmp_path / "a", None), encoder="no-such-encoder"))
    assert not (tmp_path / "a").exists(), "nothing is left of a run that cannot start"
    strict = save_toy_encoder(tmp_path / "strict")
    with pytest.raises(ImageMismatchError, match=f"{HEIGHT}"):
        train(config(tmp_path / "d", strict))
    classifier = save_toy_bundle(tmp_path / "classifier")
    with pytest.raises(ConfigError, match="classifier"):
        train(config(tmp_path / "e", classifier))
