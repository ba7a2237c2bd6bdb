"""Preparing images: the same as Pillow, nothing done where nothing is needed, clear refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageOps

from vinoreward.errors import ImageMismatchError, InputError
from vinoreward.images import ImageSpec, as_image, decode_image, prepare, read_image, tiled


def make_images(count: int, height: int, width: int, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def test_views_are_tiled_from_top_to_bottom() -> None:
    low, high = make_images(3, 4, 16), make_images(3, 8, 16, seed=1)
    both = tiled([low, high], ["wrist", "front"])
    np.testing.assert_array_equal(both[:, :4], low)
    np.testing.assert_array_equal(both[:, 4:], high)
    np.testing.assert_array_equal(tiled([low[0], high[0]], ["wrist", "front"]), both[0])


@pytest.mark.parametrize(
    "wrong", [make_images(3, 8, 15), make_images(2, 8, 16), make_images(1, 8, 16)[0]]
)
def test_views_of_another_width_or_number_are_refused(wrong: np.ndarray) -> None:
    with pytest.raises(InputError, match=r"'front' has shape .*'wrist' \(3, 4, 16, 3\).*one width"):
        tiled([make_images(3, 4, 16), wrong], ["wrist", "front"])


@pytest.mark.parametrize("shape", [(6, 8), (6, 8, 1), (1, 6, 8)])
def test_a_grey_image_becomes_rgb(shape: tuple[int, ...]) -> None:
    grey = np.arange(48, dtype=np.uint8).reshape(shape)
    rgb = np.stack([grey.reshape(6, 8)] * 3, axis=-1)
    np.testing.assert_array_equal(as_image(grey, "render()"), rgb)
    colour = make_images(1, 6, 8)[0]
    assert as_image(colour, "render()") is colour


@pytest.mark.parametrize("tensor", [False, True])
def test_a_stack_or_batch_of_one_is_an_image(tensor: bool) -> None:
    """As SERL, HIL-SERL and ManiSkill give it."""
    torch = pytest.importorskip("torch")
    one = make_images(1, 6, 8)
    given = torch.from_numpy(one) if tensor else one
    np.testing.assert_array_equal(as_image(given, "render()"), one[0])
    stacks = make_images(3, 6, 8)[:, None]
    prepared = prepare(stacks, ImageSpec(6, 8))
    np.testing.assert_array_equal(prepared, stacks[:, 0])
    assert np.shares_memory(prepared, stacks)
    with pytest.raises(InputError, match=r"\(3, 2, 6, 8, 3\)"):
        prepare(np.repeat(stacks, 2, axis=1), ImageSpec(6, 8))


@settings(max_examples=40, deadline=None)
@given(
    source=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    target=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    count=st.integers(1, 3),
)
def test_resize_is_pillows_bilinear(
    source: tuple[int, int], target: tuple[int, int], count: int
) -> None:
    batch = make_images(count, *source)
    before = batch.copy()
    prepared = prepare(batch, ImageSpec(*target, resize="pil_bilinear"))
    expected = [
        np.asarray(Image.fromarray(one).resize(target[::-1], Image.Resampling.BILINEAR))
        for one in batch
    ]
    assert prepared.dtype == np.uint8
    assert np.array_equal(prepared, np.stack(expected))
    assert np.array_equal(batch, before)


def test_crop_comes_before_resize() -> None:
    batch = make_images(1, 30, 40)
    prepared = prepare(batch, ImageSpec(10, 10, crop=(2, 4, 20, 24), resize="pil_bilinear"))
    cropped = Image.fromarray(batch[0, 2:22, 4:28])
    assert np.array_equal(prepared[0], np.asarray(cropped.resize((10, 10), Image.BILINEAR)))


def test_golden_vector_of_an_antialiased_resize() -> None:
    # A bright column among eight, made half as wide. Pillow's triangle filter reaches two pixels to
    # each side of an output's centre, with weights 1/8, 3/8, 3/8, 1/8; without antialiasing the
    # bright column would give 0, 120 (half of it) and 0.
    batch = np.zeros((1, 2, 8, 3), dtype=np.uint8)
    batch[:, :, 3] = 240
    row = prepare(batch, ImageSpec(2, 4, resize="pil_bilinear"))[0, 0, :, 0]
    assert row.tolist() == [0, 90, 30, 0]


@pytest.mark.parametrize(
    ("images", "remedy"),
    [
        (np.zeros((1, 12, 16, 3)), r"float64.*uint8.*255"),
        (np.zeros((1, 12, 16, 4), np.uint8), "alpha"),
        (np.zeros((1, 3, 12, 16), np.uint8), "moveaxis"),
        (np.zeros((12, 16, 1), np.uint8), "repeat"),
        (np.zeros((12, 16), np.uint8), "camera"),
        (np.zeros((0, 12, 16, 3), np.uint8), "N at least 1"),
    ],
    ids=lambda each: str(getattr(each, "shape", "")),
)
def test_wrong_images_are_refused_with_a_remedy(images: np.ndarray, remedy: str) -> None:
    with pytest.raises(InputError, match=remedy):
        prepare(images, ImageSpec(12, 16))


def test_an_image_of_another_size_is_refused() -> None:
    with pytest.raises(ImageMismatchError, match=r"14 x 16.*Expected 12 x 16.*image_size"):
        prepare(make_images(1, 14, 16), ImageSpec(12, 16))
    with pytest.raises(ImageMismatchError, match="at least 17 x 23"):
        prepare(make_images(1, 16, 40), ImageSpec(12, 16, crop=(5, 7, 12, 16)))


# --- files -------------------------------------------------------------------------------------

SCENE = np.array([[[250, 0, 0], [0, 250, 0], [0, 0, 250]], [[9, 9, 9], [90, 90, 90], [200] * 3]])


@pytest.mark.parametrize(
    ("orientation", "kind"), [*((each, "JPEG") for each in range(1, 9)), (6, "PNG"), (3, "WEBP")]
)
def test_a_photograph_is_upright_however_the_camera_was_held(
    tmp_path: Path, orientation: int, kind: str
) -> None:
    scene = np.repeat(np.repeat(SCENE.astype(np.uint8), 16, axis=0), 16, axis=1)
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(scene).save(tmp_path / "x", format=kind, exif=exif, quality=95)
    with Image.open(tmp_path / "x", formats=(kind,)) as opened:
        expected = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
    found = read_image(tmp_path / "x")
    np.testing.assert_array_equal(found, expected)
    assert found.shape == ((48, 32, 3) if orientation > 4 else (32, 48, 3))


def test_sixteen_bits_of_grey_are_scaled(tmp_path: Path) -> None:
    grey = np.linspace(0, 65535, 12 * 16).reshape(12, 16).astype(np.uint16)
    Image.fromarray(grey).save(tmp_path / "x.png")
    expected = np.repeat((grey // 256).astype(np.uint8)[..., None], 3, axis=-1)
    np.testing.assert_array_equal(read_image(tmp_path / "x.png"), expected)


@pytest.mark.parametrize("mode", ["RGBA", "P", "RGB"])
def test_colours_hidden_under_transparency_do_not_appear(tmp_path: Path, mode: str) -> None:
    image = Image.fromarray(SCENE.astype(np.uint8)).convert(mode)
    options = {} if mode.endswith("A") else {"transparency": image.getpixel((0, 0))}
    image.save(tmp_path / "opaque.png")
    shown = np.asarray(image.convert("RGB"))
    np.testing.assert_array_equal(read_image(tmp_path / "opaque.png"), shown)
    if mode.endswith("A"):
        image.putalpha(Image.fromarray(np.array([[255] * 3, [255, 255, 7]], np.uint8)))
    image.save(tmp_path / "x.png", **options)
    with pytest.raises(InputError, match=r"x\.png cannot be read .*: it is transparent in places"):
        read_image(tmp_path / "x.png")
    with pytest.raises(InputError, match="transparent in places"):
        decode_image((tmp_path / "x.png").read_bytes(), "x")
