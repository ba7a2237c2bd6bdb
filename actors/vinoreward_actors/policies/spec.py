"""The description of a policy network as plain data, from which any backend can build it.

A network is a chain of layers. The last one is the head; a value head may share its input. The
layer types are deliberately few: every backend here can compress all of them.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from vinoreward.errors import ConfigError

Activation = Literal["none", "relu", "tanh", "elu", "silu"]
Head = Literal["logits", "q", "tanh_gaussian", "tanh"]
ObservationType = Literal["float32", "uint8"]
MAX_SIDE = 65_536
"""Maximum width of a layer and side of an image; specs may come from untrusted files."""


@dataclass(frozen=True)
class Dense:
    """``activation(x @ weight.T + bias)``.

    The parameters are ``NAME.weight`` (outputs, inputs) and ``NAME.bias`` (outputs,). Names are
    unique in a network.
    """

    name: str
    inputs: int
    outputs: int
    activation: Activation = "none"


@dataclass(frozen=True)
class Conv:
    """Two-dimensional convolution without padding, over (channels, height, width).

    The parameters are ``NAME.weight`` (outputs, inputs, kernel, kernel) and ``NAME.bias``
    (outputs,); the kernel is square, ``kernel`` and ``stride`` are in pixels.
    """

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    activation: Activation = "relu"


@dataclass(frozen=True)
class Flatten:
    """Flattens (channels, height, width) to one vector, channels first."""

    name: str = "flatten"


Layer = Dense | Conv | Flatten
_KINDS: Mapping[str, type[Layer]] = {"dense": Dense, "conv": Conv, "flatten": Flatten}


@dataclass(frozen=True)
class PolicySpec:
    """A policy network without its weights.

    Raises:
        ConfigError: layers that do not fit together.
    """

    observation_shape: tuple[int, ...]
    """Of one observation, (D,) or (C, H, W)."""
    layers: tuple[Layer, ...]
    """In order; the last is a Dense head without activation."""
    head: Head
    """Meaning of its outputs. ``"logits"``: logits of the actions. ``"q"``: action values.
    ``"tanh"``: actions before the tanh. ``"tanh_gaussian"``: means, then natural logarithms of
    standard deviations, of actions before the tanh (Haarnoja et al. 2018, appendix C)."""
    actions: int
    """Number of discrete actions, or dimensions of a continuous one in [-1, 1]."""
    value: Dense | None = None
    """Optional Dense layer with one output and the head's input."""
    observation_dtype: ObservationType = "float32"
    """``"float32"``, or ``"uint8"`` for images."""
    scale: float = 1.0
    """Factor for observations before the first layer (1 / 255 for images)."""

    def __post_init__(self) -> None:
        if self.head not in get_args(Head) or self.observation_dtype not in get_args(
            ObservationType
        ):
            raise ConfigError(
                f"the policy has head {self.head!r} and observations of {self.observation_dtype}. "
                f"Expected one of {', '.join(get_args(Head))}, and float32 or uint8."
            )
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise ConfigError(f"the policy's scale is {self.scale}. Expected a positive number.")
        names = [layer.name for layer in self.layers] + ([self.value.name] if self.value else [])
        if len(set(names)) != len(names) or not all(name and "." not in name for name in names):
            raise ConfigError(
                f"the policy's layers are named {names}. Expected distinct names without dots."
            )
        shapes = self.shapes()
        last = self.layers[-1] if self.layers else None
        wanted = self.actions * (2 if self.head == "tanh_gaussian" else 1)
        if (
            not isinstance(last, Dense)
            or last.activation != "none"
            or last.outputs != wanted
            or self.actions < 1
        ):
            raise ConfigError(
                f"the policy's last layer is {last}. Expected a Dense layer of {wanted} outputs "
                f"without activation: the head {self.head} for {self.actions} actions."
            )
        if self.value is not None and (
            self.value.outputs != 1
            or self.value.activation != "none"
            or (self.value.inputs,) != shapes[-2]
        ):
            raise ConfigError(
                f"the value head is {self.value}. Expected {shapes[-2]} inputs, as the head has, "
                "and one output without activation."
            )

    @property
    def outputs(self) -> int:
        """K, the number of the head's outputs."""
        return self.shapes()[-1][0]

    @property
    def discrete(self) -> bool:
        """Whether actions are indices from 0 rather than vectors in [-1, 1]."""
        return self.head in ("logits", "q")

    @property
    def weighted(self) -> tuple[Dense | Conv, ...]:
        """The layers with weights, in order, without the value head."""
        return tuple(layer for layer in self.layers if not isinstance(layer, Flatten))

    def shapes(self) -> list[tuple[int, ...]]:
        """Return the shape before the first layer and after each.

        Raises:
            ConfigError: a layer that does not fit the one before.
        """
        shape = tuple(self.observation_shape)
        if len(shape) not in (1, 3) or not all(1 <= side <= MAX_SIDE for side in shape):
            raise ConfigError(
                f"the policy's observations have shape {shape}. Expected (numbers,) or (channels, "
                "height, width)."
            )
        shapes = [shape]
        for layer in self.layers:
            shapes.append(_after(layer, shapes[-1]))
        return shapes

    def parameter_shapes(self) -> dict[str, tuple[int, ...]]:
        """Return name to shape of every parameter, in order, the value head last."""
        shapes: dict[str, tuple[int, ...]] = {}
        for layer in (*self.weighted, *([self.value] if self.value else [])):
            kernel = (layer.kernel, layer.kernel) if isinstance(layer, Conv) else ()
            shapes[f"{layer.name}.weight"] = (layer.outputs, layer.inputs, *kernel)
            shapes[f"{layer.name}.bias"] = (layer.outputs,)
        return shapes

    def multiply_adds(self) -> int:
        """Return the multiply-adds of one action, without the value head."""
        total = 0
        for layer, shape in zip(self.layers, self.shapes()[1:], strict=True):
            if isinstance(layer, Dense):
                total += layer.inputs * layer.outputs
            elif isinstance(layer, Conv):
                total += layer.inputs * layer.kernel**2 * math.prod(shape)
        return total

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for :meth:`from_dict`."""
        layers = [{"kind": type(layer).__name__.lower(), **asdict(layer)} for layer in self.layers]
        shape = list(self.observation_shape)
        return asdict(self) | {"layers": layers, "observation_shape": shape}

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> PolicySpec:
        """Return a spec from plain data.

        Raises:
            ConfigError: data that :meth:`to_dict` does not write.
        """
        try:
            fields: dict[str, Any] = {
                **value,
                "observation_shape": tuple(int(side) for side in value["observation_shape"]),
                "layers": tuple(
                    _KINDS[layer["kind"]](**{key: layer[key] for key in layer if key != "kind"})
                    for layer in value["layers"]
                ),
                "value": None if value.get("value") is None else Dense(**value["value"]),
            }
            return cls(**fields)
        except (KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ConfigError(
                f"cannot read the policy's description ({error!r}). Expected what "
                "PolicySpec.to_dict returns."
            ) from error

    def digest(self) -> str:
        """Return a hash that is equal for two networks if and only if their layers are."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()


def _after(layer: Layer, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape after ``layer``."""
    if isinstance(layer, Flatten):
        return (math.prod(shape),)
    sizes = [layer.inputs, layer.outputs]
    if isinstance(layer, Conv):
        sizes += [layer.kernel, layer.stride]
    if not all(isinstance(size, int) and 1 <= size <= 1_000_000 for size in sizes):
        raise ConfigError(f"the layer {layer} has invalid sizes. Expected 1 to 1000000.")
    if layer.activation not in get_args(Activation):
        raise ConfigError(
            f"the layer {layer} has an unknown activation. Expected one of "
            f"{', '.join(get_args(Activation))}."
        )
    if isinstance(layer, Dense):
        if shape != (layer.inputs,):
            raise ConfigError(
                f"the layer {layer} gets the shape {shape}. Expected ({layer.inputs},); an image "
                "needs a Flatten layer first."
            )
        return (layer.outputs,)
    if len(shape) != 3 or shape[0] != layer.inputs or min(shape[1:]) < layer.kernel:
        raise ConfigError(
            f"the layer {layer} gets the shape {shape}. Expected {layer.inputs} channels of at "
            f"least {layer.kernel} x {layer.kernel} pixels."
        )
    rows, columns = ((side - layer.kernel) // layer.stride + 1 for side in shape[1:])
    return (layer.outputs, rows, columns)


def mlp(
    observation_size: int,
    actions: int,
    *,
    head: Head,
    hidden: Sequence[int] = (256, 256),
    activation: Activation = "relu",
    value: bool = False,
) -> PolicySpec:
    """Return a network of dense layers.

    Args:
        observation_size: numbers in an observation.
        actions: discrete actions, or dimensions of a continuous one.
        head: see :class:`PolicySpec`.
        hidden: widths of the layers before the head.
        activation: of those layers.
        value: whether to add a value head.
    """
    sizes = [observation_size, *hidden]
    pairs = enumerate(itertools.pairwise(sizes))
    layers = [Dense(f"dense{index}", *pair, activation) for index, pair in pairs]
    layers.append(Dense("head", sizes[-1], actions * (2 if head == "tanh_gaussian" else 1)))
    value_head = Dense("value", sizes[-1], 1) if value else None
    return PolicySpec((observation_size,), tuple(layers), head, actions, value=value_head)
