"""LeRobot's reward classifier, read from its folder; nothing in the folder is executed.

LeRobot itself builds the image encoder with the code that ``model_name`` names on the Hub. Here it
is recognised by its weights: a ResNet of Transformers (``microsoft/resnet-18`` and others), or
HIL-SERL's ResNet-10 (``helper2424/resnet10``, LeRobot's default), rebuilt in code of this project.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vinoreward.bundles.foreign_encoder import load_state
from vinoreward.errors import ModelRefusedError, needed_for
from vinoreward.files import is_inside, read_json

if TYPE_CHECKING:
    from torch import Tensor, nn

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
PREPROCESSOR = "classifier_preprocessor.json"
MAX_JSON = 1 << 20
PICTURE_PREFIX = "observation.image"
LABELS = ("failure", "success")
MAX_SIDE = 4096
_EPSILON = 1e-8
"""What LeRobot adds to the standard deviation."""


@dataclass(frozen=True)
class Camera:
    """One picture that the classifier looks at."""

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
        """Height and width of the cameras' pictures, below each other."""
        return sum(camera.height for camera in self.cameras), self.cameras[0].width

    def module(self) -> nn.Module:
        """Return the network for ``(N, 3, H, W)`` float32 RGB from 0 to 1, without its weights.

        It returns ``(N, 1)``, the logit of success. Its state dict has the names of
        ``model.safetensors``.
        """
        with needed_for("LeRobot's reward classifier", "train"):
            import torch
        state = load_state(self.weights)
        # A stranger's file may describe gigabytes: its shapes are compared before they are taken.
        try:
            with torch.device("meta"):
                planned = _build(self.cameras, state, self.model_name)
                planned.load_state_dict(state, strict=True, assign=True)
        except RuntimeError as error:
            why = str(error).splitlines()[-1].strip()[:300]
            raise _refused(self.weights, why, "the weights of one network") from error
        return _build(self.cameras, state, self.model_name)


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
    kind = config.get("type", config.get("name"))
    if kind != "reward_classifier":
        raise _refused(folder / CONFIG, f"it is of the type {kind!r:.60}", "'reward_classifier'")
    if config.get("num_classes") != 2 or config.get("model_type") != "cnn":
        raise _refused(
            folder / CONFIG,
            f"it has num_classes {config.get('num_classes')!r:.20} and model_type "
            f"{config.get('model_type')!r:.20}",
            "2 and 'cnn'; export others as ONNX",
        )
    features = _tables(config.get("input_features"))
    keys = [key for key in features if key.startswith(PICTURE_PREFIX)]
    if not keys or len(keys) != config.get("num_cameras"):
        raise _refused(
            folder / CONFIG,
            f"it has {len(keys)} pictures in input_features and num_cameras "
            f"{config.get('num_cameras')!r:.20}",
            f"as many keys that begin with {PICTURE_PREFIX}",
        )
    statistics = _statistics(folder)
    cameras = tuple(_camera(folder, key, features[key], statistics) for key in keys)
    if len({camera.width for camera in cameras}) > 1:
        raise _refused(folder / CONFIG, "its pictures differ in width", "one width")
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
    """Return the tensors that pictures are normalised with, None if they are not."""
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
        if not any(key.startswith(PICTURE_PREFIX) for key in _tables(config.get("features"))):
            continue
        norms = config.get("norm_map")
        mode = norms.get("VISUAL") if isinstance(norms, dict) else None
        if mode in (None, "IDENTITY"):
            return None
        if mode != "MEAN_STD":
            raise _refused(
                folder / PREPROCESSOR, f"pictures are normalised by {mode!r:.30}", "'MEAN_STD'"
            )
        file = step.get("state_file")
        # Without statistics LeRobot leaves a picture as it is.
        return dict(load_state(_inside(folder, file))) if isinstance(file, str) else None
    return None


def _camera(
    folder: Path, key: str, feature: Mapping[str, Any], statistics: Mapping[str, Any] | None
) -> Camera:
    shape = feature.get("shape")
    if (
        not isinstance(shape, list)
        or not all(type(side) is int and 0 < side <= MAX_SIDE for side in shape)
        or len(shape) != 3
        or shape[0] != 3
    ):
        raise _refused(folder / CONFIG, f"{key} has the shape {shape!r:.60}", "[3, height, width]")
    parts: list[tuple[float, ...]] = []
    for name, default in (("mean", 0.0), ("std", 1.0)):
        tensor = (statistics or {}).get(f"{key}.{name}")
        values = [default] * 3 if tensor is None else tensor.flatten().tolist()
        if len(values) != 3 or not all(abs(value) < 1e6 for value in values):
            raise _refused(folder / PREPROCESSOR, f"{key}.{name} is {values!r:.60}", "3 numbers")
        parts.append(tuple(map(float, values)))
    return Camera(key, shape[1], shape[2], parts[0], parts[1])


def _build(cameras: tuple[Camera, ...], state: Mapping[str, Any], model_name: str) -> nn.Module:
    import torch
    from torch import nn

    class Spatial(nn.Module):
        """Weighs each place of a feature map: ``(N, C, h, w)`` to ``(N, C * F)``."""

        def __init__(self, shape: tuple[int, ...]) -> None:
            super().__init__()
            self.kernel = nn.Parameter(torch.zeros(shape))

        def forward(self, features: Tensor) -> Tensor:
            return torch.einsum("nchw,chwf->ncf", features, self.kernel).flatten(1)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encoder = _encoder(state, model_name)
            self.encoders = nn.ModuleDict()
            latent = 0
            for camera in cameras:
                name = camera.key.replace(".", "_")
                kernel = _shape(state, f"encoders.{name}.1.kernel", 4)
                out, wide = _shape(state, f"encoders.{name}.3.weight", 2)
                # The numbers that LeRobot's nn.Sequential gives them.
                self.encoders[name] = nn.ModuleDict(
                    {"1": Spatial(kernel), "3": nn.Linear(wide, out), "4": nn.LayerNorm(out)}
                )
                latent += out
            hidden = _shape(state, "classifier_head.0.weight", 2)[0]
            self.classifier_head = nn.ModuleDict(
                {
                    "0": nn.Linear(latent, hidden),
                    "2": nn.LayerNorm(hidden),
                    "4": nn.Linear(hidden, 1),
                }
            )

        def forward(self, pictures: Tensor) -> Tensor:
            parts, top = [], 0
            tails: Any = self.encoders.values()
            for camera, tail in zip(cameras, tails, strict=True):
                view = pictures[:, :, top : top + camera.height]
                top += camera.height
                mean = torch.tensor(camera.mean).reshape(1, 3, 1, 1)
                std = torch.tensor(camera.std).reshape(1, 3, 1, 1)
                features = self.encoder((view - mean) / (std + _EPSILON))
                parts.append(torch.tanh(tail["4"](tail["3"](tail["1"](features)))))
            head = self.classifier_head
            hidden = torch.relu(head["2"](head["0"](torch.cat(parts, 1))))
            logit: Tensor = head["4"](hidden)
            return logit

    return Network()


def _shape(state: Mapping[str, Any], name: str, length: int) -> tuple[int, ...]:
    shape = tuple(state[name].shape) if name in state else ()
    if len(shape) != length:
        raise ModelRefusedError(
            f"{WEIGHTS}: {name} has the shape {shape}. Expected {length} dimensions, as in "
            "LeRobot's reward classifier; save it again."
        )
    return shape


def _encoder(state: Mapping[str, Any], model_name: str) -> nn.Module:
    if "encoder.embedder.embedder.convolution.weight" in state:
        return _resnet(state)
    if "encoder.embedder.0.weight" in state:
        return _resnet10(state)
    raise ModelRefusedError(
        f"{WEIGHTS}: the encoder {model_name!r} is neither a ResNet of Transformers nor HIL-SERL's "
        "ResNet-10. Expected one of these, as LeRobot would run the code that the name stands for "
        "on the Hub, and no such code is run here; export the classifier as ONNX."
    )


def _count(state: Mapping[str, Any], pattern: str) -> int:
    found = [int(match[1]) for name in state if (match := re.match(pattern, name))]
    if max(found, default=-1) >= len(state):
        raise ModelRefusedError(
            f"{WEIGHTS}: a part has the number {max(found)} among {len(state)} tensors. Expected "
            "parts that are counted from 0; save the classifier again."
        )
    return max(found, default=-1) + 1


def _stages(state: Mapping[str, Any]) -> list[str]:
    count = _count(state, r"encoder\.encoder\.stages\.(\d+)\.")
    return [f"encoder.encoder.stages.{number}" for number in range(count)]


def _resnet(state: Mapping[str, Any]) -> nn.Module:
    """Build the ResNet of Transformers that has these weights, with ReLU."""
    from torch import nn

    class Layer(nn.Module):
        def __init__(self, name: str, stride: int, *, active: bool) -> None:
            super().__init__()
            out, wide, side, _ = _shape(state, f"{name}.convolution.weight", 4)
            self.convolution = nn.Conv2d(wide, out, side, stride, side // 2, bias=False)
            self.normalization = nn.BatchNorm2d(out)
            self.active = active

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.normalization(self.convolution(x))
            return out.relu() if self.active else out

    class Block(nn.Module):
        def __init__(self, name: str, stride: int) -> None:
            super().__init__()
            count = _count(state, rf"{re.escape(name)}\.layer\.(\d+)\.")
            # Of three layers the second has the stride.
            strided = 1 if count == 3 else 0
            self.layer = nn.Sequential(
                *(
                    Layer(f"{name}.layer.{n}", stride if n == strided else 1, active=n < count - 1)
                    for n in range(count)
                )
            )
            self.shortcut: nn.Module = nn.Identity()
            if f"{name}.shortcut.convolution.weight" in state:
                self.shortcut = Layer(f"{name}.shortcut", stride, active=False)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layer(x) + self.shortcut(x)
            return out.relu()

    class Stage(nn.Module):
        def __init__(self, name: str, stride: int) -> None:
            super().__init__()
            count = _count(state, rf"{re.escape(name)}\.layers\.(\d+)\.")
            self.layers = nn.Sequential(
                *(Block(f"{name}.layers.{n}", stride if n == 0 else 1) for n in range(count))
            )

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.layers(x)
            return out

    class ResNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedder = nn.ModuleDict(
                {"embedder": Layer("encoder.embedder.embedder", 2, active=True)}
            )
            names = _stages(state)
            stages = [Stage(name, 1 if n == 0 else 2) for n, name in enumerate(names)]
            self.encoder = nn.ModuleDict({"stages": nn.Sequential(*stages)})
            self.pool = nn.MaxPool2d(3, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.encoder["stages"](self.pool(self.embedder["embedder"](x)))
            return out

    return ResNet()


def _resnet10(state: Mapping[str, Any]) -> nn.Module:
    """Build HIL-SERL's ResNet-10: group norm, and the padding of JAX."""
    from torch import nn
    from torch.nn import functional

    def padded(x: Tensor, side: int, stride: int, value: float) -> Tensor:
        """Pad as JAX's ``SAME``: what is odd goes to the bottom and the right."""
        below = [max(0, (-(-n // stride) - 1) * stride + side - n) for n in x.shape[2:]]
        (top, left), (high, wide) = (below[0] // 2, below[1] // 2), below
        return functional.pad(x, (left, wide - left, top, high - top), value=value)

    class Convolution(nn.Module):
        def __init__(self, name: str, stride: int) -> None:
            super().__init__()
            out, wide, side, _ = _shape(state, f"{name}.conv.weight", 4)
            self.conv = nn.Conv2d(wide, out, side, stride, bias=False)
            self.side, self.stride = side, stride

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.conv(padded(x, self.side, self.stride, 0.0))
            return out

    class Block(nn.Module):
        def __init__(self, name: str, stride: int) -> None:
            super().__init__()
            out = _shape(state, f"{name}.conv1.conv.weight", 4)[0]
            self.conv1 = Convolution(f"{name}.conv1", stride)
            self.norm1 = nn.GroupNorm(4, out)
            self.conv2 = Convolution(f"{name}.conv2", 1)
            self.norm2 = nn.GroupNorm(4, out)
            self.shortcut: nn.Module = nn.Identity()
            if f"{name}.shortcut.0.conv.weight" in state:
                self.shortcut = nn.Sequential(
                    Convolution(f"{name}.shortcut.0", stride), nn.GroupNorm(4, out)
                )

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.norm2(self.conv2(self.norm1(self.conv1(x)).relu()))
            out = out + self.shortcut(x)
            return out.relu()

    class Pool(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return functional.max_pool2d(padded(x, 3, 2, float("-inf")), 3, 2)

    class ResNet10(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            out, wide, side, _ = _shape(state, "encoder.embedder.0.weight", 4)
            self.embedder = nn.Sequential(
                nn.Conv2d(wide, out, side, 2, side // 2, bias=False),
                nn.GroupNorm(4, out),
                nn.ReLU(),
                Pool(),
            )
            names = _stages(state)
            stages = [Block(name, 1 if n == 0 else 2) for n, name in enumerate(names)]
            self.encoder = nn.ModuleDict({"stages": nn.Sequential(*stages)})

        def forward(self, x: Tensor) -> Tensor:
            out: Tensor = self.encoder["stages"](self.embedder(x))
            return out

    return ResNet10()
