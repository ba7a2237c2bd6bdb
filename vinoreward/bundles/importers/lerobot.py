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

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PREPROCESSOR = "classifier_preprocessor.json"
MAX_JSON = 1 << 20
IMAGE_PREFIX = "observation.image"
LABELS = ("failure", "success")
MAX_SIDE = 4096
MAX_KERNEL = 32
_EPSILON = 1e-8
"""What LeRobot adds to the standard deviation."""


@dataclass(frozen=True)
class Camera:
    """One image that the classifier looks at."""

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
            raise _refused(self.weights, why, "the weights of one network") from error
        if unused := sorted(set(state) - used):
            raise _refused(self.weights, f"no part has {unused[0]}", "the weights of one network")
        return _network(self.cameras, state, self.model_name)[0]


def is_reward_classifier(folder: Path) -> bool:
    """Say whether a path is a folder of a LeRobot model."""
    return Path(folder).is_dir() and (Path(folder) / CONFIG).is_file()


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
        raise _refused(
            folder / CONFIG,
            f"it has {len(keys)} images in input_features and num_cameras "
            f"{config.get('num_cameras')!r:.20}",
            f"as many keys that begin with {IMAGE_PREFIX}",
        )
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
    return {str(key): each for key, each in table.items() if isinstance(each, dict)}


def _inside(folder: Path, name: str) -> Path:
    path = folder / name
    if not is_inside(folder, path) or not path.is_file():
        raise _refused(path, "there is no such file in the folder", "it there")
    return path


def _json(folder: Path, name: str) -> dict[str, Any]:
    path = _inside(folder, name)
    try:
        value = read_json(path, MAX_JSON)
    except (OSError, ValueError) as error:
        raise _refused(path, str(error), "JSON") from error
    if not isinstance(value, dict):
        raise _refused(path, "it holds no object", "one")
    return value


def _statistics(folder: Path) -> dict[str, Any] | None:
    """Return the tensors that images are normalised with, None if they are not."""
    steps = _json(folder, PREPROCESSOR).get("steps")
    if not isinstance(steps, list):
        raise _refused(folder / PREPROCESSOR, "it has no steps", "a list of them")
    for step in steps:
        name = step.get("registry_name") if isinstance(step, dict) else None
        if name not in ("normalizer_processor", "device_processor"):
            raise _refused(
                folder / PREPROCESSOR,
                f"it has the step {name or step!r:.60}".replace("\n", " "),
                "normalizer_processor and device_processor alone; other code is not run here",
            )
        config = step.get("config")
        if name != "normalizer_processor" or not isinstance(config, dict):
            continue
        if not any(key.startswith(IMAGE_PREFIX) for key in _tables(config.get("features"))):
            continue
        norms = config.get("norm_map")
        mode = norms.get("VISUAL") if isinstance(norms, dict) else None
        if mode in (None, "IDENTITY"):
            return None
        if mode != "MEAN_STD":
            raise _refused(
                folder / PREPROCESSOR, f"images are normalised by {mode!r:.30}", "'MEAN_STD'"
            )
        file = step.get("state_file")
        # Without statistics LeRobot leaves an image as it is.
        return dict(load_state(_inside(folder, file))) if isinstance(file, str) else None
    return None


def _camera(
    folder: Path, key: str, feature: Mapping[str, Any], statistics: Mapping[str, Any] | None
) -> Camera:
    shape = feature.get("shape")
    sides = shape if isinstance(shape, list) and len(shape) == 3 else [0]
    if sides[0] != 3 or not all(type(side) is int and 0 < side <= MAX_SIDE for side in sides):
        raise _refused(folder / CONFIG, f"{key} has the shape {shape!r:.60}", "[3, height, width]")
    parts: list[tuple[float, ...]] = []
    for name, default in (("mean", 0.0), ("std", 1.0)):
        tensor = (statistics or {}).get(f"{key}.{name}")
        values = [default] * 3 if tensor is None else tensor.flatten().tolist()
        if len(values) != 3 or not all(abs(value) < 1e6 for value in values):
            raise _refused(folder / PREPROCESSOR, f"{key}.{name} is {values!r:.60}", "3 numbers")
        parts.append(tuple(map(float, values)))
    return Camera(key, sides[1], sides[2], parts[0], parts[1])


def _count(state: Mapping[str, Any], pattern: str) -> int:
    """Return how many parts there are, counted from 0, whose tensors have names of a pattern."""
    count = 0
    while pattern.format(count) in state:
        count += 1
    return count


def _network(
    cameras: tuple[Camera, ...], state: Mapping[str, Tensor], model_name: str
) -> tuple[nn.Module, set[str]]:
    """Return the network with its weights, and the names that it will have asked for once run."""
    import torch
    from torch import nn
    from torch.nn import functional

    used: set[str] = set()

    class Network(nn.Module):
        """Calls PyTorch's functions with the file's own tensors: nothing is made by their sizes."""

        def __init__(self) -> None:
            super().__init__()
            for name, tensor in state.items():
                self.register_buffer(name.replace(".", "__"), tensor.float())

        def tensor(self, name: str, dimensions: int | None = None) -> Tensor:
            if name not in state:
                raise RuntimeError(f"there is no {name}")
            used.add(name)
            found: Tensor = getattr(self, name.replace(".", "__"))
            if dimensions not in (None, found.ndim):
                raise RuntimeError(f"{name} has the shape {tuple(found.shape)}")
            return found

        def convolution(
            self, x: Tensor, name: str, stride: int = 1, *, same: bool = False, bias: bool = False
        ) -> Tensor:
            weight = self.tensor(f"{name}.weight", 4)
            side = weight.shape[2]
            if side != weight.shape[3] or side > MAX_KERNEL:
                raise RuntimeError(f"{name}.weight has the shape {tuple(weight.shape)}")
            shift = self.tensor(f"{name}.bias") if bias else None
            if same:
                return functional.conv2d(self.padded(x, side, stride), weight, shift, stride)
            return functional.conv2d(x, weight, shift, stride, side // 2)

        def padded(self, x: Tensor, side: int, stride: int, value: float = 0.0) -> Tensor:
            """Pad as JAX's ``SAME``: what is odd goes to the bottom and the right."""
            below = [max(0, (-(-n // stride) - 1) * stride + side - n) for n in x.shape[2:]]
            (top, left), (high, wide) = (below[0] // 2, below[1] // 2), below
            return functional.pad(x, (left, wide - left, top, high - top), value=value)

        def linear(self, x: Tensor, name: str) -> Tensor:
            weight, shift = self.tensor(f"{name}.weight", 2), self.tensor(f"{name}.bias", 1)
            if weight.shape[1] != x.shape[1]:
                raise RuntimeError(f"{name}.weight has the shape {tuple(weight.shape)}")
            return functional.linear(x, weight, shift)

        def layer_norm(self, x: Tensor, name: str) -> Tensor:
            weight, shift = self.tensor(f"{name}.weight", 1), self.tensor(f"{name}.bias", 1)
            return functional.layer_norm(x, weight.shape, weight, shift)

        def group_norm(self, x: Tensor, name: str) -> Tensor:
            weight, shift = self.tensor(f"{name}.weight", 1), self.tensor(f"{name}.bias", 1)
            return functional.group_norm(x, 4, weight, shift)

        def layer(self, x: Tensor, name: str, stride: int = 1) -> Tensor:
            """A convolution of Transformers' ResNet and its normalization."""
            norm = f"{name}.normalization"
            if f"{norm}.num_batches_tracked" in state:
                used.add(f"{norm}.num_batches_tracked")
            parts = ("running_mean", "running_var", "weight", "bias")
            mean, var, weight, shift = (self.tensor(f"{norm}.{part}", 1) for part in parts)
            x = self.convolution(x, f"{name}.convolution", stride)
            return functional.batch_norm(x, mean, var, weight, shift)

        def resnet(self, x: Tensor) -> Tensor:
            """The ResNet of Transformers, with ReLU."""
            x = self.layer(x, "encoder.embedder.embedder", 2).relu()
            x = functional.max_pool2d(x, 3, 2, 1)
            stages = "encoder.encoder.stages"
            first = ".layers.0.layer.0.convolution.weight"
            for stage in range(_count(state, f"{stages}.{{}}{first}")):
                blocks = f"{stages}.{stage}.layers"
                for block in range(_count(state, f"{blocks}.{{}}.layer.0.convolution.weight")):
                    stride = 2 if block == 0 and stage > 0 else 1
                    x = self.block(x, f"{blocks}.{block}", stride)
            return x

        def block(self, x: Tensor, name: str, stride: int) -> Tensor:
            count = _count(state, f"{name}.layer.{{}}.convolution.weight")
            strided = 1 if count == 3 else 0  # of three layers the second has the stride
            out = x
            for number in range(count):
                out = out.relu() if number else out
                out = self.layer(out, f"{name}.layer.{number}", stride if number == strided else 1)
            if f"{name}.shortcut.convolution.weight" in state:
                x = self.layer(x, f"{name}.shortcut", stride)
            return (out + x).relu()

        def resnet10(self, x: Tensor) -> Tensor:
            """HIL-SERL's ResNet-10: group norm, and the padding of JAX."""
            x = self.convolution(x, "encoder.embedder.0", 2)
            x = self.group_norm(x, "encoder.embedder.1").relu()
            x = functional.max_pool2d(self.padded(x, 3, 2, float("-inf")), 3, 2)
            stages = "encoder.encoder.stages"
            for stage in range(_count(state, f"{stages}.{{}}.conv1.conv.weight")):
                name, stride = f"{stages}.{stage}", 2 if stage > 0 else 1
                out = self.convolution(x, f"{name}.conv1.conv", stride, same=True)
                out = self.group_norm(out, f"{name}.norm1").relu()
                out = self.convolution(out, f"{name}.conv2.conv", same=True)
                out = self.group_norm(out, f"{name}.norm2")
                if f"{name}.shortcut.0.conv.weight" in state:
                    x = self.convolution(x, f"{name}.shortcut.0.conv", stride, same=True)
                    x = self.group_norm(x, f"{name}.shortcut.1")
                x = (out + x).relu()
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
                features = encode(self, (view - mean) / (std + _EPSILON))
                tail = f"encoders.{camera.key.replace('.', '_')}"
                kernel = self.tensor(f"{tail}.1.kernel", 4)  # weighs each place of the feature map
                seen = torch.einsum("nchw,chwf->ncf", features, kernel).flatten(1)
                parts.append(self.layer_norm(self.linear(seen, f"{tail}.3"), f"{tail}.4").tanh())
            hidden = self.linear(torch.cat(parts, 1), "classifier_head.0")
            hidden = self.layer_norm(hidden, "classifier_head.2").relu()
            return self.linear(hidden, "classifier_head.4")

    if "encoder.embedder.embedder.convolution.weight" in state:
        encode = Network.resnet
    elif "encoder.embedder.0.weight" in state:
        encode = Network.resnet10
    else:
        raise ModelRefusedError(
            f"{WEIGHTS}: the encoder {model_name!r} is neither a ResNet of Transformers nor "
            "HIL-SERL's ResNet-10. Expected one of these, as LeRobot would run the code that the "
            "name stands for on the Hub, and no such code is run here; export the classifier as "
            "ONNX."
        )
    return Network(), used
