"""Other people's encoders become bundles, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from encoder_images import HEIGHT, SIZE, WIDTH, make_images, planes
from torch import Tensor, nn

from vinoreward import Encoder
from vinoreward.bundles.bundle import Bundle
from vinoreward.errors import (
    BundleParityError,
    ConfigError,
    ModelCorruptError,
    ModelNotFoundError,
)


class TheirVae(nn.Module):
    """The usual hand-written encoder: convolutions and two heads."""

    def __init__(self, heads: str = "two") -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 6, 4, 4), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Dropout(0.5)
        )
        self.fc_mu = nn.Linear(6 * (HEIGHT // 4) * (WIDTH // 4), SIZE)
        self.fc_logvar = nn.Linear(6 * (HEIGHT // 4) * (WIDTH // 4), SIZE)
        self.heads = heads

    def forward(self, x: Tensor) -> Any:
        hidden = self.body(x)
        mean, log_variance = self.fc_mu(hidden), self.fc_logvar(hidden)
        if self.heads == "two":
            return mean, log_variance
        return mean if self.heads == "one" else torch.cat([mean, log_variance], 1)


def theirs(heads: str) -> TheirVae:
    torch.manual_seed(4)
    module = TheirVae(heads)
    torch.nn.init.normal_(module.body[1].running_mean, std=0.1)  # type: ignore[arg-type]
    return module.eval()


def exported(module: nn.Module, path: Path, names: list[str]) -> Path:
    """As their own script would do it: floats, N, C, H, W."""
    torch.onnx.export(
        module,
        (torch.zeros(2, 3, HEIGHT, WIDTH),),
        str(path),
        input_names=["image"],
        output_names=names,
        external_data=False,
        verbose=False,
        dynamo=False,
        dynamic_axes={"image": {0: "batch"}},
    )
    return path


@pytest.fixture(scope="module")
def onnx_files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    import warnings

    folder = tmp_path_factory.mktemp("theirs")
    outputs = {"two": ["mu", "logvar"], "one": ["z"], "side": ["latent"]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return {
            heads: exported(theirs(heads), folder / f"{heads}.onnx", names)
            for heads, names in outputs.items()
        }


# Trusted, or each network is tried in a child.
NORMALISED: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3, "trusted": True}
SHAPES: dict[str, dict[str, Any]] = {
    "two": {},
    "one": {"posterior": False},
    "side": {"latent_size": SIZE},
}


def their_answer(heads: str, images: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        found = theirs(heads)(planes(images, 0.5, 0.5))
    both = torch.cat(list(found), 1) if isinstance(found, tuple) else found
    return np.asarray(both.numpy())


@pytest.mark.parametrize(
    ("heads", "backend"), [("two", "openvino"), ("one", "onnxruntime"), ("side", "openvino")]
)
def test_their_encoder_becomes_a_bundle(
    onnx_files: dict[str, Path], heads: str, backend: str, tmp_path: Path
) -> None:
    images = make_images(5)
    wanted = their_answer(heads, images)
    bundle = Bundle.from_encoder(
        onnx_files[heads],
        **NORMALISED | {"trusted": heads != "one"},
        **SHAPES[heads],
        golden=(images[0], wanted[0, :SIZE]),
    )
    for one in (bundle, bundle.save(tmp_path / heads, images[:2])):
        with Encoder(one, backend=backend) as encoder:
            np.testing.assert_allclose(encoder.encode(images), wanted[:, :SIZE], atol=1e-4)
            outputs = encoder.backend.infer(images)  # with the log variances, if there are any
            np.testing.assert_allclose(outputs, wanted, atol=1e-3)


def test_outputs_can_be_named_in_the_other_order(onnx_files: dict[str, Path]) -> None:
    images = make_images(2)
    wanted = their_answer("two", images)
    bundle = Bundle.from_encoder(onnx_files["two"], **NORMALISED, outputs=("logvar", "mu"))
    turned = np.roll(wanted, SIZE, axis=1)
    for name in ("openvino", "onnxruntime"):
        with bundle.backend(name) as backend:
            np.testing.assert_allclose(backend.infer(images), turned, atol=1e-4)
    only = Bundle.from_encoder(onnx_files["two"], **NORMALISED, outputs="mu", posterior=False)
    with Encoder(only) as encoder:
        np.testing.assert_allclose(encoder.encode(images), wanted[:, :SIZE], atol=1e-4)


def test_facts_that_are_missing_or_contradict(onnx_files: dict[str, Path]) -> None:
    golden = (make_images(1)[0], their_answer("two", make_images(1))[0, :SIZE])
    for heads, options, message in (
        ("one", {}, "posterior=False"),
        ("one", {"posterior": True}, "twice"),
        ("two", {"posterior": False}, "as many log variances"),
        ("two", {"outputs": "sigma"}, "mu, logvar"),
        ("two", {"low": 3.0, "high": 2.0}, "low below high"),
        ("two", {"color_order": "BGR", "golden": golden}, "color_order=RGB"),
    ):
        with pytest.raises((ConfigError, BundleParityError), match=message):
            Bundle.from_encoder(onnx_files[heads], **{**NORMALISED, **options})


def test_their_module_becomes_a_bundle(tmp_path: Path) -> None:
    module, images = theirs("two"), make_images(3)
    mean, std = (0.2, 0.3, 0.4), (0.5, 0.6, 0.7)
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    with torch.no_grad():
        wanted, _ = module(planes(images[..., ::-1], mean, std))
    fresh = TheirVae("two")
    bundle = Bundle.from_encoder(
        tmp_path / "net.onnx",
        module=fresh,
        weights=tmp_path / "weights.pt",
        height=HEIGHT,
        width=WIDTH,
        mean=mean,
        std=std,
        color_order="BGR",
        golden=(images[0], wanted[0].numpy()),
    )
    assert fresh.training, "the caller's module is left as it was"
    assert bundle.spec.image.in_graph
    saved = bundle.save(tmp_path / "saved", images)
    for backend in ("openvino", "onnxruntime"):
        with Encoder(saved, backend=backend) as encoder:
            np.testing.assert_allclose(encoder.encode(images), wanted.numpy(), atol=1e-4)


class Evil:
    """What a pickle may do when it is loaded."""

    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_weights_are_never_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, shape = theirs("two"), {"height": HEIGHT, "width": WIDTH}
    target = tmp_path / "net.onnx"
    torch.save({"body": Evil()}, tmp_path / "evil.pt")
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    for name in ("evil.pt", "broken.safetensors"):
        with pytest.raises(ModelCorruptError):
            Bundle.from_encoder(target, module=module, weights=tmp_path / name, **shape)
    with pytest.raises(ModelNotFoundError):
        Bundle.from_encoder(target, module=module, weights=tmp_path / "none.pt", **shape)
    assert "executed" not in capsys.readouterr().out
    assert not target.exists()


def test_the_shipped_encoder_reads_where_the_gripper_is() -> None:
    import vinoreward
    from vinoreward_envs.camera.spec import CameraSpec
    from vinoreward_envs.scene import HoverScene

    scene = HoverScene(camera=CameraSpec())
    scene.place_object((0.6, 0.1))
    images, places = [], []
    for x in np.linspace(0.42, 0.68, 10):
        for y in np.linspace(-0.35, 0.35, 14):
            scene.move_gripper((float(x), float(y)))
            images.append(scene.render())
            places.append(scene.gripper[:2])
    scene.close()
    with vinoreward.Encoder("panda-hover-encoder") as encoder:
        latents = encoder.encode(np.stack(images))
    columns = np.concatenate([latents, np.ones((len(latents), 1))], axis=1)
    even = np.arange(len(latents)) % 2 == 0
    fit = np.linalg.lstsq(columns[even], np.array(places)[even], rcond=1e-3)[0]
    error = np.linalg.norm(columns[~even] @ fit - np.array(places)[~even], axis=1)
    assert error.mean() < 0.02


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_network_that_leaves_its_size_open_asks_for_it(tmp_path: Path) -> None:
    flattens = nn.Sequential(nn.Conv2d(3, 4, 3, 2), nn.Flatten(), nn.Linear(4 * 15 * 15, 6))
    axes = {"image": {0: "batch", 2: "height", 3: "width"}}
    torch.onnx.export(
        flattens.eval(),
        (torch.zeros(2, 3, 32, 32),),
        str(tmp_path / "open.onnx"),
        input_names=["image"],
        dynamic_axes=axes,
        dynamo=False,
    )
    facts = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "posterior": False}
    with pytest.raises(ConfigError, match="give height, width"):
        Bundle.from_encoder(tmp_path / "open.onnx", **facts)  # type: ignore[arg-type]
    bundle = Bundle.from_encoder(tmp_path / "open.onnx", height=32, width=32, **facts)  # type: ignore[arg-type]
    assert (bundle.spec.image.height, bundle.spec.latent_size) == (32, 6)
