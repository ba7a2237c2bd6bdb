"""The command that trains an encoder, and the bundle that it leaves."""

from __future__ import annotations

import re
import shlex
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vae_data import write_capture, write_folder

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.schema import Encoding
from vinoreward.errors import ConfigError, QuantizationRefusedError
from vinoreward_training.cli import main
from vinoreward_training.configs import TrainVaeConfig
from vinoreward_training.encoder import train_vae
from vinoreward_training.encoder.training import VaeFit
from vinoreward_training.quantize.gate import gate_latents


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
        ({"latent": 7}, "latent"),
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
