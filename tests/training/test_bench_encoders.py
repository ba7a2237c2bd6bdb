"""The rows about encoders: what is compared is the same thing, and what is missing is said."""

from __future__ import annotations

import time
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import safetensors.torch
import torch
from toy_environments import save_toy_encoder

from vinoreward import Encoder
from vinoreward.backends.convert import export_onnx
from vinoreward.backends.torch_networks import WithPreprocess, build_encoder
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec, Encoding
from vinoreward.images import ImageSpec
from vinoreward_training.bench.encoders import (
    ENVIRONMENT,
    STEPS_PER_TURN,
    DrawsAnew,
    EagerEncoding,
    alone_rows,
    captured_frames,
    encoder_bundle,
    encoders_rows,
    graph_row,
    probe_errors,
    probe_rows,
    render_row,
    step_row,
    step_times,
)
from vinoreward_training.bench.trainings import (
    Training,
    cnn_row,
    each,
    latent_rows,
    overhead_pixels_rows,
    solve_pixels_rows,
)
from vinoreward_training.capture.hover import HoverFrame
from vinoreward_training.configs import BenchConfig

HEIGHT, WIDTH, SIZE = 32, 40, 5
MEAN, STD = (0.5, 0.4, 0.3), (0.5, 0.6, 0.7)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """An encoder of ours with random weights, for hover images made small."""
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    network = build_encoder("conv_vae", HEIGHT, WIDTH, 2 * SIZE).eval()
    export_onnx(WithPreprocess(network, MEAN, STD), folder / "m.onnx", HEIGHT, WIDTH)
    safetensors.torch.save_file(network.state_dict(), folder / "m.safetensors")
    golden = np.random.default_rng(0).integers(0, 256, (4, HEIGHT, WIDTH, 3)).astype(np.uint8)
    with torch.no_grad():
        outputs = WithPreprocess(network, MEAN, STD)(torch.from_numpy(golden)).numpy()
    spec = BundleSpec(
        name="small",
        kind="encoder",
        labels=(),
        latent_size=SIZE,
        encoding=Encoding(low=(-9,) * SIZE, high=(9,) * SIZE, std=(0.01,) * SIZE),
        image=ImageSpec(height=HEIGHT, width=WIDTH, mean=MEAN, std=STD, resize="pil_bilinear"),
        architecture="conv_vae",
    )
    files: dict[str, Path | bytes] = {
        "model.onnx": folder / "m.onnx",
        "model.safetensors": folder / "m.safetensors",
    }
    return Bundle.load(save_bundle(folder / "bundle", spec, files, golden, outputs))


def frame(x: int, y: int, shown: bool = True) -> HoverFrame:
    """Its image says where the gripper is; the object is beside it."""
    image = np.zeros((2, 2, 3), np.uint8)
    image[0, 0] = x, y, 0
    place = (x / 100, y / 100)
    there = (place[0] + 0.1, place[1]) if shown else None
    return HoverFrame(image, False, "far", place, there, 0.1)


def test_the_probe_finds_what_the_latent_holds_and_leaves_absent_objects_out() -> None:
    random = np.random.default_rng(0)
    fitted = [frame(*random.integers(0, 99, 2).tolist()) for _ in range(20)]
    fresh = [frame(*random.integers(0, 99, 2).tolist(), shown=i % 4 > 0) for i in range(12)]

    def whole(images: np.ndarray) -> np.ndarray:
        return images[:, 0, 0, :2].astype(np.float32)

    gripper, thing = probe_errors(whole, fitted, fresh)
    assert (gripper.name, gripper.frames, gripper.fitted_on) == ("gripper", 12, 20)
    assert (thing.name, thing.frames, thing.fitted_on) == ("object", 9, 20)
    assert max(gripper.mean_mm, thing.mean_mm) < 1e-3
    assert gripper.chance_mm > 100

    def half(images: np.ndarray) -> np.ndarray:
        return images[:, 0, 0, :1].astype(np.float32)

    assert probe_errors(half, fitted, fresh)[0].mean_mm > 50


def test_scenes_to_fit_on_are_not_those_to_judge_on() -> None:
    from vinoreward_training.capture.hover import fresh_frames

    fitted = {frame.gripper for frame in captured_frames(8, 3, None)}
    assert fitted.isdisjoint({frame.gripper for frame in fresh_frames(8, 3)})


def test_the_eager_baseline_computes_what_our_wrapper_does(bundle: Bundle) -> None:
    env = EagerEncoding(gym.make(ENVIRONMENT, backend="oracle", render_mode="rgb_array"), bundle)
    seen, _ = env.reset(seed=4)
    image = env.render()
    with Encoder(bundle) as encoder:
        np.testing.assert_allclose(seen, encoder.encode(image[None])[0], atol=1e-3)
    assert seen.shape == env.observation_space.shape == (SIZE,)
    env.close()


def test_the_clock_counts_what_is_below_the_wrapper(bundle: Bundle) -> None:
    env = EagerEncoding(gym.make(ENVIRONMENT, backend="oracle"), bundle)
    before = time.perf_counter()
    wrapper, below = step_times({"eager": env}, 0, rounds=2)
    whole = time.perf_counter() - before
    assert len(wrapper["eager"].cpu) == len(below["eager"].wall) == 2
    assert min(*wrapper["eager"].wall, *below["eager"].wall) > 0
    steps = STEPS_PER_TURN * sum([*wrapper["eager"].wall, *below["eager"].wall])
    assert steps < whole
    env.close()


def test_without_an_encoder_the_rows_say_so(tmp_path: Path) -> None:
    config = BenchConfig(out=tmp_path, encoder="no-such-encoder")
    assert encoder_bundle(config) is None
    for row in [*overhead_pixels_rows(config), *solve_pixels_rows(config)]:
        assert (row.value, row.met) == (None, False)
        assert "no-such-encoder" in row.note
    assert not (tmp_path / "train").exists()


def test_cnn_policy_stands_beside_the_latent() -> None:
    runs = [Training(seed, 4000, 4000, 80.0, true=0.94, claimed=0.96) for seed in (100, 101)]
    cnn = Training(100, None, 4000, 2000.0, true=0.1, claimed=0.1, episodes=100)
    row = cnn_row(runs, cnn, 4000)
    assert (row.value, row.unit, row.met) == (10.0, "%", None)
    assert "500 ms a step, through the encoder 20 ms" in row.note
    assert "within 4000 steps" in row.what
    assert "seed 101: 94% true and 96% claimed success after 4000 steps, 80 s" in each(runs)


def test_the_worst_seed_decides() -> None:
    runs = [
        Training(seed, 4000, 4000, 80.0, true=true, claimed=0.96, episodes=100)
        for seed, true in ((100, 0.97), (101, 0.9), (102, 0.93))
    ]
    rate, steps = latent_rows("what", ">= 90%", runs)
    assert (rate.value, rate.met) == (90.0, True)
    assert "seed 102: 93% true" in rate.note and "seeds 100 to 102" in rate.note
    assert (steps.value, steps.unit, steps.met) == (4000.0, "steps", None)
    runs[0] = Training(100, None, 20_000, 400.0, true=0.89, claimed=0.9, episodes=100)
    assert latent_rows("what", ">= 90%", runs)[0].met is False


@pytest.mark.slow
def test_steps_and_probe_are_measured_on_any_encoder_of_ours(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vinoreward_training.bench.encoders.PROBE_FRAMES", 40)
    config = BenchConfig(out=tmp_path, encoder=str(bundle.path), rounds=2, scenes=16)
    encoding = step_row(config, bundle)
    assert encoding.value is not None and encoding.value > 0
    assert encoding.target == ">= 4 x"
    assert "the environment, takes" in encoding.note
    rows = probe_rows(config, bundle)
    assert [row.unit for row in rows] == ["mm", "mm"]
    assert all(row.met is False for row in rows), "random weights know nothing"


@pytest.mark.slow
def test_encoders_alone_are_compared_with_eager_pytorch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vinoreward_training.bench.encoders.CALIBRATION_FRAMES", 4)
    rows = alone_rows(BenchConfig(out=tmp_path, rounds=2), 64, at_least=6.0)
    names = [row.what.split(": ")[1].split(" against")[0] for row in rows]
    assert names == ["onnxruntime fp32", "openvino fp32", "onnxruntime int8", "openvino int8"]
    assert [row.target for row in rows] == ["", "", "", ">= 6 x"]
    assert all("random weights" in row.note for row in rows)


def test_an_encoder_without_weights_for_torch_is_not_compared(tmp_path: Path) -> None:
    foreign = save_toy_encoder(tmp_path / "foreign", resize="pil_bilinear")
    row = step_row(BenchConfig(out=tmp_path), foreign)
    assert row.value is None and "no weights for PyTorch" in row.note


@pytest.mark.slow
def test_trainings_through_the_encoder_are_measured(bundle: Bundle, tmp_path: Path) -> None:
    config = BenchConfig(
        out=tmp_path,
        encoder=str(bundle.path),
        seeds=1,
        pixel_seeds=1,
        pixel_steps=40,
        cnn_steps=12,
        overhead_steps=104,
        evaluation_episodes=1,
    )
    (overhead,) = overhead_pixels_rows(config)
    assert overhead.value is not None and overhead.value > 0
    latent, steps, cnn = solve_pixels_rows(config)
    assert (latent.unit, latent.target) == ("%", ">= 90%, 1 of 1 seeds")
    assert steps.value == 40
    assert latent.details["runs"][0]["steps"] == 40
    assert cnn.details["run"]["steps"] == 12
    assert (tmp_path / "train" / "pixels-100" / "policy.pt").is_file()


def test_without_an_encoder_the_row_of_all_still_measures_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vinoreward_training.bench.encoders.SIZES", ())
    rows = encoders_rows(BenchConfig(out=tmp_path, encoder="no-such-encoder"))
    assert [row.met for row in rows] == [False, False]
    assert rows[-1].target == "<= 5 mm"


def test_one_graph_with_both_outputs_gives_what_the_two_give() -> None:
    bundles = [Bundle.load(f"panda-hover-{kind}") for kind in ("classifier", "encoder")]
    row = graph_row(BenchConfig(rounds=2), *bundles)
    assert row.value is not None and row.value > 0
    found = float(row.note.rpartition(" ")[2])
    assert found < 1e-3  # of log-odds and latent numbers


def test_images_of_two_sizes_have_no_graph_in_common(bundle: Bundle) -> None:
    row = graph_row(BenchConfig(rounds=2), Bundle.load("panda-hover-classifier"), bundle)
    assert row.value is None and "different sizes" in row.note


def test_what_is_drawn_anew_is_what_the_environment_shows() -> None:
    env = DrawsAnew(gym.make("PandaHoverRandom-v0", backend="oracle", render_mode="rgb_array"))
    env.reset(seed=3)
    np.testing.assert_array_equal(env.render(), env.env.render())
    env.close()
    assert render_row(BenchConfig(rounds=2)).value is not None
