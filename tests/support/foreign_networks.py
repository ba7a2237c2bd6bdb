"""Networks that somebody else trained, and the images that they know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

SIZE = (32, 40)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
LABELS = ("failure", "success")
LATENT = 3
ENCODERS = """
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


def normalised(images: np.ndarray) -> np.ndarray:
    """Prepare images by hand, as the training of the foreign classifier did."""
    floats = (images.astype(np.float32) / 255 - np.float32(MEAN)) / np.float32(STD)
    return np.ascontiguousarray(floats.transpose(0, 3, 1, 2))


def draw(folder: Path, count: int) -> Path:
    """Write noise images: a success has a red half, a failure a blue, a green or a dark one."""
    random = np.random.default_rng(0)
    for index in range(count):
        image = random.integers(60, 120, (*SIZE, 3), dtype=np.uint8)
        kind = 0 if index % 2 else 1 + index // 2 % 3
        if kind < 3:
            image[:, :20, [0, 2, 1][kind]] += 90
        path = folder / ("failure" if kind else "success") / f"{index:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)
    return folder


class Colours(nn.Module):
    """Tell by the mean colour, and saturate: 255 times as much colour says nothing any more."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.look = nn.Sequential(nn.AvgPool2d(4), nn.Conv2d(3, 2, 1, bias=False), nn.ReLU())
        self.say = nn.Linear(2, outputs)
        with torch.no_grad():
            red, other = self.look[1].weight[:, :, 0, 0]
            red.copy_(torch.tensor([1.0, 0.0, 0.0]))
            other.copy_(torch.tensor([0.0, 1.0, 1.0]))
            weights = torch.tensor([[0.0, 0.0], [8.0, -2.0]])[-outputs:]
            self.say.weight.copy_(weights)
            self.say.bias.copy_(torch.tensor([0.0, -1.5])[-outputs:])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.say(torch.tanh(self.look(images).mean((2, 3))))


def by_hand(net: nn.Module, images: np.ndarray) -> np.ndarray:
    """Return PyTorch's probability of success for images prepared by hand."""
    with torch.no_grad():
        outputs = net.eval()(torch.from_numpy(normalised(images))).double().numpy()
    if outputs.shape[1] == 1:
        return 1 / (1 + np.exp(-outputs[:, 0]))
    powers = np.exp(outputs)
    return powers[:, 1] / powers.sum(axis=1)


def to_onnx(net: nn.Module, path: Path, batch: int | None = None) -> Path:
    torch.onnx.export(
        net.eval(),
        (torch.zeros(batch or 2, 3, *SIZE),),
        str(path),
        dynamo=False,
        input_names=["x"],
        output_names=["y"],
        dynamic_axes=None if batch else {"x": {0: "n"}},
    )
    return path


def write_encoders(folder: Path) -> Path:
    """Write nets.py, weights, ONNX files, images and one image's latent."""
    (folder / "nets.py").write_text(ENCODERS)
    built: dict[str, object] = {}
    exec(ENCODERS, built)
    torch.manual_seed(0)
    net: nn.Module = built["variational"]().eval()  # type: ignore[operator]
    torch.save(net.state_dict(), folder / "weights.pt")
    images = np.random.default_rng(0).integers(0, 256, (80, *SIZE, 3), dtype=np.uint8)
    images[..., 0] //= 4
    (folder / "images").mkdir()
    for index, image in enumerate(images):
        Image.fromarray(image).save(folder / "images" / f"{index:03}.png")
    Image.fromarray(images[0]).save(folder / "golden.png")
    planes = torch.from_numpy(images[:1]).permute(0, 3, 1, 2).float() / 255
    with torch.no_grad():
        np.save(folder / "latent.npy", net(planes)[0].numpy()[0])
    for name, outputs in (("variational", ["mu", "logvar"]), ("plain", ["z"])):
        module: nn.Module = built[name]().eval()  # type: ignore[operator]
        module.load_state_dict(net.state_dict())
        torch.onnx.export(
            module,
            (torch.zeros(2, 3, *SIZE),),
            str(folder / f"{name}.onnx"),
            dynamo=False,
            input_names=["images"],
            output_names=outputs,
            dynamic_axes={"images": {0: "batch"}},
        )
    return folder
