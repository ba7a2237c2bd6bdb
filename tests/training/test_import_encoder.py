"""Encoders trained elsewhere become bundles, and what was believed of them is checked."""

from __future__ import annotations

import dataclasses
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from vinoreward.bundles.bundle import Bundle
from vinoreward.entry_points import named_function
from vinoreward.errors import BundleParityError, ConfigError, ImageMismatchError, VinorewardError
from vinoreward_training.configs import ImportEncoderConfig
from vinoreward_training.encoder import import_encoder
from vinoreward_training.encoder.import_encoder import FACTORY

# The exporter that gives two outputs a name is an old one.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

SIZE = (32, 40)
LATENT = 3
MODULE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, both=True):
        super().__init__()
        self.both = both
        self.features = nn.Sequential(nn.Conv2d(3, 4, 8, 8), nn.Tanh(), nn.Flatten())
        self.mu = nn.Linear(4 * 4 * 5, 3)
        self.logvar = nn.Linear(4 * 4 * 5, 3)

    def forward(self, images):
        found = self.features(images)
        return (self.mu(found), self.logvar(found)) if self.both else self.mu(found)


def variational():
    return Net()


def plain():
    return Net(both=False)
"""


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with nets.py, weights, ONNX files, images and one image's latent."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "nets.py").write_text(MODULE)
    torch.manual_seed(0)
    net: nn.Module = named_function(f"{folder / 'nets.py'}:variational", "module", FACTORY)().eval()
    torch.save(net.state_dict(), folder / "weights.pt")
    random = np.random.default_rng(0)
    images = random.integers(0, 256, (80, *SIZE, 3), dtype=np.uint8)
    images[..., 0] //= 4
    (folder / "images").mkdir()
    for index, image in enumerate(images):
        Image.fromarray(image).save(folder / "images" / f"{index:03}.png")
    planes = torch.from_numpy(images[:1]).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        np.save(folder / "latent.npy", net(planes)[0].numpy()[0])
    Image.fromarray(images[0]).save(folder / "golden.png")
    example = torch.zeros(2, 3, *SIZE)
    for name, outputs in (("variational", ["mu", "logvar"]), ("plain", ["z"])):
        module = named_function(f"{folder / 'nets.py'}:{name}", "module", FACTORY)().eval()
        module.load_state_dict(net.state_dict())
        torch.onnx.export(
            module,
            (example,),
            str(folder / f"{name}.onnx"),
            dynamo=False,
            input_names=["images"],
            output_names=outputs,
            dynamic_axes={"images": {0: "batch"}},
        )
    return folder


def config_of(foreign: Path, out: Path, model: str, **changes: object) -> ImportEncoderConfig:
    return ImportEncoderConfig(  # type: ignore[arg-type]
        **{
            "model": foreign / model,
            "images": foreign / "images",
            "out": out,
            "golden": foreign / "golden.png",
            "expected": foreign / "latent.npy",
            "size": SIZE,
            **changes,
        }
    )


@pytest.mark.parametrize(
    ("model", "changes", "posterior"),
    [
        ("variational.onnx", {}, True),
        ("plain.onnx", {"posterior": False}, False),
        ("weights.pt", {"module": "nets.py:variational"}, True),
    ],
)
def test_every_form_becomes_a_bundle(
    foreign: Path, tmp_path: Path, model: str, changes: dict[str, object], posterior: bool
) -> None:
    if "module" in changes:
        changes = changes | {"module": f"{foreign}/{changes['module']}"}
    assert import_encoder.run(config_of(foreign, tmp_path / "bundle", model, **changes)) == 0
    bundle = Bundle.load(tmp_path / "bundle")
    encoding = bundle.spec.encoding
    assert encoding is not None and encoding.posterior is posterior
    assert (encoding.std is not None) is posterior
    assert bundle.spec.latent_size == LATENT
    with bundle.backend("openvino") as backend:
        found = backend.infer(bundle.golden.images)[:, :LATENT]
    low, high = np.array(encoding.low), np.array(encoding.high)
    assert (found > low).all() and (found < high).all()
    assert (high - low < 100).all()


def test_a_golden_image_finds_out_what_is_wrong(foreign: Path, tmp_path: Path) -> None:
    with pytest.raises(BundleParityError, match=r"(?i)rgb|red and blue|colou?r"):
        import_encoder.run(
            config_of(foreign, tmp_path / "bundle", "variational.onnx", color_order="BGR")
        )
    with pytest.raises(BundleParityError):
        import_encoder.run(config_of(foreign, tmp_path / "bundle", "variational.onnx", scale=1.0))
    assert not (tmp_path / "bundle").exists()


def test_half_of_a_golden_frame_is_refused(foreign: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Expected both"):
        import_encoder.run(
            config_of(foreign, tmp_path / "bundle", "variational.onnx", expected=None)
        )


def test_a_state_dict_needs_its_module(foreign: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is a state dict"):
        import_encoder.run(config_of(foreign, tmp_path / "bundle", "weights.pt"))


@pytest.mark.parametrize("text", ["nets", ":x", "nowhere_at_all:make", "json:nothing", "math:pi"])
def test_what_names_no_function_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Expected"):
        named_function(text, "module", FACTORY)


@pytest.fixture(scope="module")
def wide(foreign: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images with 11 columns of noise on their left and 5 rows of it above."""
    folder = tmp_path_factory.mktemp("wide")
    random = np.random.default_rng(1)
    for path in sorted((foreign / "images").glob("*.png")):
        wider = random.integers(0, 256, (SIZE[0] + 5, SIZE[1] + 11, 3), dtype=np.uint8)
        wider[5:, 11:] = np.asarray(Image.open(path))
        Image.fromarray(wider).save(folder / path.name)
    return folder


def test_a_crop_is_part_of_the_bundle(foreign: Path, wide: Path, tmp_path: Path) -> None:
    crop = (5, 11, *SIZE)
    changes = {"images": wide, "golden": wide / "000.png", "crop": crop}
    config = config_of(foreign, tmp_path / "bundle", "variational.onnx", **changes)
    assert import_encoder.run(config) == 0
    bundle = Bundle.load(tmp_path / "bundle")
    assert bundle.spec.image.crop == crop
    whole = np.asarray(Image.open(wide / "003.png"))
    np.testing.assert_array_equal(bundle.prepare(whole)[0], whole[5:, 11:])
    # Measured on the same images as without a crop.
    plain = config_of(foreign, tmp_path / "plain", "variational.onnx")
    assert import_encoder.run(plain) == 0
    assert Bundle.load(tmp_path / "plain").spec.encoding == bundle.spec.encoding


def test_images_are_not_squeezed_unasked(foreign: Path, wide: Path, tmp_path: Path) -> None:
    changes = {"images": wide, "golden": None, "expected": None}
    squeezed = config_of(foreign, tmp_path / "bundle", "variational.onnx", **changes)
    with pytest.raises(ImageMismatchError, match=r"37 x 51.*--crop 0 2 37 46.*--stretch"):
        import_encoder.run(squeezed)
    for name, more in (("cut", {"crop": (0, 2, 37, 46)}), ("stretched", {"stretch": True})):
        config = config_of(foreign, tmp_path / name, "variational.onnx", **changes, **more)
        assert import_encoder.run(config) == 0
    with pytest.raises(ImageMismatchError, match=r"crop of 20 x 40.*--crop 2 7 20 25"):
        import_encoder.run(
            config_of(
                foreign, tmp_path / "crop", "variational.onnx", **changes, crop=(2, 0, 20, 40)
            )
        )


@pytest.mark.parametrize(
    ("model", "changes", "named"),
    [
        ("plain.onnx", {}, ("--posterior", "--no-posterior", "--latent")),
        ("plain.onnx", {"latent": 7, "posterior": False}, ("--latent", "--no-posterior")),
        ("variational.onnx", {"outputs": ("mu", "nothing")}, ("--outputs",)),
        ("variational.onnx", {"outputs": ("mu", "mu")}, ("--outputs",)),
        ("variational.onnx", {"posterior": False}, ("--outputs", "--no-posterior")),
        ("variational.onnx", {"color_order": "BGR"}, ("--color-order",)),
        ("variational.onnx", {"scale": 1.0}, ("--scale", "--mean", "--std")),
        ("weights.pt", {"module": "nets.py:variational", "size": (48, 48)}, ("--size",)),
        ("variational.onnx", {"images": "few"}, ("--images",)),
        ("variational.onnx", {"images": "none"}, ("--images",)),
    ],
)
def test_messages_name_options_of_this_command(
    foreign: Path, tmp_path: Path, model: str, changes: dict[str, Any], named: tuple[str, ...]
) -> None:
    if "module" in changes:
        changes = changes | {"module": f"{foreign}/{changes['module']}"}
    if "images" in changes:
        folder = tmp_path / str(changes["images"])
        folder.mkdir()
        if folder.name == "few":
            shutil.copy(foreign / "golden.png", folder)
        changes = changes | {"images": folder}
    with pytest.raises(VinorewardError) as caught:
        import_encoder.run(config_of(foreign, tmp_path / "bundle", model, **changes))
    said = str(caught.value)
    found = set(re.findall(r"--[a-z-]+", said))
    fields = [field.name.replace("_", "-") for field in dataclasses.fields(ImportEncoderConfig)]
    assert set(named) <= found <= {f"--{sign}{name}" for sign in ("", "no-") for name in fields}
    assert not re.search(r"\b[a-z_]+=|Bundle\.", said), said
