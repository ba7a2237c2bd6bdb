"""Encoders: every backend and both network shapes."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from encoder_images import BACKENDS, HEIGHT, MEAN, SIZE, STD, WIDTH, make_images, planes
from torch import nn
from toy_environments import save_toy_bundle, save_toy_encoder, toy_latents

from vinoreward import Classifier, Encoder
from vinoreward.backends.convert import export_onnx
from vinoreward.backends.torch_networks import ENCODERS, WithPreprocess, build_encoder
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec, Encoding, Quantization
from vinoreward.errors import (
    BundleParityError,
    ConfigError,
)
from vinoreward.images import ImageSpec
from vinoreward_training.runs.bundles import add_int8


@pytest.fixture(scope="module", params=ENCODERS)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Bundle, nn.Module]:
    """A saved bundle with a random network of ours, and the network."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    network = build_encoder(request.param, HEIGHT, WIDTH, 2 * SIZE).eval()
    export_onnx(WithPreprocess(network, MEAN, STD), folder / "m.onnx", HEIGHT, WIDTH)
    safetensors.torch.save_file(network.state_dict(), folder / "m.safetensors")
    golden = make_images(4, seed=9)
    with torch.no_grad():
        outputs = network(planes(golden)).numpy()
    spec = BundleSpec(
        name=request.param,
        kind="encoder",
        labels=(),
        latent_size=SIZE,
        encoding=Encoding(low=(-9,) * SIZE, high=(9,) * SIZE, std=(0.01,) * SIZE),
        image=ImageSpec(height=HEIGHT, width=WIDTH, mean=MEAN, std=STD),
        architecture=request.param,
    )
    files: dict[str, Path | bytes] = {
        "model.onnx": folder / "m.onnx",
        "model.safetensors": folder / "m.safetensors",
        "decoder.safetensors": folder / "m.safetensors",
    }
    saved = save_bundle(folder / "bundle", spec, files, golden, outputs)
    return Bundle.load(saved), network


# --- ours, on every backend


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_same(made: tuple[Bundle, nn.Module], backend: str) -> None:
    bundle, network = made
    images = make_images(7)
    with torch.no_grad():
        wanted = network(planes(images)).numpy()
    with Encoder(bundle, backend=backend) as encoder:
        assert (encoder.latent_size, encoder.precision, encoder.backend_name) == (
            SIZE,
            "fp32",
            backend,
        )
        found = encoder.encode(images)
        assert found.dtype == np.float32 and found.shape == (7, SIZE)
        np.testing.assert_allclose(found, wanted[:, :SIZE].clip(-9, 9), atol=1e-3)
        for count in (1, 3):
            np.testing.assert_allclose(encoder.encode(images[:count]), found[:count], atol=1e-4)
        assert encoder.encode(images[:0]).shape == (0, SIZE)
        twin = pickle.loads(pickle.dumps(encoder))
    np.testing.assert_array_equal(twin.encode(images), found)
    twin.close()
    with pytest.raises(ConfigError, match="closed"):
        twin.encode(images)


def test_golden_frames_notice_another_network(
    made: tuple[Bundle, nn.Module], tmp_path: Path
) -> None:
    bundle, _ = made
    golden = bundle.golden
    with pytest.raises(BundleParityError, match="red and blue"):
        swapped = np.ascontiguousarray(golden.images[..., ::-1])
        files = {name: bundle.path / name for name in bundle.spec.files if name != "golden.npz"}
        other = save_bundle(tmp_path / "swapped", bundle.spec, files, swapped, golden.logits)
        Encoder(other).encode(make_images(1))
    off = golden.logits.copy()
    off[0, 0] += 0.005  # half of the posterior's standard deviation
    other = save_bundle(tmp_path / "off", bundle.spec, files, golden.images, off)
    with pytest.raises(BundleParityError, match="standard deviation"):
        Encoder(other).encode(make_images(1))


# --- the toy encoder: bounds, plain autoencoders, kinds


def test_a_plain_autoencoder_gives_its_vector(tmp_path: Path) -> None:
    bundle = save_toy_encoder(tmp_path / "plain", posterior=False)
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 8, 3)).astype(np.uint8)
    with Encoder(bundle) as encoder:
        np.testing.assert_allclose(encoder.encode(images), toy_latents(images, False), atol=1e-4)


def test_each_kind_of_bundle_is_refused_by_the_other(tmp_path: Path) -> None:
    encoder, classifier = save_toy_encoder(tmp_path / "e"), save_toy_bundle(tmp_path / "c")
    with pytest.raises(ConfigError, match=r"is a classifier\. Expected an encoder.*train-vae"):
        Encoder(classifier)
    with pytest.raises(ConfigError, match=r"is an encoder\. Expected a classifier.*finetune"):
        Classifier(encoder)


def test_int8_is_taken_where_its_gate_passed(tmp_path: Path) -> None:
    bundle = save_toy_encoder(tmp_path / "toy")
    golden, model = bundle.golden, bundle.path / "model.onnx"
    for passed, precision in ((True, "int8"), (False, "fp32")):
        gate = Quantization(passed=passed, flips=1, frames=100, method="none", max_flip_rate=0.05)
        both = add_int8(Bundle.load(bundle.path), model, gate, golden.logits + np.float32(1e-3))
        with Encoder(both) as encoder:
            assert encoder.precision == precision
            encoder.encode(golden.images)
    far = add_int8(
        Bundle.load(both), model, dataclasses.replace(gate, passed=True), golden.logits + 3
    )
    with pytest.raises(BundleParityError, match="range"):
        Encoder(far).encode(golden.images)
