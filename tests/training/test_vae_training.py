"""The training of an encoder: repeatable, resumable."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from full_disk import nearly_full_disk
from hypothesis import given, settings
from hypothesis import strategies as st
from vae_data import SIZE, frames_of

from vinoreward.errors import (
    DatasetError,
    ModelCorruptError,
    OutputError,
    RunFolderError,
)
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.data.dataset import split_frames
from vinoreward_training.encoder import training
from vinoreward_training.encoder.networks import build_vae
from vinoreward_training.encoder.training import (
    PlaceReader,
    VaeFit,
    decode,
    encode,
)
from vinoreward_training.runs.fit import CHECKPOINT


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Sums of several threads are in another order: not the very same weights in all processes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def fit_of(folder: Path, *, steps: int = 12, resume: bool = False, **changes: object) -> VaeFit:
    folder.mkdir(exist_ok=True)
    frames = frames_of(120)
    parts = split_frames(frames, seed=0)
    torch.manual_seed(0)
    vae = build_vae("spatial_vae", *SIZE, 4)
    config = TrainVaeConfig(steps=steps, batch_size=8, denoise=0.02, bf16="off", resume=resume)
    changed = dataclasses.replace(config, **changes)
    return VaeFit(vae, frames, parts[0], parts[1], changed, folder)


def test_places_that_are_asked_for_are_read_better(tmp_path: Path) -> None:
    from vinoreward_training.encoder.probe import probe_places

    frames = frames_of(300)
    frames.places["object"][::7] = np.nan  # absent things neither count nor spoil the rest
    parts = split_frames(frames, seed=0)
    found = {}
    for places in (0.0, 100.0):
        torch.manual_seed(0)
        vae = build_vae("spatial_vae", *SIZE, 8)
        config = TrainVaeConfig(steps=60, batch_size=16, places=places, bf16="off")
        fit = VaeFit(vae, frames, *parts[:2], config, tmp_path / str(places))
        (tmp_path / str(places)).mkdir()
        fit.run()
        (error,) = probe_places(encode(vae.encoder, frames.images)[0], frames.places, *parts[::2])
        found[places] = error.mean_mm
    assert found[100.0] < 0.5 * found[0.0]


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


def weights_of(fit: VaeFit) -> dict[str, np.ndarray]:
    return {name: value.numpy().copy() for name, value in fit.vae.state_dict().items()}


def test_the_same_seed_gives_the_same_weights(tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        fit = fit_of(tmp_path / name)
        fit.run()
        found.append(weights_of(fit))
    for name in found[0]:
        np.testing.assert_array_equal(found[0][name], found[1][name])


@pytest.mark.parametrize(("stop", "places"), [(1, 0.0), (7, 0.0), (7, 5.0)])
def test_ctrl_c_and_resume_lead_to_the_very_same_weights(
    tmp_path: Path, stop: int, places: float
) -> None:
    whole = fit_of(tmp_path / "whole", places=places)
    whole.run()

    def interrupt(step: int, _: dict[str, float]) -> None:
        if step == stop:
            os.kill(os.getpid(), signal.SIGINT)

    stopped = fit_of(tmp_path / "stopped", places=places)
    with pytest.raises(KeyboardInterrupt):
        stopped.run(interrupt)
    assert stopped.step == stop
    if stop == 7:  # as the first versions wrote it
        path = tmp_path / "stopped" / CHECKPOINT
        state = torch.load(path, weights_only=True)
        newer = ("best", "best_loss", "best_epoch")
        torch.save({name: value for name, value in state.items() if name not in newer}, path)
    resumed = fit_of(tmp_path / "stopped", resume=True, places=places)
    assert resumed.step == stop
    resumed.run()
    assert resumed.history == whole.history
    for name, value in weights_of(whole).items():
        np.testing.assert_array_equal(value, weights_of(resumed)[name])


def test_a_killed_training_resumes_to_the_very_same_weights(tmp_path: Path) -> None:
    """The last checkpoint counts, not the steps after it."""
    code = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from test_vae_training import VaeFit, fit_of, torch\n"
        "torch.set_num_threads(1)\n"
        "VaeFit.SAVE_EVERY = 5\n"
        "def kill(step, _):\n"
        "    if step == 8:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "fit_of(Path(sys.argv[1])).run(kill)\n"
    )
    paths = [str(Path(__file__).parent), *sys.path]
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "killed")],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
    )
    assert killed.returncode == -signal.SIGKILL
    resumed = fit_of(tmp_path / "killed", resume=True)
    assert resumed.step == 5
    resumed.run()
    whole = fit_of(tmp_path / "whole")
    whole.run()
    for name, value in weights_of(whole).items():
        np.testing.assert_array_equal(value, weights_of(resumed)[name])


def test_places_count_by_their_weight(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", places=5.0, steps=2, beta=2.0, warmup=0.0)
    found: list[dict[str, float]] = []
    fit.run(lambda step, parts: found.append(parts))
    for each in found:
        expected = each["reconstruction"] + 2.0 * each["kl"] + 5.0 * each["places_mm2"]
        assert each["loss"] == pytest.approx(expected, rel=1e-5)


def test_places_are_read_as_the_mean_of_training_frames_at_first() -> None:
    places = np.random.default_rng(0).normal(size=(50, 2))
    found = PlaceReader(3, places).squared_error(torch.zeros(50, 3), places)
    spread = 1000.0 * (places - places.mean(0))
    assert float(found.detach()) == pytest.approx((spread**2).sum(1).mean(), rel=1e-5)


def test_half_precision_is_for_the_first_three_quarters(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", steps=8, bf16="on")
    seen: list[torch.dtype] = []
    layer = next(part for part in fit.vae.modules() if isinstance(part, torch.nn.Conv2d))
    layer.register_forward_hook(
        lambda module, _, made: seen.append(made.dtype) if module.training else None
    )
    fit.run()
    assert seen == [torch.bfloat16] * 6 + [torch.float32] * 2
    assert all(value.dtype == torch.float32 for value in fit.vae.parameters())


def test_a_loss_that_is_no_number_ends_the_training(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", learning_rate=1e30)
    with pytest.raises(OutputError, match=r"after step \d.*lower --learning-rate"):
        fit.run()


def test_a_full_disk_is_named_and_the_last_checkpoint_stays(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", steps=2)
    fit.save()
    before = (tmp_path / "run" / CHECKPOINT).read_bytes()
    with nearly_full_disk(), pytest.raises(RunFolderError, match=r"checkpoint\.pt.*free space"):
        fit.save()
    assert (tmp_path / "run" / CHECKPOINT).read_bytes() == before


def test_a_checkpoint_of_something_else_is_refused(tmp_path: Path) -> None:
    fit = fit_of(tmp_path / "run", steps=2)
    fit.run()
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


def test_beta_and_the_rate_rise_and_the_rate_falls(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "RECORD_EVERY", 1)
    fit = fit_of(tmp_path / "run", steps=20, beta=4.0, warmup=0.2)
    betas: list[float] = []
    fit.run(
        lambda step, parts: betas.append((parts["loss"] - parts["reconstruction"]) / parts["kl"])
    )
    assert betas == pytest.approx([0.0, 1.0, 2.0, 3.0, *[4.0] * 16], abs=0.05)
    rates = [record["rate"] for record in fit.history]
    highest = int(np.argmax(rates))
    assert 0 < highest < 8 and rates == [*sorted(rates[:highest]), *sorted(rates[highest:])[::-1]]
    assert rates[-1] == 0.0 and max(rates) <= fit.config.learning_rate


@pytest.mark.slow
def test_a_small_thing_is_found_and_can_be_read_linearly(tmp_path: Path) -> None:
    frames = frames_of(300)
    parts = split_frames(frames, seed=0)
    torch.manual_seed(0)
    vae = build_vae("spatial_vae", *SIZE, 8)
    config = TrainVaeConfig(steps=150, batch_size=16, learning_rate=4e-3, bf16="off")
    fit = VaeFit(vae, frames, *parts[:2], config, tmp_path)
    fit.run()
    from vinoreward_training.encoder.probe import probe_places

    mean, _ = encode(vae.encoder, frames.images)
    (found,) = probe_places(mean, frames.places, parts[0], parts[2])
    # A hundredth of a metre is a pixel here, the table 0.35 m wide.
    assert found.r2 > 0.9
    made = decode(vae.decoder, mean[:8])
    assert made.dtype == np.uint8 and made.shape == (8, *SIZE, 3)
