"""LeRobot's reward classifier, read from its folder; nothing in the folder is executed.

LeRobot itself builds the image encoder with the code that ``model_name`` names on the Hub. Here it
is recognised by its weights: a ResNet of Transformers (``microsoft/resnet-18`` and others), or
HIL-SERL's ResNet-10 (``helper2424/resnet10``, LeRobot's default), rebuilt in code of this project.
"""

from __future__ import annotations

from collections.abc import Mapping
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
STAGES = "encoder.encoder.stages"
Names = tuple[str, str]
"""Of a convolution and of its normalization."""
LABELS = ("failure", "success")
MAX_KERNEL = 32
_EPSILON = 1e-8
"""What LeRobot adds to the standard deviation."""


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
        planned, used = _network(self.cameras, shapes, self.model_name)
        try:
            planned(torch.empty((1, 3, *self.size), device="meta"))
        except (RuntimeError, ValueError) as error:
            why = str(error).splitlines()[-1].strip()[:300]
            if (last := list(used)[-1]) in shapes:
                why = f"{last} has the shape {tuple(shapes[last].shape)} ({why})"
            raise _refused(self.weights, why, "the weights of one network") from error
        if unused := sorted(set(state) - set(used)):
            raise _refused(self.weights, f"no part has {unused[0]}", "the weights of one network")
        return _network(self.cameras, state, self.model_name)[0]


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
    features = _tables(config.get("input_features"))
    keys = [key for key in features if key.startswith(IMAGE_PREFIX)]
    if not keys or len(keys) != config.get("num_cameras"):
        count = f"num_cameras {config.get('num_cameras')!r:.20}"
        why = f"it has {len(keys)} images in input_features and {count}"
        raise _refused(folder / CONFIG, why, f"as many keys that begin with {IMAGE_PREFIX}")
    statistics = _statistics(folder)
    cameras = tuple(_camera(folder, key, features[key], statistics) for key in keys)
    if len({camera.width for camera in cameras}) > 1:
        raise _refused(folder / CONFIG, "its images differ in width", "one width")
    weights = _inside(folder, WEIGHTS)
    return RewardClassifier(weights, cameras, str(config.get("model_name"))[:100])


def _refused(path: Path, why: str, expected: str) -> ModelRefusedError:
    return ModelRefusedError(
        f"{path}: {why}. Expected {expected}, as LeRobot saves a reward classifier."
    )


def _tables(value: object) -> dict[str, dict[str, Any]]:
    """Return a table of tables, without what else it holds."""
    table = value if isinstance(value, dict) else {}
    return {key: each for key, each in table.items() if isinstance(each, dict)}


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
        if not any(key.startswith(IMAGE_PREFIX) for key in _tables(config.get("features"))):
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


def _network(
    cameras: tuple[Camera, ...], state: Mapping[str, Tensor], model_name: str
) -> tuple[nn.Module, dict[str, None]]:
    """Return the network with its weights, and the names that it will have asked for once run."""
    import torch
    from torch import nn
    from torch.nn import functional

    used: dict[str, None] = {}
    jax = "encoder.embedder.0.weight" in state
    if not jax and "encoder.embedder.embedder.convolution.weight" not in state:
        raise ModelRefusedError(
            f"{WEIGHTS}: the encoder {model_name!r} is neither a ResNet of Transformers nor "
            "HIL-SERL's ResNet-10. Expected one of these, as LeRobot would run the code that the "
            "name stands for on the Hub, and no such code is run here; export the classifier as "
            "ONNX."
        )

    def both(name: str) -> Names:
        return f"{name}.convolution", f"{name}.normalization"

    def count(pattern: str) -> int:
        """Return how many parts there are, counted from 0, of which the file has the tensor."""
        number = 0
        while pattern.format(number) in state:
            number += 1
        return number

    class Network(nn.Module):
        """Calls PyTorch's functions with the file's own tensors: nothing is made by their sizes."""

        def __init__(self) -> None:
            super().__init__()
            for name, tensor in state.items():
                self.register_buffer(name.replace(".", "__"), tensor.float())

        def tensors(self, name: str, *parts: str) -> list[Tensor]:
            found = []
            for part in parts:
                used[f"{name}.{part}"] = None
                if f"{name}.{part}" not in state:
                    raise RuntimeError(f"there is no {name}.{part}")
                found.append(getattr(self, f"{name}.{part}".replace(".", "__")))
            return found

        def layer(self, x: Tensor, names: Names, stride: int, same: bool = jax) -> Tensor:
            """A convolution and its normalization, by their names."""
            convolution, norm = names
            (weight,) = self.tensors(convolution, "weight")
            side = weight.shape[-1]
            if weight.shape[2:] != (side, side) or side > MAX_KERNEL:
                raise RuntimeError("no square kernel of at most 32 places")
            bias = f"{convolution}.bias"
            shift = self.tensors(convolution, "bias")[0] if bias in state else None
            x = self.padded(x, side, stride) if same else x
            x = functional.conv2d(x, weight, shift, stride, 0 if same else side // 2)
            weight, shift = self.tensors(norm, "weight", "bias")
            if jax:
                return functional.group_norm(x, 4, weight, shift)
            used[f"{norm}.num_batches_tracked"] = None
            mean, variance = self.tensors(norm, "running_mean", "running_var")
            return functional.batch_norm(x, mean, variance, weight, shift)

        def padded(self, x: Tensor, side: int, stride: int, value: float = 0.0) -> Tensor:
            """Pad as JAX's ``SAME``: what is odd goes to the bottom and the right."""
            high, wide = (max(0, (-(-n // stride) - 1) * stride + side - n) for n in x.shape[2:])
            top, left = high // 2, wide // 2
            return functional.pad(x, (left, wide - left, top, high - top), value=value)

        def linear(self, x: Tensor, name: str) -> Tensor:
            shift, weight = self.tensors(name, "bias", "weight")
            return functional.linear(x, weight, shift)

        def layer_norm(self, x: Tensor, name: str) -> Tensor:
            weight, shift = self.tensors(name, "weight", "bias")
            return functional.layer_norm(x, weight.shape, weight, shift)

        def block(self, x: Tensor, layers: list[Names], shortcut: Names, stride: int) -> Tensor:
            strided = 1 if len(layers) == 3 else 0  # of three layers the second has the stride
            out = x
            for number, names in enumerate(layers):
                out = out.relu() if number else out
                out = self.layer(out, names, stride if number == strided else 1)
            if f"{shortcut[0]}.weight" in state:
                x = self.layer(x, shortcut, stride)
            return (out + x).relu()

        def encode(self, x: Tensor) -> Tensor:
            """HIL-SERL's ResNet-10 with JAX's padding, or a ResNet of Transformers."""
            if jax:
                x = self.layer(x, ("encoder.embedder.0", "encoder.embedder.1"), 2, False).relu()
                x = functional.max_pool2d(self.padded(x, 3, 2, float("-inf")), 3, 2)
                for stage in range(count(f"{STAGES}.{{}}.conv1.conv.weight")):
                    name = f"{STAGES}.{stage}"
                    layers = [(f"{name}.conv{n}.conv", f"{name}.norm{n}") for n in (1, 2)]
                    shortcut = f"{name}.shortcut.0.conv", f"{name}.shortcut.1"
                    x = self.block(x, layers, shortcut, 2 if stage else 1)
                return x
            x = self.layer(x, both("encoder.embedder.embedder"), 2).relu()
            x = functional.max_pool2d(x, 3, 2, 1)
            first = "layer.0.convolution.weight"
            for stage in range(count(f"{STAGES}.{{}}.layers.0.{first}")):
                blocks = f"{STAGES}.{stage}.layers"
                for block in range(count(f"{blocks}.{{}}.{first}")):
                    layer = f"{blocks}.{block}.layer.{{}}"
                    several = range(count(f"{layer}.convolution.weight"))
                    layers = [both(layer.format(n)) for n in several]
                    shortcut = both(f"{blocks}.{block}.shortcut")
                    x = self.block(x, layers, shortcut, 2 if stage and not block else 1)
            return x

        def forward(self, images: Tensor) -> Tensor:
            parts, top = [], 0
            for camera in cameras:
                view = images[:, :, top : top + camera.height]
                top += camera.height
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

    return Network(), used
