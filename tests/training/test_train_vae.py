"""Encoders: frames, networks and loss, their training, the command and its bundle."""

from __future__ import annotations

import dataclasses
import re
import shlex
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Encoding
from vinoreward.errors import (
    ConfigError,
    DatasetError,
    QuantizationRefusedError,
)
from vinoreward_training.cli import main
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.data.dataset import Frames, load_frames, split_frames
from vinoreward_training.encoder import train_vae
from vinoreward_training.encoder.networks import build_vae
from vinoreward_training.encoder.probe import probe_places
from vinoreward_training.encoder.training import (
    FOREGROUND,
    PixelWeights,
    VaeFit,
    decode,
    divergence,
    encode,
    squared_error,
)
from vinoreward_training.quantize.gate import gate_latents

SIZE = (32, 40)
BLUE = (20, 20, 230)


def make_images(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a small blue square on a plain table, and its place in metres."""
    random = np.random.default_rng(seed)
    images = np.full((count, *SIZE, 3), (200, 180, 150), dtype=np.uint8)
    corners = np.stack([random.integers(0, 28, count), random.integers(0, 36, count)], axis=1)
    for image, (top, left) in zip(images, corners, strict=True):
        image[top : top + 4, left : left + 4] = BLUE
    return images, corners[:, ::-1] * 0.01


def frames_of(count: int) -> Frames:
    images, places = make_images(count)
    return Frames(
        images=images,
        episodes=np.arange(count) // 2,
        places={"object": places.astype(np.float64)},
        scene={},
        sha256="0" * 64,
        source="toy",
    )


def write_capture(folder: Path, count: int = 160) -> Path:
    images, places = make_images(count)
    (folder / "frames").mkdir(parents=True)
    lines = ["file,label,category,episode,object_x,object_y,distance"]
    for index, (image, place) in enumerate(zip(images, places, strict=True)):
        Image.fromarray(image).save(folder / "frames" / f"{index:04}.png")
        where = ",,inf" if index % 10 == 9 else f"{place[0]},{place[1]},0.1"
        lines.append(f"frames/{index:04}.png,success,success,{index // 2},{where}")
    (folder / "metadata.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_folder(folder: Path, count: int = 80) -> Path:
    (folder / "deep" / "er").mkdir(parents=True)
    for index, image in enumerate(make_images(count)[0]):
        Image.fromarray(image).save(folder / "deep" / "er" / f"{index:04}.png")
    return folder


# --- frames ---


def test_a_capture_gives_places_and_episodes(tmp_path: Path) -> None:
    frames = load_frames(write_capture(tmp_path / "capture"))
    expected = make_images(160)[1].astype(np.float64)
    expected[9::10] = np.nan
    np.testing.assert_allclose(frames.places["object"], expected)
    assert len(np.unique(frames.episodes)) == 80
    assert not frames.resized


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="Expected at least 64"):
        load_frames(write_folder(tmp_path / "few", 20))
    mixed = write_folder(tmp_path / "mixed")
    Image.new("RGB", (50, 50)).save(mixed / "zz.png")
    with pytest.raises(DatasetError, match="50x50"):
        load_frames(mixed)
    lost = write_capture(tmp_path / "lost")
    (lost / "frames" / "0003.png").unlink()
    with pytest.raises(DatasetError, match="lists 1 images that are not there"):
        load_frames(lost)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(6, 200))
def test_no_episode_is_in_two_parts(seed: int, count: int) -> None:
    frames = frames_of(count)
    parts = split_frames(frames, seed=seed)
    assert sorted(np.concatenate(parts)) == list(range(count))
    assert all(len(part) for part in parts)
    episodes = [set(frames.episodes[part]) for part in parts]
    assert not episodes[0] & episodes[1] and not episodes[1] & episodes[2]
    assert not episodes[0] & episodes[2]


# Networks and loss


@settings(max_examples=12, deadline=None)
@given(
    height=st.integers(32, 70),
    width=st.integers(32, 70),
    latent=st.integers(1, 10).map(lambda half: 2 * half),
)
def test_every_size_goes_in_and_comes_out(height: int, width: int, latent: int) -> None:
    vae = build_vae(height, width, latent)
    made, mean, log_variance = vae(torch.zeros(2, 3, height, width), torch.zeros(2, latent))
    assert made.shape == (2, 3, height, width)
    assert mean.shape == log_variance.shape == (2, latent)


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), spread=st.floats(0.1, 3))
def test_the_divergence_is_that_of_the_normal_distributions(seed: int, spread: float) -> None:
    random = torch.Generator().manual_seed(seed)
    mean = spread * torch.randn((6, 4), generator=random, dtype=torch.float64)
    log_variance = torch.randn((6, 4), generator=random, dtype=torch.float64)
    found = divergence(mean, log_variance)
    expected = torch.distributions.kl_divergence(
        torch.distributions.Normal(mean, (0.5 * log_variance).exp()),
        torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean)),
    ).mean(0)
    torch.testing.assert_close(found, expected)
    assert (found >= 0).all()


def test_a_rare_colour_and_what_moves_count_more() -> None:
    def weights_of(images: np.ndarray) -> np.ndarray:
        targets = torch.from_numpy(images[:1]).permute(0, 3, 1, 2).float() / 255
        return PixelWeights.measure(images).of(images[:1], targets)[0, 0].numpy()

    images, _ = make_images(200)
    found = weights_of(images)
    blue = (images[0] == BLUE).all(-1)
    assert np.unique(found[~blue]) == pytest.approx([1.0])
    # 16 of 1280 pixels are blue, more than a hundredth: moving, but of no rare colour.
    assert np.unique(found[blue]) == pytest.approx([1.0 + FOREGROUND])
    # Of a single pixel among 25600 the colour is rarer than a hundredth, by a factor of 256.
    images = np.zeros((20, *SIZE, 3), dtype=np.uint8)
    images[0, 3, 5] = BLUE
    found = weights_of(images)
    assert found[3, 5] == pytest.approx(256 * (1.0 + FOREGROUND))
    assert np.unique(np.delete(found, 3 * SIZE[1] + 5)) == pytest.approx([1.0])


# --- training ----------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of several threads are in another order: not the very same weights in all processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fit_of(
    folder: Path, frames: Frames | None = None, *, latent: int = 4, **changes: object
) -> VaeFit:
    folder.mkdir(exist_ok=True)
    frames = frames or frames_of(120)
    parts = split_frames(frames, seed=0)
    torch.manual_seed(0)
    vae = build_vae(*SIZE, latent, places=2 * len(frames.places))
    config = dataclasses.replace(TrainVaeConfig(steps=6), **changes)  # type: ignore[arg-type]
    return VaeFit(vae, frames, parts[0], parts[1], config, folder)


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_error_of_places_is_in_square_millimetres(seed: int) -> None:
    random = np.random.default_rng(seed)
    places, read = random.normal(size=(2, 6, 4))
    places[random.random(6) < 0.4, 2:] = np.nan
    off = np.where(np.isfinite(places), 1000 * (read - places), 0.0)
    tensor = torch.from_numpy(read).float().requires_grad_()
    loss = squared_error(tensor, places)
    assert float(loss.detach()) == pytest.approx(np.mean([row @ row for row in off]), rel=1e-4)
    loss.backward()
    assert tensor.grad is not None and torch.isfinite(tensor.grad).all()


def test_a_stopped_run_goes_on_to_the_very_same_weights(tmp_path: Path) -> None:
    whole = fit_of(tmp_path / "whole")
    whole.run("whole")
    stopped = fit_of(tmp_path / "stopped")
    stopped.run("stopped", until=4)
    assert stopped.step == 4
    resumed = fit_of(tmp_path / "stopped", resume=True)
    assert resumed.step == 4
    resumed.run("resumed")
    assert resumed.history == whole.history
    for name, value in whole.vae.state_dict().items():
        torch.testing.assert_close(value, resumed.vae.state_dict()[name], rtol=0, atol=0)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    size=st.integers(1, 40),
    scale=st.floats(1e-3, 1e3),
    offset=st.floats(-10, 10),
)
def test_errors_of_the_probe_from_a_linear_map_are_millimetres(
    seed: int, size: int, scale: float, offset: float
) -> None:
    """Frames without the thing are left out; too few are refused."""
    random = np.random.default_rng(seed)
    latents = random.normal(size=(3 * size + 60, size)) * scale
    places = latents @ (random.normal(size=(size, 2)) / scale) + offset
    train, test = np.arange(len(latents) - 20), np.arange(len(latents) - 20, len(latents))
    places[::4] = np.nan
    places[test] += np.array([0.003, 0.004])
    found = probe_places(latents, {"object": places}, train, test)["object"]
    assert found.frames == np.isfinite(places[test, 0]).sum()
    assert (found.mean_mm, found.p95_mm) == pytest.approx((5.0, 5.0), abs=1e-2)
    assert found.r2 > 0.99 or np.nanvar(places[test]) < 1e-2
    with pytest.raises(DatasetError, match="capture more"):
        probe_places(latents, {"object": places}, train, test[:0])


@pytest.mark.slow
def test_a_small_thing_is_found_and_can_be_read_linearly(tmp_path: Path) -> None:
    """Without its places; absent things do not count."""
    known = frames_of(300)
    known.places["object"][::7] = np.nan
    parts, frames = split_frames(known, seed=0), dataclasses.replace(known, places={})
    fit = fit_of(tmp_path, frames, latent=8, steps=60)
    fit.run("images")
    mean, _ = encode(fit.vae.encoder, frames.images)
    found = probe_places(mean, known.places, parts[0], parts[2])["object"]
    # A hundredth of a metre is a pixel here, the table 0.35 m wide.
    assert found.r2 > 0.9
    decoded = decode(fit.vae.decoder, mean[:8])
    assert decoded.dtype == np.uint8 and decoded.shape == (8, *SIZE, 3)


# --- the command -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vae")
    config = TrainVaeConfig(
        data=write_capture(folder / "capture", 600),
        out=folder / "run",
        latent=6,
        steps=15,
        int8="on",
    )
    assert train_vae.run(config) == 0
    return folder


def test_the_command_leaves_a_bundle_that_says_what_it_can_on_every_backend(trained: Path) -> None:
    bundle = Bundle.load(trained / "run" / "bundle")
    assert (bundle.spec.kind, bundle.spec.latent_size) == ("encoder", 6)
    probe = bundle.spec.metrics["probe"]["object"]
    assert probe["frames"] > 30 and 0 < probe["mean_mm"] < 1000
    assert bundle.spec.encoding is not None and bundle.spec.encoding.std is not None
    card = (bundle.path / "README.md").read_text()
    assert "mean error, mm" in card and "object" in card
    assert (bundle.path / "images" / "reconstructions.png").is_file()
    assert "data:image/png" in (trained / "run" / "report.html").read_text()
    for backend in ("openvino", "onnxruntime", "torch"):
        with bundle.backend(backend, precision="fp32") as network:
            found = network.infer(bundle.golden.images)
        np.testing.assert_allclose(found, bundle.golden.logits, atol=2e-3)


def test_the_gate_refuses_latents_that_move() -> None:
    encoding = Encoding(low=(-3.0, -3.0), high=(3.0, 3.0), std=(0.1, 0.1))
    before = np.random.default_rng(0).uniform(-1, 1, (1000, 2)).astype(np.float32)
    after = before + np.float32(0.01)
    after[:40, 1] += 1.0
    found = gate_latents(before, {"a": before, "b": after}, encoding)
    assert (found.count, found.frames, found.by_backend) == (40, 1000, {"a": 0, "b": 40})
    after[40:80, 0] -= 1.0
    with pytest.raises(QuantizationRefusedError, match="on b the latent of 80 of 1000"):
        gate_latents(before, {"a": before, "b": after}, encoding)


def test_the_command_that_ctrl_c_prints_goes_on_alone_and_a_card_without_places_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    steps, step = [], VaeFit._step

    def stopped(self: VaeFit) -> Any:
        steps.append(self.step)
        if len(steps) == 2:
            signal.raise_signal(signal.SIGINT)
        return step(self)

    monkeypatch.setattr(VaeFit, "_step", stopped)
    words = ["--latent", "4", "--steps", "3"]
    data = write_folder(tmp_path / "any")
    assert main(["train-vae", "--data", str(data), "--out", str(out), *words]) == 130
    (line,) = re.findall(r"^Continue with: vinoreward (.*)$", capsys.readouterr().out, re.M)
    assert shlex.split(line) == ["train-vae", "--resume", "--out", str(out)]
    assert main(shlex.split(line)) == 0
    assert steps == [0, 1, 2]  # it went on where it was
    bundle = Bundle.load(out / "bundle")
    assert (bundle.spec.name, bundle.spec.latent_size) == ("any-encoder", 4)
    assert bundle.spec.metrics["probe"] == {}
    assert "was not recorded" in (bundle.path / "README.md").read_text()


def test_int8_is_gated_and_added_again(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = trained / "run" / "bundle"

    assert Bundle.load(path).resolve_precision("openvino") == "int8"
    words = ["calibrate", "--bundle", str(path), "--data", str(trained / "capture")]
    assert main([*words, "--int8", "on"]) == 0
    found = Bundle.load(path).spec.quantization
    assert found is not None and found.passed
    assert set(found.detail["by_backend"]) == {"openvino", "onnxruntime"}
    assert main([*words, "--target-fpr", "0.1"]) == 1
    assert "the bundle of an encoder would ignore this one" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"latent": 0}, "latent"),
        ({"image_size": (16, 64)}, "image_size"),
    ],
)
def test_options_that_cannot_work_are_refused(
    tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    data = write_folder(tmp_path / "images")
    with pytest.raises(ConfigError) as caught:
        train_vae.run(train_vae.SETTINGS.of(**{"data": data, "out": tmp_path / "run", **changes}))
    assert caught.value.field == field and not (tmp_path / "run").exists()
