"""What a backend must know about a network: plain data that can be pickled and sent anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from vinoreward.backends.base import TensorSpec
from vinoreward.errors import ConfigError

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """How an unsigned-byte RGB picture becomes the float input of a network.

    The network's input is ``(pixel / scale - mean) / std`` per channel. ``mean`` and ``std`` are in
    the network's channel order, which is ``color_order``. The pictures given to a backend are RGB
    in the order N, H, W, C whatever the network wants.
    """

    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    scale: float = 255.0
    color_order: Literal["RGB", "BGR"] = "RGB"
    layout: Literal["NCHW", "NHWC"] = "NCHW"

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.std) != 3:
            raise ConfigError(
                f"preprocessing has {len(self.mean)} means and {len(self.std)} standard "
                "deviations. Expected three of each, one per colour channel."
            )
        if min(self.std) <= 0 or self.scale <= 0:
            raise ConfigError(
                f"preprocessing has std={self.std} and scale={self.scale}. Expected positive "
                "numbers, because the picture is divided by them."
            )
        if self.color_order not in ("RGB", "BGR") or self.layout not in ("NCHW", "NHWC"):
            raise ConfigError(
                f"preprocessing has color_order={self.color_order!r} and layout={self.layout!r}. "
                "Expected RGB or BGR, and NCHW or NHWC."
            )


@dataclass(frozen=True)
class NetworkSpec:
    """One network, described so that every backend can run it.

    Attributes:
        path: the ``.onnx`` file or the OpenVINO ``.xml`` (with its ``.bin`` beside it).
        input: what callers give, normally ``(None, H, W, 3)`` uint8 RGB pictures.
        output: what callers get, normally ``(None, K)`` float32 logits.
        sha256: expected hash of ``path``; checked when the network is loaded.
        preprocess: ``None`` when the graph takes uint8 N, H, W, C itself (every bundle's own
            network does). Otherwise the backend puts these steps in front of the graph.
        output_index: which output of the graph is meant.
        joined_index: another output, whose columns are put behind those of the first.
        architecture: name known to :func:`vinoreward.backends.torch_networks.build` or
            :func:`vinoreward.backends.torch_encoders.build_encoder`.
        weights: ``.safetensors`` file with the state dict of that bare network.
        weights_sha256: expected hash of ``weights``.
        mean: per-channel mean of the torch network's input, in units of 0 to 1.
        std: per-channel standard deviation of the same.
        bin_sha256: expected hash of the ``.bin`` beside an ``.xml``.
        trusted: run any operators, of any cost. Otherwise the file is refused unless each of its
            operators is known and what they need is bounded, see ``SECURITY.md``.
    """

    path: Path
    input: TensorSpec
    output: TensorSpec
    sha256: str | None = None
    preprocess: Preprocess | None = None
    output_index: int = 0
    joined_index: int | None = None
    architecture: str | None = None
    weights: Path | None = None
    weights_sha256: str | None = None
    mean: tuple[float, ...] = IMAGENET_MEAN
    std: tuple[float, ...] = IMAGENET_STD
    bin_sha256: str | None = None
    trusted: bool = False

    @property
    def outputs(self) -> tuple[int, ...]:
        """The outputs of the graph that make the result, in order."""
        first = (self.output_index,)
        return first if self.joined_index is None else (*first, self.joined_index)
