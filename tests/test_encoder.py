"""Encoders: every backend, both network shapes, and other people's models."""

from __future__ import annotations

import dataclasses
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image
from torch import Tensor, nn
from toy_environments import LATENT, save_toy_bundle, save_toy_encoder, toy_latents

from vinoreward import Classifier, Encoder
from vinoreward.backends.export import export_onnx
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.bundles import latents
from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.save import add_int8, save_bundle
from vinoreward.bundles.schema import BundleSpec, Encoding, Picture, Quantization
from vinoreward.encoders.vae import ARCHITECTURES, build_encoder
from vinoreward.errors import (
    BundleError,
    BundleParityError,
    ConfigError,
    InputError,
    ModelCorruptError,
    ModelNotFoundError,
    PictureMismatchError,
)

HEIGHT, WIDTH, SIZE = 32, 40, 5
BACKENDS = ("openvino", "onnxruntime", "torch")
MEAN, STD = (0.5, 0.4, 0.3), (0.5, 0.6, 0.7)


def pictures(count: int, seed: int = 0) -> np.ndarray:
    """Smooth colourful pictures, so that a colour swap matters."""
    small = np.random.default_rng(seed).integers(0, 256, (count, 4, 5, 3))
    return small.repeat(8, axis=1).repeat(8, axis=2).astype(np.uint8)


def planes(images: np.ndarray, mean: Any = MEAN, std: Any = STD) -> Tensor:
    """What the bare network takes, by numpy."""
    floats = (images.astype(np.float64) / 255 - np.array(mean)) / np.array(std)
    return torch.from_numpy(floats.transpose(0, 3, 1, 2).astype(np.float32))


@pytest.fixture(scope="module", params=ARCHITECTURES)
def made(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Bundle, nn.Module]:
    """A saved bundle with a random network of ours, and the network."""
    folder = tmp_path_factory.mktemp(request.param)
    torch.manual_seed(0)
    network = build_encoder(request.param, HEIGHT, WIDTH, 2 * SIZE).eval()
    export_onnx(WithPreprocess(network, MEAN, STD), folder / "m.onnx", HEIGHT, WIDTH)
    safetensors.torch.save_file(network.state_dict(), folder / "m.safetensors")
    golden = pictures(4, seed=9)
    with torch.no_grad():
        outputs = network(planes(golden)).numpy()
    spec = BundleSpec(
        name=request.param,
        kind="encoder",
        labels=(),
        latent_size=SIZE,
        encoding=Encoding(low=(-9,) * SIZE, high=(9,) * SIZE, std=(0.01,) * SIZE),
        picture=Picture(height=HEIGHT, width=WIDTH, mean=MEAN, std=STD),
        architecture=request.param,
    )
    files: dict[str, Path | bytes] = {
        "model.onnx": folder / "m.onnx",
        "model.safetensors": folder / "m.safetensors",
        "decoder.safetensors": folder / "m.safetensors",
    }
    return save_bundle(folder / "bundle", spec, files, golden, outputs), network


# --- ours, on every backend ----------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_gives_the_same(made: tuple[Bundle, nn.Module], backend: str) -> None:
    bundle, network = made
    images = pictures(7)
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
        mean, std = encoder.posterior(images)
        np.testing.assert_allclose(mean, wanted[:, :SIZE], atol=1e-3)
        assert std is not None
        np.testing.assert_allclose(std, np.exp(wanted[:, SIZE:] / 2), rtol=1e-3)
        for count in (1, 3):
            np.testing.assert_allclose(encoder.encode(images[:count]), found[:count], atol=1e-4)
        assert encoder.encode(images[:0]).shape == (0, SIZE)


@pytest.mark.parametrize("backend", BACKENDS)
def test_another_process_builds_its_own(made: tuple[Bundle, nn.Module], backend: str) -> None:
    encoder = Encoder(made[0], backend=backend)
    images = pictures(2)
    found = encoder.encode(images)
    twin = pickle.loads(pickle.dumps(encoder))
    encoder.close()
    encoder.close()
    np.testing.assert_array_equal(twin.encode(images), found)
    with pytest.raises(ConfigError, match="closed"):
        encoder.encode(images)
    twin.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_golden_frames_notice_another_network(
    made: tuple[Bundle, nn.Module], backend: str, tmp_path: Path
) -> None:
    bundle, _ = made
    golden = bundle.golden
    with pytest.raises(BundleParityError, match="red and blue"):
        swapped = np.ascontiguousarray(golden.images[..., ::-1])
        files = {name: bundle.path / name for name in bundle.spec.files if name != "golden.npz"}
        other = save_bundle(tmp_path / "swapped", bundle.spec, files, swapped, golden.logits)
        Encoder(other, backend=backend).encode(pictures(1))
    off = golden.logits.copy()
    off[0, 0] += 0.005  # half of the posterior's standard deviation
    other = save_bundle(tmp_path / "off", bundle.spec, files, golden.images, off)
    with pytest.raises(BundleParityError, match="standard deviation"):
        Encoder(other, backend=backend).encode(pictures(1))


def test_samples_have_the_posteriors_moments(made: tuple[Bundle, nn.Module]) -> None:
    with Encoder(made[0]) as encoder:
        one = pictures(1)
        mean, std = encoder.posterior(one)
        assert std is not None
        random = np.random.default_rng(3)
        many = encoder.sample(one.repeat(4000, axis=0), random)
        np.testing.assert_allclose(many.mean(0), mean[0], atol=6 * std.max() / np.sqrt(4000))
        np.testing.assert_allclose(many.std(0), std[0], rtol=0.1)
        again = encoder.sample(one.repeat(4000, axis=0), np.random.default_rng(3))
        np.testing.assert_array_equal(many, again)


def test_wrong_pictures_are_errors(made: tuple[Bundle, nn.Module]) -> None:
    with Encoder(made[0]) as encoder:
        good = pictures(2)
        with pytest.raises(InputError, match="uint8"):
            encoder.encode((good / 255).astype(np.float32))
        with pytest.raises(InputError, match="moveaxis"):
            encoder.encode(good.transpose(0, 3, 1, 2))
        with pytest.raises(PictureMismatchError, match="32 x 40"):
            encoder.encode(good[:, :-1])


# --- the toy encoder: bounds, plain autoencoders, kinds ------------------------------------------


def test_a_plain_autoencoder_has_no_posterior(tmp_path: Path) -> None:
    bundle = save_toy_encoder(tmp_path / "plain", posterior=False)
    images = np.random.default_rng(0).integers(0, 256, (3, 6, 8, 3)).astype(np.uint8)
    with Encoder(bundle) as encoder:
        np.testing.assert_allclose(encoder.encode(images), toy_latents(images, False), atol=1e-4)
        assert encoder.posterior(images)[1] is None
        with pytest.raises(ConfigError, match="posterior"):
            encoder.sample(images, np.random.default_rng(0))


def test_vectors_are_clipped_to_the_stated_bounds(tmp_path: Path) -> None:
    bundle = save_toy_encoder(tmp_path / "narrow", bound=0.5)
    images = np.random.default_rng(0).integers(0, 256, (9, 6, 8, 3)).astype(np.uint8)
    means = toy_latents(images)[:, :LATENT]
    with Encoder(bundle) as encoder:
        assert encoder.low.tolist() == [-0.5] * 3 and encoder.high.tolist() == [0.5] * 3
        np.testing.assert_allclose(encoder.encode(images), means.clip(-0.5, 0.5), atol=1e-4)
        np.testing.assert_allclose(encoder.posterior(images)[0], means, atol=1e-4)
        assert np.abs(encoder.sample(images, np.random.default_rng(0))).max() <= 0.5


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
        both = add_int8(bundle, model, gate, golden.logits + np.float32(1e-3))
        with Encoder(both) as encoder:
            assert encoder.precision == precision
            encoder.encode(golden.images)
        card = (both.path / "README.md").read_text()
        assert "frames whose vector moves" in card and "EncodedObservation" in card
    far = add_int8(bundle, model, dataclasses.replace(gate, passed=True), golden.logits + 3)
    with pytest.raises(BundleParityError, match="range"):
        Encoder(far).encode(golden.images)


def test_distances_are_in_units_of_the_posterior() -> None:
    encoding = Encoding(low=(-5, -5), high=(5, 5), std=(0.5, 2.0))
    zeros = np.zeros((2, 4), np.float32)
    found = np.array([[0.5, 0, 9, 9], [0.25, 3, 9, 9]], np.float32)
    np.testing.assert_allclose(latents.moved(found, zeros, encoding, zeros), [1.0, 1.5])
    plain = Encoding(low=(-5,), high=(5,), posterior=False)
    seen = np.array([[-1.0], [1.0]], np.float32)
    np.testing.assert_allclose(latents.moved(seen + 0.2, seen, plain, seen), [2.0, 2.0], rtol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"low": (0.0,), "high": (0.0,)}, "low below high"),
        ({"low": (0.0,), "high": (1.0, 2.0)}, "every dimension"),
        ({"low": (0.0,), "high": (1.0,), "std": (0.0,)}, "positive"),
        ({"low": (float("nan"),), "high": (1.0,)}, "encoding.low"),
        ({"low": (0.0,), "high": (1.0,), "posterior": 1}, "true or false"),
        ({"low": (0.0,), "high": (1.0,), "posterior": False, "log_variance_output": 1}, "0 to 99"),
    ],
)
def test_an_encoding_is_checked(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises(BundleError, match=message):
        Encoding(**wrong)


def test_the_description_says_what_the_vectors_are(tmp_path: Path) -> None:
    spec = save_toy_encoder(tmp_path / "toy").spec
    assert (spec.width, spec.latent_size) == (2 * LATENT, LATENT)
    assert BundleSpec.from_dict(spec.to_dict()) == spec
    for changes in ({"encoding": None}, {"latent_size": 4}):
        with pytest.raises(BundleError, match="encoding"):
            BundleSpec.from_dict({**spec.to_dict(), **changes})
    written = spec.to_dict()
    with pytest.raises(BundleError, match="encoding"):
        BundleSpec.from_dict({**written, "encoding": {**written["encoding"], "sigma": 1}})


# --- other people's ------------------------------------------------------------------------------


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
        dynamic_shapes=({0: torch.export.Dim("batch")},),
        dynamo=True,
        external_data=False,
        verbose=False,
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


NORMALISED: dict[str, Any] = {"mean": (0.5,) * 3, "std": (0.5,) * 3}
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


@pytest.mark.parametrize("backend", ["openvino", "onnxruntime"])
@pytest.mark.parametrize("heads", SHAPES)
def test_their_encoder_becomes_a_bundle(
    onnx_files: dict[str, Path], heads: str, backend: str, tmp_path: Path
) -> None:
    images = pictures(5)
    wanted = their_answer(heads, images)
    bundle = Bundle.from_encoder(
        onnx_files[heads],
        **NORMALISED,
        **SHAPES[heads],
        golden=(images[0], wanted[0, :SIZE]),
    )
    for one in (bundle, bundle.save(tmp_path / heads, images[:2])):
        with Encoder(one, backend=backend) as encoder:
            np.testing.assert_allclose(encoder.encode(images), wanted[:, :SIZE], atol=1e-4)
            _, std = encoder.posterior(images)
            if heads == "one":
                assert std is None
            else:
                assert std is not None
                np.testing.assert_allclose(std, np.exp(wanted[:, SIZE:] / 2), rtol=1e-3)


def test_outputs_can_be_named_in_the_other_order(onnx_files: dict[str, Path]) -> None:
    images = pictures(2)
    wanted = their_answer("two", images)
    for outputs, columns in (
        (("logvar", "mu"), [*range(SIZE, 2 * SIZE), *range(SIZE)]),
        ((0, 1), [*range(2 * SIZE)]),
    ):
        bundle = Bundle.from_encoder(onnx_files["two"], **NORMALISED, outputs=outputs)
        for name in ("openvino", "onnxruntime"):
            with bundle.backend(name) as backend:
                np.testing.assert_allclose(backend.infer(images), wanted[:, columns], atol=1e-4)
    only = Bundle.from_encoder(onnx_files["two"], **NORMALISED, outputs="mu", posterior=False)
    with Encoder(only) as encoder:
        np.testing.assert_allclose(encoder.encode(images), wanted[:, :SIZE], atol=1e-4)


def test_an_openvino_model_works_too(onnx_files: dict[str, Path], tmp_path: Path) -> None:
    from vinoreward.backends.telemetry import import_openvino

    ov = import_openvino()
    ov.save_model(ov.Core().read_model(onnx_files["two"]), tmp_path / "m.xml", False)
    images = pictures(3)
    bundle = Bundle.from_encoder(tmp_path / "m.xml", **NORMALISED)
    saved = bundle.save(tmp_path / "saved", images)
    with Encoder(saved) as encoder:
        wanted = their_answer("two", images)[:, :SIZE]
        np.testing.assert_allclose(encoder.encode(images), wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"color_order": "BGR"}, "color_order='RGB'"),
        ({"mean": (0, 0, 0), "std": (1, 1, 1)}, "mean 0.5 and std 0.5"),
        ({"mean": (0, 0, 0), "std": (1, 1, 1), "color_order": "BGR"}, "0.5 and color_order='RGB'"),
        ({"scale": 1.0}, "scale=255"),
        ({"mean": (0.1, 0.2, 0.3)}, "scale=255"),
    ],
)
def test_a_golden_frame_finds_the_wrong_description(
    onnx_files: dict[str, Path], wrong: dict[str, Any], said: str, tmp_path: Path
) -> None:
    Image.fromarray(pictures(1)[0]).save(tmp_path / "frame.png")
    np.save(tmp_path / "z.npy", their_answer("two", pictures(1))[0, :SIZE])
    golden = (tmp_path / "frame.png", tmp_path / "z.npy")
    Bundle.from_encoder(onnx_files["two"], **NORMALISED, golden=golden)
    with pytest.raises(BundleParityError, match=said):
        Bundle.from_encoder(onnx_files["two"], **{**NORMALISED, **wrong}, golden=golden)


def test_a_golden_frame_of_another_kind_is_an_error(
    onnx_files: dict[str, Path], tmp_path: Path
) -> None:
    path, image = onnx_files["two"], pictures(1)[0]
    vector = their_answer("two", image[None])[0]
    with pytest.raises(PictureMismatchError, match="32 x 40"):
        Bundle.from_encoder(path, **NORMALISED, golden=(image[1:], vector))
    with pytest.raises(InputError, match="3 numbers"):
        Bundle.from_encoder(path, **NORMALISED, golden=(image, vector[:3]))
    with pytest.raises(InputError, match="cannot be read"):
        Bundle.from_encoder(path, **NORMALISED, golden=(tmp_path / "none.png", vector))
    with pytest.raises(BundleParityError, match="no other"):
        Bundle.from_encoder(path, **NORMALISED, golden=(image, vector[::-1]))


@pytest.mark.parametrize(
    ("heads", "options", "message"),
    [
        ("one", {}, "posterior=False"),
        ("one", {"latent_size": 4}, "latent_size= that fits"),
        ("one", {"posterior": True}, "twice"),
        ("two", {"posterior": False}, "as many log variances"),
        ("two", {"latent_size": 7}, "twice"),
        ("two", {"outputs": "sigma"}, "mu, logvar"),
        ("two", {"outputs": ("mu", "mu")}, "different"),
        ("two", {"low": (0.0, 1.0)}, "every dimension"),
        ("two", {"low": 3.0, "high": 2.0}, "low below high"),
        ("two", {"mean": None}, "mean="),
        ("two", {"latent_std": (0.0,) * SIZE}, "positive"),
    ],
)
def test_facts_that_are_missing_or_contradict(
    onnx_files: dict[str, Path], heads: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Bundle.from_encoder(onnx_files[heads], **{**NORMALISED, **options})


@pytest.mark.parametrize("color_order", ["RGB", "BGR"])
@pytest.mark.parametrize("heads", SHAPES)
def test_their_module_becomes_a_bundle(tmp_path: Path, heads: str, color_order: Any) -> None:
    module, images = theirs(heads), pictures(3)
    mean, std = (0.2, 0.3, 0.4), (0.5, 0.6, 0.7)
    torch.save(module.state_dict(), tmp_path / "weights.pt")
    seen = images if color_order == "RGB" else images[..., ::-1]
    with torch.no_grad():
        found = module(planes(seen, mean, std))
    wanted = found[0] if isinstance(found, tuple) else found[:, :SIZE]
    fresh = TheirVae(heads)
    bundle = Bundle.from_encoder_module(
        fresh,
        tmp_path / "weights.pt",
        tmp_path / "net.onnx",
        height=HEIGHT,
        width=WIDTH,
        mean=mean,
        std=std,
        color_order=color_order,
        **SHAPES[heads],
        golden=(images[0], wanted[0].numpy()),
    )
    assert fresh.training, "the caller's module is left as it was"
    assert bundle.spec.picture.color_order == color_order and bundle.spec.picture.in_graph
    saved = bundle.save(tmp_path / "saved", images)
    for backend in ("openvino", "onnxruntime"):
        with Encoder(saved, backend=backend) as encoder:
            np.testing.assert_allclose(encoder.encode(images), wanted.numpy(), atol=1e-4)


def test_a_module_with_the_wrong_colour_order_is_found_out(tmp_path: Path) -> None:
    module, images = theirs("two"), pictures(1)
    torch.save({"state_dict": module.state_dict()}, tmp_path / "weights.pt")
    with torch.no_grad():
        wanted = module(planes(images, 0.5, 0.5))[0][0].numpy()
    with pytest.raises(BundleParityError, match="other colour order"):
        Bundle.from_encoder_module(
            module,
            tmp_path / "weights.pt",
            tmp_path / "net.onnx",
            height=HEIGHT,
            width=WIDTH,
            **NORMALISED,
            color_order="BGR",
            golden=(images[0], wanted),
        )


class Evil:
    """What a pickle may do when it is loaded."""

    def __reduce__(self) -> Any:
        return (print, ("executed",))


def test_weights_are_never_executed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, shape = theirs("two"), {"height": HEIGHT, "width": WIDTH}
    target = tmp_path / "net.onnx"
    torch.save({"body": Evil()}, tmp_path / "evil.pt")
    torch.save(module, tmp_path / "whole.pt")
    torch.save({"fc_mu.weight": torch.zeros(1)}, tmp_path / "other.pt")
    (tmp_path / "text.pt").write_text("no weights")
    (tmp_path / "broken.safetensors").write_bytes(b"no weights")
    for name in ("evil.pt", "whole.pt", "other.pt", "text.pt", "broken.safetensors"):
        with pytest.raises(ModelCorruptError):
            Bundle.from_encoder_module(module, tmp_path / name, target, **shape)
    with pytest.raises(ModelNotFoundError):
        Bundle.from_encoder_module(module, tmp_path / "none.pt", target, **shape)
    assert "executed" not in capsys.readouterr().out
    assert not target.exists()


def test_a_module_that_is_no_encoder_is_an_error(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Conv2d(3, 2, 3))
    safetensors.torch.save_file(module.state_dict(), tmp_path / "w.safetensors")
    with pytest.raises(ConfigError, match=r"\(2, 2, 30, 38\)"):
        Bundle.from_encoder_module(
            module, tmp_path / "w.safetensors", tmp_path / "n.onnx", height=HEIGHT, width=WIDTH
        )


def test_the_names_are_there_and_light() -> None:
    code = (
        "import sys, vinoreward\n"
        "vinoreward.Encoder, vinoreward.EncodedObservation, vinoreward.VectorEncodedObservation\n"
        "heavy = {'torch', 'openvino', 'onnx', 'stable_baselines3'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "vinoreward.VecEncodedObservation\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_shipped_encoder_reads_where_the_gripper_is() -> None:
    import vinoreward
    from vinoreward_envs.camera import CameraSpec
    from vinoreward_envs.scene import HoverScene

    scene = HoverScene(camera=CameraSpec())
    scene.place_object((0.6, 0.1))
    pictures, places = [], []
    for x in np.linspace(0.42, 0.68, 10):
        for y in np.linspace(-0.35, 0.35, 14):
            scene.move_gripper((float(x), float(y)))
            pictures.append(scene.render())
            places.append(scene.gripper[:2])
    scene.close()
    with vinoreward.Encoder("panda-hover-encoder") as encoder:
        latents = encoder.encode(np.stack(pictures))
    columns = np.concatenate([latents, np.ones((len(latents), 1))], axis=1)
    even = np.arange(len(latents)) % 2 == 0
    fit = np.linalg.lstsq(columns[even], np.array(places)[even], rcond=1e-3)[0]
    error = np.linalg.norm(columns[~even] @ fit - np.array(places)[~even], axis=1)
    assert error.mean() < 0.02
