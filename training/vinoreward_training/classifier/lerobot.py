"""LeRobot's reward classifier, read from its folder; nothing in the folder is executed.

LeRobot itself builds the image encoder with the code that ``model_name`` names on the Hub. Here it
is recognised by its weights: a ResNet of Transformers (``microsoft/resnet-18`` and others), or
HIL-SERL's ResNet-10 (``helper2424/resnet10``, LeRobot's default), rebuilt in code of this project.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vinoreward.bundles.importers.modules import load_state
from vinoreward.errors import ModelRefusedError, needed_for
from vinoreward.files import is_inside, read_json
from vinoreward.images import MAX_SIDE

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PREPROCESSOR = "classifier_preprocessor.json"
MAX_JSON = 1 << 20
IMAGE_PREFIX = "observation.image"
LABELS = ("failure", "success")
MAX_KERNEL = 32
_STAGES = "encoder.encoder.stages"
_EMBEDDER = "encoder.embedder.embedder"
_EPSILON = 1e-8
"""What LeRobot adds to the standard deviation."""
_Names = tuple[str, str]
"""Of a convolution and of its normalization."""


@dataclass(frozen=True)
class Camera:
    """One image that the classifier takes."""

    key: str
    """In LeRobot's observations, as ``observation.images.front``."""
    height: int
    width: int
    mean: tuple[float, ...]
    """Per channel, of pixels from 0 to 1."""
    std: tuple[float, ...]


@dataclass(frozen=True)
class RewardClassifier:
    """What a folder says of its classifier."""

    weights: Path
    cameras: tuple[Camera, ...]
    """In the order in which the network takes them."""
    model_name: str
    """The encoder's name on the Hub."""

    @property
    def size(self) -> tuple[int, int]:
        """Height and width of the cameras' images, below each other."""
        return sum(camera.height for camera in self.cameras), self.cameras[0].width

    def module(self) -> nn.Module:
        """Return the network for ``(N, 3, H, W)`` float32 RGB from 0 to 1, with its weights.

        It returns ``(N, 1)``, the logit of success.
        """
        with needed_for("LeRobot's reward classifier", "train"):
            import torch
        state = load_state(self.weights)
        # A stranger's file may mean gigabytes of results: shapes are tried before memory is taken.
        shapes = {name: torch.empty_like(each, device="meta") for name, each in state.items()}
        used: dict[str, None] = {}
        planned = _network(self, shapes, used)
        try:
            planned(torch.empty((1, 3, *self.size), device="meta"))
        except (RuntimeError, ValueError) as error:
            why = str(error).splitlines()[-1].strip()[:300]
            if (last := next(reversed(used))) in shapes:
                why = f"{last} has the shape {tuple(shapes[last].shape)} ({why})"
            raise _refused(self.weights, why, "the weights of one network") from error
        if unused := sorted(set(state) - set(used)):
            raise _refused(self.weights, f"no part has {unused[0]}", "the weights of one network")
        return _network(self, state, used)


def is_reward_classifier(folder: Path) -> bool:
    """Say whether a path is a folder of a LeRobot model."""
    return (Path(folder) / CONFIG).is_file()


def read_reward_classifier(folder: Path) -> RewardClassifier:
    """Read ``config.json`` and the preprocessor's files of a LeRobot reward classifier.

    Raises:
        ModelRefusedError: a file is missing or says what cannot be rebuilt here.
    """
    folder = Path(folder)
    config = _json(folder, CONFIG)
    config.setdefault("type", config.get("name"))
    for key, wanted in (("type", "reward_classifier"), ("num_classes", 2), ("model_type", "cnn")):
        if (found := config.get(key)) != wanted:
            why = f"its {key} is {found!r:.60}"
            raise _refused(folder / CONFIG, why, f"{wanted!r}; export others as ONNX")
    images, count = _images(config.get("input_features")), config.get("num_cameras")
    if not images or len(images) != count:
        why = f"it has {len(images)} images in input_features and num_cameras {count!r:.20}"
        raise _refused(folder / CONFIG, why, f"as many keys that begin with {IMAGE_PREFIX}")
    statistics = _statistics(folder)
    cameras = tuple(_camera(folder, key, each, statistics) for key, each in images.items())
    if len({camera.width for camera in cameras}) > 1:
        raise _refused(folder / CONFIG, "its images differ in width", "one width")
    weights = _inside(folder, WEIGHTS)
    return RewardClassifier(weights, cameras, str(config.get("model_name"))[:100])


def _refused(path: Path, why: str, expected: str) -> ModelRefusedError:
    return ModelRefusedError(
        f"{path}: {why}. Expected {expected}, as LeRobot saves a reward classifier."
    )


def _images(features: object) -> dict[str, dict[str, Any]]:
    """Return the images among features."""
    table = features if isinstance(features, dict) else {}
    images = {key: table[key] for key in table if key.startswith(IMAGE_PREFIX)}
    return {key: each for key, each in images.items() if isinstance(each, dict)}


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not is_inside(folder, path) or not path.is_file():
        raise _refused(path, "there is no such file in the folder", "it there")
    return path


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = _inside(folder, name)
    try:
        value = read_json(path, MAX_JSON)
        if not isinstance(value, dict):
            raise ValueError("it holds no object")
    except (OSError, ValueError) as error:
        raise _refused(path, str(error), "an object of JSON") from error
    return value


def _statistics(folder: Path) -> Mapping[str, Any]:
    """Return the tensors that images are normalised with; none if they are not."""
    path = folder / PREPROCESSOR
    steps = _json(folder, PREPROCESSOR).get("steps")
    if not isinstance(steps, list):
        raise _refused(path, "it has no steps", "a list of them")
    for step in steps:
        name = step.get("registry_name") if isinstance(step, dict) else None
        if name not in ("normalizer_processor", "device_processor"):
            why = f"it has the step {name or step!r:.60}".replace("\n", " ")
            expected = "normalizer_processor and device_processor alone; other code is not run here"
            raise _refused(path, why, expected)
        config = step.get("config")
        if name != "normalizer_processor" or not isinstance(config, dict):
            continue
        if not _images(config.get("features")):
            continue
        norms = config.get("norm_map")
        mode = norms.get("VISUAL") if isinstance(norms, dict) else None
        if mode not in (None, "IDENTITY", "MEAN_STD"):
            raise _refused(path, f"images are normalised by {mode!r:.30}", "'MEAN_STD'")
        file = step.get("state_file")
        # Without statistics LeRobot leaves an image as it is.
        if mode == "MEAN_STD" and isinstance(file, str):
            return load_state(_inside(folder, file))
        return {}
    return {}


def _camera(
    folder: Path, key: str, feature: Mapping[str, Any], statistics: Mapping[str, Any]
) -> Camera:
    shape = feature.get("shape")
    sides = shape if isinstance(shape, list) and len(shape) == 3 else [0]
    if sides[0] != 3 or not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
        raise _refused(folder / CONFIG, f"{key} has the shape {shape!r:.60}", "[3, height, width]")
    parts: list[tuple[float, ...]] = []
    for name, default in (("mean", 0.0), ("std", 1.0)):
        tensor = statistics.get(f"{key}.{name}")
        values = [default] * 3 if tensor is None else tensor.flatten().tolist()
        if len(values) != 3 or not all(abs(value) < 1e6 for value in values):
            raise _refused(folder / PREPROCESSOR, f"{key}.{name} is {values!r:.60}", "3 numbers")
        parts.append(tuple(map(float, values)))
    return Camera(key, sides[1], sides[2], parts[0], parts[1])


def _blocks(names: Collection[str]) -> Iterator[tuple[list[_Names], _Names, int]]:
    """Yield the layers, the shortcut and the stride of each residual block in a state dict."""

    def count(pattern: str) -> int:
        return next(n for n in itertools.count() if pattern.format(n) not in names)

    for stage in range(count(f"{_STAGES}.{{}}.conv1.conv.weight")):  # HIL-SERL's
        at = f"{_STAGES}.{stage}"
        layers = [(f"{at}.conv{n}.conv", f"{at}.norm{n}") for n in (1, 2)]
        yield layers, (f"{at}.shortcut.0.conv", f"{at}.shortcut.1"), 2 if stage else 1
    first = "layer.0.convolution.weight"
    for stage in range(count(f"{_STAGES}.{{}}.layers.0.{first}")):
        for block in range(count(f"{_STAGES}.{stage}.layers.{{}}.{first}")):
            at = f"{_STAGES}.{stage}.layers.{block}"
            several = range(count(f"{at}.layer.{{}}.convolution.weight"))
            stride = 2 if stage and not block else 1
            yield [_both(f"{at}.layer.{n}") for n in several], _both(f"{at}.shortcut"), stride


def _both(name: str) -> _Names:
    return f"{name}.convolution", f"{name}.normalization"


def _network(of: RewardClassifier, state: Mapping[str, Tensor], used: dict[str, None]) -> nn.Module:
    """Return the network with its weights; it adds the names of those that it asks for."""
    import torch
    from torch import nn
    from torch.nn import functional

    jax = "encoder.embedder.0.weight" in state
    stem = ("encoder.embedder.0", "encoder.embedder.1") if jax else _both(_EMBEDDER)
    if f"{stem[0]}.weight" not in state:
        raise ModelRefusedError(
            f"{WEIGHTS}: the encoder {of.model_name!r} is neither a ResNet of Transformers nor "
            "HIL-SERL's ResNet-10. Expected one of these, as LeRobot would run the code that the "
            "name stands for on the Hub, and no such code is run here; export the classifier as "
            "ONNX."
        )

    class Network(nn.Module):
        """Calls PyTorch's functions with the file's own tensors: nothing is made by their sizes."""

        def __init__(self) -> None:
            super().__init__()
            for name, tensor in state.items():
                self.register_buffer(name.replace(".", "__"), tensor.float())

        def tensors(self, name: str, *parts: str) -> Iterator[Tensor]:
            for part in parts:
                used[f"{name}.{part}"] = None
                if f"{name}.{part}" not in state:
                    raise RuntimeError(f"there is no {name}.{part}")
                yield getattr(self, f"{name}.{part}".replace(".", "__"))

        def layer(self, x: Tensor, names: _Names, stride: int, same: bool = jax) -> Tensor:
            """A convolution and its normalization."""
            convolution, norm = names
            (weight,) = self.tensors(convolution, "weight")
            side = weight.shape[-1]
            if weight.shape[2:] != (side, side) or side > MAX_KERNEL:
                raise RuntimeError("no square kernel of at most 32 places")
            x = self.padded(x, side, stride) if same else x
            has_bias = ["bias"] if f"{convolution}.bias" in state else []
            bias = next(self.tensors(convolution, *has_bias), None)
            x = functional.conv2d(x, weight, bias, stride, 0 if same else side // 2)
            weight, bias = self.tensors(norm, "weight", "bias")
            if jax:
                return functional.group_norm(x, 4, weight, bias)
            used[f"{norm}.num_batches_tracked"] = None
            mean, variance = self.tensors(norm, "running_mean", "running_var")
            return functional.batch_norm(x, mean, variance, weight, bias)

        def padded(self, x: Tensor, side: int, stride: int, value: float = 0.0) -> Tensor:
            """Pad as JAX's ``SAME``: what is odd goes to the bottom and the right."""
            high, wide = (max(0, (-(-n // stride) - 1) * stride + side - n) for n in x.shape[2:])
            top, left = high // 2, wide // 2
            return functional.pad(x, (left, wide - left, top, high - top), value=value)

        def linear(self, x: Tensor, name: str) -> Tensor:
            bias, weight = self.tensors(name, "bias", "weight")
            return functional.linear(x, weight, bias)

        def layer_norm(self, x: Tensor, name: str) -> Tensor:
            weight, bias = self.tensors(name, "weight", "bias")
            return functional.layer_norm(x, weight.shape, weight, bias)

        def encode(self, x: Tensor) -> Tensor:
            """HIL-SERL's ResNet-10 with JAX's padding, or a ResNet of Transformers."""
            x = self.layer(x, stem, 2, same=False).relu()
            x = self.padded(x, 3, 2, -torch.inf) if jax else x
            x = functional.max_pool2d(x, 3, 2, 0 if jax else 1)
            for layers, shortcut, stride in _blocks(state):
                out = x
                for number, names in enumerate(layers):
                    # Of three layers the second has the stride.
                    strided = number == (1 if len(layers) == 3 else 0)
                    out = self.layer(out.relu() if number else out, names, stride if strided else 1)
                if f"{shortcut[0]}.weight" in state:
                    x = self.layer(x, shortcut, stride)
                x = (out + x).relu()
            return x

        def forward(self, images: Tensor) -> Tensor:
            parts = []
            views = torch.split(images, [camera.height for camera in of.cameras], 2)
            for camera, view in zip(of.cameras, views, strict=True):
                mean, std = (
                    torch.tensor(values, device=images.device).reshape(1, 3, 1, 1)
                    for values in (camera.mean, camera.std)
                )
                features = self.encode((view - mean) / (std + _EPSILON))
                tail = f"encoders.{camera.key.replace('.', '_')}"
                # The kernel weighs each place of the feature map.
                (kernel,) = self.tensors(f"{tail}.1", "kernel")
                pooled = torch.einsum("nchw,chwf->ncf", features, kernel).flatten(1)
                parts.append(self.layer_norm(self.linear(pooled, f"{tail}.3"), f"{tail}.4").tanh())
            hidden = self.linear(torch.cat(parts, 1), "classifier_head.0")
            hidden = self.layer_norm(hidden, "classifier_head.2").relu()
            return self.linear(hidden, "classifier_head.4")

    return Network()
