"""The networks that training makes and the torch backend runs. Importing this imports torch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from vinoreward.errors import ConfigError

ARCHITECTURES = ("squeezenet1_0", "squeezenet1_1")


class SqueezeNet(nn.Module):
    """SqueezeNet for any picture size: float (N, 3, H, W) to logits (N, classes).

    The feature layers are torchvision's, under the same names, so that its weights can be loaded.
    Two things differ. There is no dropout, which a network this small does not need for two
    classes. And there is no ReLU after the last convolution: it would clip negative logits to 0 and
    leave a class that starts below 0 without a gradient.
    """

    def __init__(self, features: nn.Module, classes: int) -> None:
        super().__init__()
        self.features = features
        self.classifier = nn.Sequential(
            nn.Conv2d(512, classes, kernel_size=1), nn.AdaptiveAvgPool2d(1)
        )
        for module in self.features.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        head = self.classifier[0]
        if isinstance(head, nn.Conv2d) and head.bias is not None:
            nn.init.normal_(head.weight, std=0.01)
            nn.init.zeros_(head.bias)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return logits (N, classes) for normalised float pictures (N, 3, H, W)."""
        logits: Tensor = self.classifier(self.features(pictures))
        return logits.flatten(1)


class WithPreprocess(nn.Module):
    """A network together with its preprocessing: uint8 RGB (N, H, W, 3) to logits.

    This is what is exported, so that every runtime does the same arithmetic:
    ``(pixel / 255 - mean) / std`` per channel, then N, C, H, W.
    """

    scale: Tensor
    bias: Tensor

    def __init__(self, net: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.net = net
        mean_, std_ = torch.tensor(mean).view(1, -1, 1, 1), torch.tensor(std).view(1, -1, 1, 1)
        self.register_buffer("scale", 1.0 / (255.0 * std_), persistent=False)
        self.register_buffer("bias", -mean_ / std_, persistent=False)

    def forward(self, pictures: Tensor) -> Tensor:
        """Return the network's output for uint8 pictures (N, H, W, 3)."""
        # Contiguous, because permuted strides would silently turn on torch's channels-last kernels:
        # plain N, C, H, W is what users run today and what the speed is compared with.
        planes = pictures.permute(0, 3, 1, 2).contiguous().to(torch.float32)
        output: Tensor = self.net(planes * self.scale + self.bias)
        return output


def build(architecture: str, classes: int = 2) -> nn.Module:
    """Build an untrained network of a known architecture; seeded by ``torch.manual_seed``.

    Args:
        architecture: ``"squeezenet1_0"`` or ``"squeezenet1_1"``.
        classes: number of logits.

    Raises:
        ConfigError: the architecture is not known, or fewer than one class.
    """
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"there is no architecture {architecture!r}. Expected one of "
            f"{', '.join(ARCHITECTURES)}; choose one of these."
        )
    if classes < 1:
        raise ConfigError(f"a network was asked for with {classes} classes. Expected at least 1.")
    from torchvision.models import squeezenet

    factory = getattr(squeezenet, architecture)
    return SqueezeNet(factory(weights=None).features, classes)
