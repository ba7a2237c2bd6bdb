"""Encoders, and the preprocessing in front of every network. Importing this imports torch.

An encoder maps float images (N, 3, H, W) to (N, 2 D): D means, then D natural logarithms of
variances. For classifiers see :mod:`vinoreward.backends.torch_classifiers`.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from vinoreward.errors import ConfigError

ENCODERS = ("conv_vae", "spatial_vae")
LOWEST_SIDE, HIGHEST_SIDE = 32, 1024
MAX_LATENT = 4096
CHANNELS = (32, 64, 128, 256)
"""Of the first convolutions; later ones repeat the last number."""
LOG_VARIANCE = (-12.0, 4.0)
"""Limits of an encoder's output; beyond them a variance is practically 0, or the prior's."""
SPATIAL_CHANNELS = 32
"""Of every convolution before the keypoints, which encode places, not appearance."""
KEYPOINTS = 32
LEAST_WEIGHT = 1e-3
"""Added to the sum of a map; the keypoint of an empty map is then in the middle."""
LARGEST_MAP = 32
"""Longer side, in cells, of the keypoints' maps."""


class WithPreprocess(nn.Module):
    """A network with its preprocessing, for export: uint8 RGB (N, H, W, 3) to logits.

    The preprocessing is ``(pixel / 255 - mean) / std`` per channel, then N, C, H, W.
    """

    scale: Tensor
    bias: Tensor

    def __init__(self, net: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.net = net
        mean_, std_ = torch.tensor(mean).view(1, -1, 1, 1), torch.tensor(std).view(1, -1, 1, 1)
        self.register_buffer("scale", 1.0 / (255.0 * std_), persistent=False)
        self.register_buffer("bias", -mean_ / std_, persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Return the network's output for uint8 images (N, H, W, 3)."""
        # Contiguous: permuted strides would silently select torch's channels-last kernels, and the
        # baseline of speed comparisons is plain N, C, H, W.
        planes = images.permute(0, 3, 1, 2).contiguous().to(torch.float32)
        output: Tensor = self.net(planes * self.scale + self.bias)
        return output


class InHalf(WithPreprocess):
    """The same for CUDA: of a network in evaluation mode, whose weights become half precision's."""

    def __init__(self, net: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        net = net.half().to(memory_format=torch.channels_last)
        super().__init__(with_rectifiers_fused(net), mean, std)

    def forward(self, images: Tensor) -> Tensor:
        """Return the network's output, float32, for uint8 images (N, H, W, 3)."""
        # Channels last, as the images are: CUDA's fast kernels take them so.
        planes = images.permute(0, 3, 1, 2).to(torch.float32) * self.scale + self.bias
        output: Tensor = self.net(planes.to(torch.float16))
        return output.to(torch.float32)


class _RectifiedConvolution(nn.Module):
    """A convolution and the rectifier behind it, on CUDA as one operation of cuDNN's."""

    def __init__(self, convolution: nn.Conv2d) -> None:
        super().__init__()
        self.convolution = convolution

    def forward(self, planes: Tensor) -> Tensor:
        of = self.convolution
        if not planes.is_cuda:
            return relu(of(planes))
        padding: Any = of.padding  # no words: see below
        return torch.cudnn_convolution_relu(
            planes, of.weight, of.bias, of.stride, padding, of.dilation, of.groups
        )


def with_rectifiers_fused(net: nn.Module) -> nn.Module:
    """Return a network with the same answers that writes what it computes less often on CUDA.

    One whose course depends on numbers is returned as it is.
    """
    from torch.fx import symbolic_trace  # here: CUDA alone wants it

    try:
        traced = symbolic_trace(net)
    except (ValueError, TypeError, RuntimeError, AttributeError):
        return net
    modules = dict(traced.named_modules())
    called = Counter(node.target for node in traced.graph.nodes)
    for node in list(traced.graph.nodes):
        if node.op != "call_module" or not isinstance(modules[node.target], nn.ReLU):
            continue
        (before,) = node.all_input_nodes
        convolution = modules.get(before.target) if before.op == "call_module" else None
        # The rectifier is the only one that reads it, and it runs nowhere else.
        alone = len(before.users) == 1 == called[before.target]
        if not isinstance(convolution, nn.Conv2d) or not alone:
            continue
        if convolution.padding_mode == "zeros" and not isinstance(convolution.padding, str):
            traced.set_submodule(before.target, _RectifiedConvolution(convolution))
            node.replace_all_uses_with(before)
            traced.graph.erase_node(node)
    traced.recompile()
    return traced


def halvings(height: int, width: int) -> list[tuple[int, int]]:
    """Return the sizes (height, width) after each stride-2 convolution, until a side is below 8.

    ConfigError unless the sides are 32 to 1024 pixels.
    """
    if min(height, width) < LOWEST_SIDE or max(height, width) > HIGHEST_SIDE:
        raise ConfigError(
            f"an encoder was given images of {height} x {width} pixels. Expected sides of "
            f"{LOWEST_SIDE} to {HIGHEST_SIDE}; resize them, 64 x 64 is usual."
        )
    sizes = []
    while min(height, width) >= 8:
        height, width = height // 2, width // 2
        sizes.append((height, width))
    return sizes


def map_sizes(height: int, width: int, fewest: int = 1) -> list[tuple[int, int]]:
    """Return the sizes after each convolution, at least ``fewest``, down to the keypoints' maps."""
    sizes = halvings(height, width)
    count = max(fewest, sum(max(size) > LARGEST_MAP for size in sizes) + 1)
    return sizes[:count]


def axes_of(rows: int, columns: int) -> tuple[Tensor, Tensor]:
    """Return the coordinates of rows and columns, from -1 to 1."""
    return torch.linspace(-1, 1, rows), torch.linspace(-1, 1, columns)


def channels_of(count: int) -> list[int]:
    """Return the channels after each of ``count`` convolutions."""
    return [CHANNELS[min(index, len(CHANNELS) - 1)] for index in range(count)]


def _halving(channels: list[int]) -> list[nn.Module]:
    """Return layers from the first number of channels to the last; each step halves the sides."""
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(channels):
        layers += [nn.Conv2d(before, after, 4, 2, 1), nn.ReLU()]
    return layers


def _limited(output: Tensor, latent_size: int) -> Tensor:
    """Clamp the log variances to :data:`LOG_VARIANCE`."""
    mean, log_variance = output[:, :latent_size], output[:, latent_size:]
    return torch.cat([mean, log_variance.clamp(*LOG_VARIANCE)], 1)


class ConvEncoder(nn.Module):
    """Stride-2 convolutions down to 4 to 7 cells a side, then one linear layer."""

    def __init__(self, height: int, width: int, latent_size: int) -> None:
        super().__init__()
        self.latent_size = latent_size
        sizes = halvings(height, width)
        channels = [3, *channels_of(len(sizes))]
        self.features = nn.Sequential(*_halving(channels))
        # A linear layer as a convolution over all cells: quantization leaves the last convolution
        # in floats, which keeps its rounding out of the latent vector.
        self.head = nn.Conv2d(channels[-1], 2 * latent_size, sizes[-1])

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, 2 D) for normalised float images (N, 3, H, W)."""
        return _limited(self.head(self.features(images)).flatten(1), self.latent_size)


class SpatialEncoder(nn.Module):
    """Keypoints, then one linear layer: positions are nearly linear in the latent.

    Convolutions make one map per keypoint. The keypoint's position is the weighted mean over its
    map, as in the spatial soft-argmax of Finn et al. (2016); the logarithm of the map's sum is its
    strength. Weights are squares of the positive part instead of exponentials, so that empty cells
    weigh nothing, however many they are.

    The second moments of the position go into the linear layer too: for a camera at an angle,
    positions on a table are curved functions of positions in the image, and these are the next
    terms of the curve.
    """

    grid: Tensor

    def __init__(
        self, height: int, width: int, latent_size: int, keypoints: int = KEYPOINTS
    ) -> None:
        super().__init__()
        self.latent_size = latent_size
        sizes = map_sizes(height, width)
        layers = _halving([3, *[SPATIAL_CHANNELS] * len(sizes)])
        for _ in range(2):
            layers += [nn.Conv2d(SPATIAL_CHANNELS, SPATIAL_CHANNELS, 3, 1, 1), nn.ReLU()]
        self.features = nn.Sequential(*layers)
        self.maps = nn.Conv2d(SPATIAL_CHANNELS, keypoints, 1)
        # Maps that start flat put every keypoint in the middle, with hardly any gradient.
        nn.init.normal_(self.maps.weight, std=0.5)
        down, across = axes_of(*sizes[-1])
        y, x = (axis.flatten() for axis in torch.meshgrid(down, across, indexing="ij"))
        moments = [x, y, 2.0 * x * y, x * x, y * y]
        self.register_buffer("grid", torch.stack(moments, 1), persistent=False)
        self.head = nn.Linear((len(moments) + 1) * keypoints, 2 * latent_size)
        # Start with means that vary and variances well below the prior's.
        with torch.no_grad():
            nn.init.orthogonal_(self.head.weight[:latent_size], gain=2.0)
            self.head.weight[latent_size:] *= 0.1
            self.head.bias[:latent_size] = 0.0
            self.head.bias[latent_size:] = -4.0

    def forward(self, images: Tensor) -> Tensor:
        """Return (N, 2 D) for normalised float images (N, 3, H, W)."""
        maps = self.maps(self.features(images)).flatten(2)
        # Always in float32: a position needs more than bfloat16's 8 bits.
        with torch.autocast(images.device.type, enabled=False):
            weights = maps.float().relu().square()
            total = weights.sum(2, keepdim=True) + LEAST_WEIGHT
            places = (weights @ self.grid.float()) / total
            strength = 0.1 * total.log()
            keypoints = torch.cat([places, strength], 2).flatten(1)
            output = linear(keypoints, self.head.weight.float(), self.head.bias.float())
            return _limited(output, self.latent_size)


def build_encoder(architecture: str, height: int, width: int, outputs: int) -> nn.Module:
    """Build an untrained encoder of one of :data:`ENCODERS`; seeded by ``torch.manual_seed``.

    Images are ``height`` x ``width`` pixels; ``outputs`` is twice the latent size.
    """
    if architecture not in ENCODERS:
        raise ConfigError(
            f"there is no encoder architecture {architecture!r}. Expected one of "
            f"{', '.join(ENCODERS)}; choose one of these."
        )
    if not 2 <= outputs <= 2 * MAX_LATENT or outputs % 2:
        raise ConfigError(
            f"the encoder {architecture} has {outputs} outputs. Expected an even number up to "
            f"{2 * MAX_LATENT}: as many log variances as means."
        )
    kind = ConvEncoder if architecture == "conv_vae" else SpatialEncoder
    return kind(height, width, outputs // 2)
