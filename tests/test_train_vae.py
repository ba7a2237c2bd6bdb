"""From pictures without labels to an encoder: frames, loss, loop, bundle, gate."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from full_disk import nearly_full_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vinoreward.bundles.bundle import Bundle
from vinoreward.encoders.vae import ARCHITECTURES, build_encoder, build_vae
from vinoreward.errors import (
    ConfigError,
    DatasetError,
    ModelCorruptError,
    QuantizationRefusedError,
    RunFolderError,
)
from vinoreward_training import train_vae
from vinoreward_training.classifier_training import CHECKPOINT
from vinoreward_training.frames import Frames, load_frames, split_frames
from vinoreward_training.quantize_encoder import Moved, judge, run_encoder
from vinoreward_training.train_vae import TrainVaeConfig
from vinoreward_training.vae_apply import decode, encode
from vinoreward_training.vae_bundle import bounds
from vinoreward_training.vae_loss import PixelWeights, PlaceReader, divergence, reconstruction
from vinoreward_training.vae_training import Recipe, VaeFit

SIZE = (32, 40)
BLUE = (20, 20, 230)


def pictures(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return a small blue square on a plain table, and its place in metres."""
    random = np.random.default_rng(seed)
    images = np.full((count, *SIZE, 3), (200, 180, 150), dtype=np.uint8)
    corners = np.stack([random.integers(0, 28, count), random.integers(0, 36, count)], axis=1)
    for image, (top, left) in zip(images, corners, strict=True):
        image[top : top + 4, left : left + 4] = BLUE
    return images, corners[:, ::-1] * 0.01


def frames_of(count: int) -> Frames:
    images, places = pictures(count)
    return Frames(
        images=images,
        episodes=np.arange(count) // 2,
        places={"object": places.astype(np.float64)},
        scene={},
        sha256="0" * 64,
        source="toy",
    )


def write_capture(folder: Path, count: int = 160) -> Path:
    images, places = pictures(count)
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
    for index, image in enumerate(pictures(count)[0]):
        Image.fromarray(image).save(folder / "deep" / "er" / f"{index:04}.png")
    return folder


# Frames


def test_any_folder_of_pictures_will_do(tmp_path: Path) -> None:
    frames = load_frames(write_folder(tmp_path / "any"))
    assert frames.images.shape == (80, *SIZE, 3)
    assert frames.places == {}
    assert len(np.unique(frames.episodes)) == 80


def test_a_capture_gives_places_and_episodes(tmp_path: Path) -> None:
    frames = load_frames(write_capture(tmp_path / "capture"))
    expected = pictures(160)[1].astype(np.float64)
    expected[9::10] = np.nan
    np.testing.assert_allclose(frames.places["object"], expected)
    assert len(np.unique(frames.episodes)) == 80
    assert not frames.resized


def test_frames_are_resized_as_the_run_time_does(tmp_path: Path) -> None:
    from vinoreward.bundles.picture import prepare
    from vinoreward.bundles.schema import Picture

    folder = write_folder(tmp_path / "any")
    frames = load_frames(folder, size=(64, 48))
    wanted = prepare(pictures(80)[0], Picture(height=64, width=48, resize="pil_bilinear"))
    np.testing.assert_array_equal(frames.images, wanted)
    assert frames.resized


def test_a_limit_takes_fewer(tmp_path: Path) -> None:
    assert len(load_frames(write_folder(tmp_path / "any"), limit=70).images) == 70
    assert len(load_frames(write_capture(tmp_path / "capture"), limit=70).places["object"]) == 70


def test_what_cannot_be_used_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="not a folder"):
        load_frames(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DatasetError, match="holds no pictures"):
        load_frames(tmp_path / "empty")
    with pytest.raises(DatasetError, match="Expected at least 64"):
        load_frames(write_folder(tmp_path / "few", 20))
    mixed = write_folder(tmp_path / "mixed")
    Image.new("RGB", (50, 50)).save(mixed / "zz.png")
    with pytest.raises(DatasetError, match="50x50"):
        load_frames(mixed)
    broken = write_folder(tmp_path / "broken")
    (broken / "zz.png").write_bytes(b"not a picture")
    with pytest.raises(DatasetError, match="cannot be read as a picture"):
        load_frames(broken)
    lost = write_capture(tmp_path / "lost")
    (lost / "frames" / "0003.png").unlink()
    with pytest.raises(DatasetError, match="lists 1 pictures that are not there"):
        load_frames(lost)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1000), count=st.integers(6, 200))
def test_no_episode_is_in_two_parts(seed: int, count: int) -> None:
    frames = dataclasses.replace(frames_of(count))
    parts = split_frames(frames, seed=seed)
    assert sorted(np.concatenate(parts)) == list(range(count))
    assert all(len(part) for part in parts)
    episodes = [set(frames.episodes[part]) for part in parts]
    assert not episodes[0] & episodes[1] and not episodes[1] & episodes[2]
    assert not episodes[0] & episodes[2]


# Networks and loss


@settings(max_examples=12, deadline=None)
@given(
    architecture=st.sampled_from(ARCHITECTURES),
    height=st.integers(32, 70),
    width=st.integers(32, 70),
    latent=st.integers(1, 20),
)
def test_every_size_goes_in_and_comes_out(
    architecture: str, height: int, width: int, latent: int
) -> None:
    vae = build_vae(architecture, height, width, latent)
    made, mean, log_variance = vae(torch.zeros(2, 3, height, width), torch.zeros(2, latent))
    assert made.shape == (2, 3, height, width)
    assert mean.shape == log_variance.shape == (2, latent)


def test_sizes_that_cannot_work_are_refused() -> None:
    with pytest.raises(ConfigError, match="31 x 64"):
        build_encoder("conv_vae", 31, 64, 8)
    with pytest.raises(ConfigError, match="even number"):
        build_encoder("spatial_vae", 64, 64, 7)
    with pytest.raises(ConfigError, match="no encoder architecture 'vgg'"):
        build_encoder("vgg", 64, 64, 8)


def test_keypoints_move_with_the_picture() -> None:
    torch.manual_seed(0)
    encoder = build_encoder("spatial_vae", 64, 64, 16)
    images, _ = pictures(1)
    picture = np.full((2, 64, 64, 3), 128, np.uint8)
    picture[0, 20:24, 20:24] = BLUE
    picture[1, 20:24, 40:44] = BLUE
    mean, _ = encode(encoder, picture)
    assert np.abs(mean[0] - mean[1]).max() > 1e-3
    assert images.dtype == np.uint8


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
    images, _ = pictures(200)
    weights = PixelWeights.measure(images, foreground=3.0, rare=10.0)
    targets = torch.from_numpy(images[:1]).permute(0, 3, 1, 2).float() / 255
    found = weights.of(images[:1], targets)[0, 0].numpy()
    blue = (images[0] == BLUE).all(-1)
    assert np.unique(found[~blue]) == pytest.approx([1.0])
    # 16 of 1280 pixels are blue, more than a hundredth: moving, but of no rare colour.
    assert np.unique(found[blue]) == pytest.approx([4.0])
    rarer = PixelWeights.measure(images[:, :, :, :] // 1, foreground=0.0, rare=1.0)
    assert rarer.rarity.max() == 1.0
    # Of a single pixel among 25600 the colour is rarer than the highest weight allows.
    images = np.zeros((20, *SIZE, 3), dtype=np.uint8)
    images[0, 3, 5] = BLUE
    weights = PixelWeights.measure(images, foreground=0.0, rare=7.0)
    targets = torch.from_numpy(images[:1]).permute(0, 3, 1, 2).float() / 255
    found = weights.of(images[:1], targets)[0, 0].numpy()
    assert found[3, 5] == 7.0 and found.sum() == 7.0 + found.size - 1


def test_reconstruction_is_a_log_likelihood() -> None:
    targets = torch.zeros(2, 3, 4, 4)
    made = torch.full_like(targets, 0.1)
    found = reconstruction(made, targets, 1.0, 0.05)
    assert float(found) == pytest.approx(3 * 16 * (0.1 / 0.05) ** 2 / 2, rel=1e-5)


def test_bounds_hold_what_was_seen_and_more() -> None:
    means = np.random.default_rng(0).normal(size=(500, 4)).astype(np.float32)
    low, high = bounds(means, np.full(4, 0.1, np.float32))
    assert (low < means.min(0) - 0.4).all() and (high > means.max(0) + 0.4).all()


# The loop


def fit_of(folder: Path, *, steps: int = 12, resume: bool = False, **changes: object) -> VaeFit:
    folder.mkdir(exist_ok=True)
    frames = frames_of(120)
    parts = split_frames(frames, seed=0)
    torch.manual_seed(0)
    vae = build_vae("spatial_vae", *SIZE, 4)
    recipe = dataclasses.replace(Recipe(steps=steps, batch_size=8, denoise=0.02), **changes)
    return VaeFit(vae, frames, parts[0], parts[1], recipe, folder, resume=resume)


def test_places_that_are_asked_for_are_read_better(tmp_path: Path) -> None:
    from vinoreward_training.probe import probe_places

    frames = frames_of(400)
    frames.places["object"][::7] = np.nan  # absent things neither count nor spoil the rest
    parts = split_frames(frames, seed=0)
    found = {}
    for places in (0.0, 100.0):
        torch.manual_seed(0)
        vae = build_vae("spatial_vae", *SIZE, 8)
        recipe = Recipe(steps=150, batch_size=32, places=places)
        fit = VaeFit(vae, frames, *parts[:2], recipe, tmp_path / str(places))
        (tmp_path / str(places)).mkdir()
        fit.run(ignore, ignore)
        (error,) = probe_places(encode(vae.encoder, frames.images)[0], frames.places, *parts[::2])
        found[places] = error.mean_mm
    assert found[100.0] < 0.8 * found[0.0]


@given(seed=st.integers(0, 1000))
@settings(max_examples=20, deadline=None)
def test_the_error_of_places_is_in_square_millimetres(seed: int) -> None:
    random = np.random.default_rng(seed)
    places = random.normal(size=(6, 4))
    places[random.random(6) < 0.4, 2:] = np.nan
    places[0] = 0.5
    reader = PlaceReader(3, places)
    mean = torch.from_numpy(random.normal(size=(6, 3))).float()
    read = reader.linear(mean).detach().numpy().astype(np.float64)
    off = np.where(np.isfinite(places), 1000 * (read - places), 0.0)
    naive = np.mean([row @ row for row in off])
    loss = reader.squared_error(mean, places)
    assert float(loss.detach()) == pytest.approx(naive, rel=1e-4)
    loss.backward()
    assert all(torch.isfinite(value.grad).all() for value in reader.parameters())


def ignore(*_: object) -> None:
    """Take no notice."""


def weights_of(fit: VaeFit) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in fit.vae.state_dict().items()}


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        fit = fit_of(tmp_path / name)
        fit.run(ignore, ignore)
        found.append(weights_of(fit))
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize(("stop", "places"), [(1, 0.0), (7, 0.0), (7, 5.0)])
def test_ctrl_c_and_resume_lead_to_the_very_same_weights(
    tmp_path: Path, stop: int, places: float
) -> None:
    whole = fit_of(tmp_path / "whole", places=places)
    whole.run(ignore, ignore)

    def interrupt(step: int, _: dict[str, float]) -> None:
        if step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = fit_of(tmp_path / "stopped", places=places)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(interrupt, ignore)
    assert stopped.step == stop
    resumed = fit_of(tmp_path / "stopped", resume=True, places=places)
    assert resumed.step == stop
    resumed.run(ignore, ignore)
    assert resumed.history == whole.history
    for name, value in weights_of(whole).items():
        np.testing.assert_array_equal(value, weights_of(resumed)[name])


def test_places_count_by_their_weight_and_begin_at_the_mean_of_training_frames(
    tmp_path: Path,
) -> None:
    fit = fit_of(tmp_path / "run", places=5.0, steps=4, beta=2.0, warmup=0.0)
    assert fit._reader is not None
    mean = fit._places[fit._train].mean(0)
    assert fit._reader.linear.bias.detach().numpy() == pytest.approx(mean, rel=1e-5)
    found = fit._step()
    expected = found["reconstruction"] + 2.0 * found["kl"] + 5.0 * found["places_mm2"]
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


def test_half_precision_is_for_the_first_three_quarters(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", steps=8, bf16=True)
    seen: list[torch.dtype] = []
    layer = next(part for part in fit.vae.modules() if isinstance(part, torch.nn.Conv2d))
    layer.register_forward_hook(lambda *given: seen.append(given[2].dtype))
    for _ in range(8):
        fit._step()
    assert seen == [torch.bfloat16] * 6 + [torch.float32] * 2
    assert all(value.dtype == torch.float32 for value in fit.vae.parameters())


def test_a_full_disk_is_named_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", steps=2)
    fit.save()
    before = (tmp_path / "run" / CHECKPOINT).read_bytes()
    with nearly_full_disk(), pytest.raises(RunFolderError, match=r"checkpoint\.pt.*free space"):
        fit.save()
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == before


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", steps=2)
    fit.run(ignore, ignore)
    with pytest.raises(ModelCorruptError, match="other settings"):
        fit_of(tmp_path / "run", steps=2, resume=True, beta=3.0)
    path = tmp_path / "run" / CHECKPOINT
    value = torch.load(path, weights_only=True)
    torch.save({**value, "frames": "1" * 64}, path)
    with pytest.raises(DatasetError, match="other frames"):
        fit_of(tmp_path / "run", steps=2, resume=True)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ModelCorruptError):
        fit_of(tmp_path / "run", steps=2, resume=True)


def test_beta_and_the_rate_rise_and_the_rate_falls(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", steps=1000, beta=4.0)
    assert fit._beta(0) == 0.0 and fit._beta(100) == 2.0 and fit._beta(999) == 4.0
    assert fit._rate(0) < fit._rate(150) > fit._rate(999) >= 0.0


@pytest.mark.slow
def test_a_small_thing_is_found_and_can_be_read_linearly(tmp_path: Path) -> None:
    frames = frames_of(600)
    parts = split_frames(frames, seed=0)
    torch.manual_seed(0)
    vae = build_vae("spatial_vae", *SIZE, 8)
    fit = VaeFit(vae, frames, *parts[:2], Recipe(steps=300, batch_size=32), tmp_path)
    fit.run(ignore, ignore)
    from vinoreward_training.probe import probe_places

    mean, _ = encode(vae.encoder, frames.images)
    (found,) = probe_places(mean, frames.places, parts[0], parts[2])
    # A hundredth of a metre is a pixel here, the table 0.35 m wide.
    assert found.r2 > 0.9
    made = decode(vae.decoder, mean[:8])
    assert made.dtype == np.uint8 and made.shape == (8, *SIZE, 3)


# The command


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vae")
    config = TrainVaeConfig(
        data=write_capture(folder / "capture", 600),
        out=folder / "run",
        latent=6,
        steps=30,
        batch_size=16,
        threads=1,
        bf16="off",
    )
    assert train_vae.run(config) == 0
    return folder


def test_the_command_leaves_a_bundle_that_says_what_it_can(trained: Path) -> None:
    bundle = Bundle.load(trained / "run" / "bundle")
    assert (bundle.spec.kind, bundle.spec.latent_size) == ("encoder", 6)
    probe = bundle.spec.metrics["probe"]["object"]
    assert probe["frames"] > 30 and 0 < probe["mean_mm"] < 1000
    assert bundle.spec.encoding is not None and bundle.spec.encoding.std is not None
    card = (bundle.path / "README.md").read_text()
    assert "mean error, mm" in card and "object" in card
    for name in ("reconstructions", "traversals", "losses"):
        assert (bundle.path / "pictures" / f"{name}.png").is_file()
        assert f"{name}.png" in card
    assert "data:image/png" in (trained / "run" / "report.html").read_text()


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime", "torch"])
def test_the_bundle_gives_the_same_on_every_backend(trained: Path, backend: str) -> None:
    bundle = Bundle.load(trained / "run" / "bundle")
    with bundle.backend(backend, precision="fp32") as network:
        found = network.infer(bundle.golden.images)
    np.testing.assert_allclose(found, bundle.golden.logits, atol=2e-3)


def test_the_decoder_makes_pictures_of_latents(trained: Path) -> None:
    import onnxruntime

    bundle = Bundle.load(trained / "run" / "bundle")
    session = onnxruntime.InferenceSession(str(bundle.path / "decoder.onnx"))
    (made,) = session.run(None, {"latent": bundle.golden.logits[:3, :6]})
    assert made.shape == (3, 3, *SIZE)


def test_int8_is_gated_and_added(trained: Path) -> None:
    @dataclasses.dataclass(frozen=True)
    class Settings:
        data: Path = trained / "capture"
        calibration: int = 50
        seed: int = 0

    assert run_encoder(Settings(), Bundle.load(trained / "run" / "bundle")) == 0
    bundle = Bundle.load(trained / "run" / "bundle")
    assert bundle.spec.quantization is not None and bundle.spec.quantization.passed
    assert set(bundle.spec.quantization.detail["probe_int8_mm"]) == {"object"}
    assert bundle.resolve_precision("openvino") == "int8"
    card = (bundle.path / "README.md").read_text()
    assert card.count("## In INT8") == 1 and "mm in INT8" in card and "## Limits" in card
    # Quantized again, the section is replaced.
    assert run_encoder(Settings(), bundle) == 0
    assert (bundle.path / "README.md").read_text().count("## In INT8") == 1


def moved(share: float = 0.0, **probe_mm: float) -> Moved:
    return Moved(1000, int(1000 * share), 0.1, 2.0, probe_mm)


def test_the_gate_refuses_what_moves_or_forgets() -> None:
    fp32 = {"object": 4.0}
    worst = judge(
        {"a": moved(0.01, object=4.1), "b": moved(0.02, object=4.0)}, fp32, posterior=True
    )
    assert worst.beyond == 20
    with pytest.raises(QuantizationRefusedError, match=r"moves the latent of 60 of 1000"):
        judge({"a": moved(0.0, object=4.0), "b": moved(0.06, object=4.0)}, fp32, posterior=True)
    with pytest.raises(QuantizationRefusedError, match=r"at most 4.50 mm"):
        judge({"a": moved(0.0, object=4.6)}, fp32, posterior=True)
    assert judge({"a": moved(0.05)}, {}, posterior=False).share == 0.05


def test_a_card_without_places_says_so(tmp_path: Path) -> None:
    config = TrainVaeConfig(
        data=write_folder(tmp_path / "any"),
        out=tmp_path / "run",
        architecture="conv_vae",
        latent=3,
        steps=3,
        batch_size=8,
        threads=1,
    )
    assert train_vae.run(config) == 0
    bundle = Bundle.load(tmp_path / "run" / "bundle")
    assert bundle.spec.metrics["probe"] == {}
    assert "was not recorded" in (bundle.path / "README.md").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"env": "CartPole-v1"},
        {"data": None},
        {"steps": 0},
        {"sigma": 0.0},
        {"rare": 0.5},
        {"latent": 0},
        {"size": (16, 64)},
    ],
)
def test_options_that_cannot_work_are_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    config = dataclasses.replace(TrainVaeConfig(data=tmp_path, out=tmp_path / "run"), **changes)
    with pytest.raises(ConfigError):
        train_vae.run(config)
    assert not (tmp_path / "run").exists()


def test_places_need_a_capture_that_records_them(tmp_path: Path) -> None:
    config = TrainVaeConfig(
        data=write_folder(tmp_path / "pictures"), out=tmp_path / "run", places=1.0
    )
    with pytest.raises(ConfigError, match="records no places"):
        train_vae.run(config)


@pytest.mark.slow
def test_a_killed_training_resumes_to_the_very_same_weights(tmp_path: Path) -> None:
    data = write_capture(tmp_path / "capture")

    def command(out: str, *more: str) -> list[str]:
        options = [
            "--steps",
            "700",
            "--batch-size",
            "2",
            "--latent",
            "3",
            "--threads",
            "1",
            "--bf16",
            "off",
        ]
        where = ["--data", str(data), "--out", str(tmp_path / out)]
        return [sys.executable, "-m", "vinoreward_training.cli", "train-vae", *where, *options,
                *more]  # fmt: skip

    killed = subprocess.Popen(command("killed"), stderr=subprocess.DEVNULL)
    checkpoint = tmp_path / "killed" / CHECKPOINT
    while not checkpoint.is_file() and killed.poll() is None:
        time.sleep(0.05)
    killed.kill()
    killed.wait()
    assert not (tmp_path / "killed" / "bundle").exists()
    subprocess.run(command("killed", "--resume"), check=True, stderr=subprocess.DEVNULL)
    subprocess.run(command("whole"), check=True, stderr=subprocess.DEVNULL)
    one, two = (
        (tmp_path / name / "bundle" / "model.safetensors").read_bytes()
        for name in ("killed", "whole")
    )
    assert one == two
