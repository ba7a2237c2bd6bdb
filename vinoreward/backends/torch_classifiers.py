"""Classifier networks by name: SqueezeNet, torchvision's and timm's. Importing this imports torch.

Each maps float images (N, 3, H, W) to logits (N, classes). Nothing is downloaded: weights are a
matter of the caller. Names of torchvision's and timm's layers are theirs, so that their weights can
be loaded.
"""

from __future__ import annotations

import contextlib
import difflib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vinoreward.backends.network import FINE
from vinoreward.errors import ConfigError, needed_for

OWN = ("squeezenet1_1", "squeezenet1_0", FINE)
"""Networks whose last layer is made here: they take images of any size."""
FINE_CHANNELS = 48
TIMM = "timm:"
"""Begins the name of a network of timm, as in ``timm:resnet10t``."""
LOWEST_SIDE = 32
"""Pixels of a view."""
JOINT_CHANNELS, JOINT_SIZE = 128, 64
"""Of what several views are brought together in: features of a camera, and the last layer."""


class _Residual(nn.Module):
    """Two convolutions, whose result is added to their input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*_normed(channels, channels), *_normed(channels, channels)[:-1])

    def forward(self, planes: Tensor) -> Tensor:
        """Return planes of the same shape (N, C, h, w)."""
        return nn.functional.relu(planes + self.layers(planes))


def _normed(before: int, after: int, stride: int = 1) -> list[nn.Module]:
    convolution = nn.Conv2d(before, after, 3, stride, 1, bias=False)
    return [convolution, nn.BatchNorm2d(after), nn.ReLU()]


class SeveralViews(nn.Module):
    """One backbone for all views of an image, and a head that sees the features of all.

    Float (N, 3, sum of heights, W) to logits (N, classes). Features of one camera at several times
    meet place by place, so that a movement can be seen; those of different cameras meet as means
    over the image, as their places have nothing in common. ``views`` has each view's camera and
    height, from top to bottom.
    """

    def __init__(
        self, features: nn.Module, channels: int, classes: int, views: Sequence[tuple[str, int]]
    ) -> None:
        super().__init__()
        for name, height in views:
            if height < LOWEST_SIDE:
                raise ConfigError(
                    f"the view {name!r} is {height} pixels high. Expected at least {LOWEST_SIDE}, "
                    "as the network makes images sixteen times smaller; make it larger."
                )
        self.features = features
        self._heights = [height for _, height in views]
        names = [name for name, _ in views]
        self._cameras = [
            [index for index, name in enumerate(names) if name == camera]
            for camera in dict.fromkeys(names)
        ]
        self.cameras = nn.ModuleList(
            nn.Sequential(nn.Conv2d(channels * len(own), JOINT_CHANNELS, 1), nn.ReLU())
            for own in self._cameras
        )
        self.classifier = nn.Sequential(
            nn.Conv2d(JOINT_CHANNELS * len(self._cameras), JOINT_SIZE, 1),
            nn.ReLU(),
            nn.Conv2d(JOINT_SIZE, classes, 1),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Return logits (N, classes) for normalised float images (N, 3, H, W)."""
        maps = [self.features(view) for view in torch.split(images, self._heights, 2)]
        seen = [
            camera(torch.cat([maps[index] for index in own], 1)).mean((2, 3), keepdim=True)
            for camera, own in zip(self.cameras, self._cameras, strict=True)
        ]
        logits: Tensor = self.classifier(torch.cat(seen, 1))
        return logits.flatten(1)


def build(architecture: str, classes: int = 2, views: Sequence[tuple[str, int]] = ()) -> nn.Module:
    """Build an untrained network; seeded by ``torch.manual_seed``.

    Args:
        architecture: ``squeezenet1_1``, ``fine_resnet``, any other classifier of torchvision
            (``resnet18``, ``mobilenet_v3_small``, ...), or ``timm:NAME``.
        classes: outputs, at least 1.
        views: those of :class:`SeveralViews`; empty for an image of one.

    Raises:
        ConfigError: no such network.
        MissingExtraError: torchvision or timm is not installed.
    """
    if views:
        return SeveralViews(*backbone(architecture), classes, views)
    check_name(architecture)
    if architecture in OWN:
        return _with_head(architecture, classes)
    if architecture.startswith(TIMM):
        return _build_timm(architecture, classes)
    from torchvision.models import get_model

    # Their second outputs, for training, are not of use to one class or two.
    single = architecture in ("googlenet", "inception_v3")
    more: dict[str, Any] = {"aux_logits": False, "init_weights": True} if single else {}
    network: nn.Module = get_model(architecture, weights=None, num_classes=classes, **more)
    return network


def _with_head(architecture: str, classes: int) -> nn.Module:
    """Return one of :data:`OWN`: features, and a convolution whose results are pooled to logits.

    SqueezeNet's are averaged, without torchvision's dropout, which a network this small does not
    need for two classes, and without its last ReLU, which would clip negative logits to 0 and stop
    their gradient. Of ``fine_resnet`` the highest counts: what touches what is seen in one place,
    and a mean over the image would bury it.
    """
    features, channels = _features(architecture)
    pool = nn.AdaptiveMaxPool2d(1) if architecture == FINE else nn.AdaptiveAvgPool2d(1)
    classifier = nn.Sequential(nn.Conv2d(channels, classes, kernel_size=1), pool)
    parts = {"features": features, "classifier": classifier, "flat": nn.Flatten()}
    return nn.Sequential(OrderedDict(parts))


def _features(architecture: str) -> tuple[nn.Module, int]:
    """Return the features of one of :data:`OWN` and their channels.

    SqueezeNet's layers and their names are torchvision's, so that its weights can be loaded. The
    cells of ``fine_resnet`` are 4 pixels wide, and each sees 60 pixels around it.
    """
    if architecture == FINE:
        first = [*_normed(3, 24, 2), *_normed(24, FINE_CHANNELS, 2)]
        residuals = [_Residual(FINE_CHANNELS) for _ in range(3)]
        return nn.Sequential(*first, *residuals), FINE_CHANNELS
    from torchvision.models import squeezenet

    return getattr(squeezenet, architecture)(weights=None).features, 512


def _build_timm(architecture: str, classes: int) -> nn.Module:
    import timm

    name = architecture.removeprefix(TIMM)
    try:
        network: nn.Module = timm.create_model(name, pretrained=False, num_classes=classes)
    except NotImplementedError:
        raise
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        raise ConfigError(
            f"timm cannot build {architecture!r} with {classes} outputs: {error}. Expected the "
            "name of a classifier; choose another network."
        ) from error
    return network


def check_name(architecture: str) -> None:
    """Raise ConfigError unless there is such a network, MissingExtraError without its library."""
    if architecture in OWN:
        return
    if architecture.startswith(TIMM):
        with needed_for(f"the network {architecture!r}", "timm"):
            import timm
        # Others, such as hf-hub:, create_model would look up on the net.
        known = [TIMM + name for name in (*timm.list_models(), *timm.list_pretrained())]
        library = "timm's (timm:NAME)"
    else:
        with needed_for(f"the network {architecture!r}", "train"):
            from torchvision import models
        known = models.list_models(module=models)
        library = f"SqueezeNet, {FINE}, torchvision's classifiers or timm's (timm:NAME)"
    if architecture in known:
        return
    near = difflib.get_close_matches(architecture, known, 3)
    others = near or ["squeezenet1_1", "resnet18", "mobilenet_v3_small", "timm:resnet10t"]
    raise ConfigError(
        f"there is no network {architecture!r}. Expected one of {library}; choose for example "
        f"{', '.join(others)}."
    )


def head_of(architecture: str, network: nn.Module) -> tuple[str, ...]:
    """Return the name of the last layer, which turns features into logits, or of several views'.

    ConfigError if there is no such layer, or there are two.
    """
    if isinstance(network, SeveralViews):
        return ("cameras", "classifier")
    if architecture in OWN:
        return ("classifier.0",)
    modules = list(network.named_modules())
    if architecture.startswith(TIMM):
        last = getattr(network, "get_classifier", lambda: None)()
    else:
        last = next((module for _, module in modules[::-1] if isinstance(module, nn.Linear)), None)
    names: list[str] = [name for name, module in modules if module is last]
    if not names:
        raise ConfigError(
            f"{architecture} has no single last layer. Expected one, which is replaced and trained "
            "for the labels; choose another network."
        )
    return (names[0],)


def backbone(architecture: str) -> tuple[nn.Module, int]:
    """Return an untrained network without its last layer, and its number of channels.

    The module maps float images (N, 3, H, W) to features (N, channels, h, w): SqueezeNet's and
    fine_resnet's place by place, those of others pooled, so that h = w = 1. Errors as
    :func:`build`.
    """
    if architecture in OWN:
        return _features(architecture)
    network = build(architecture, 1)
    (name,) = head_of(architecture, network)
    head = network.get_submodule(name)
    if not isinstance(head, nn.Linear):
        raise ConfigError(
            f"the last layer of {architecture} is a {type(head).__name__}. Expected a linear "
            "layer, whose inputs are the features; choose another network."
        )
    network.set_submodule(name, nn.Unflatten(1, (head.in_features, 1, 1)))
    return network, head.in_features


def rebuild(
    architecture: str,
    classes: int,
    state: Mapping[str, Tensor],
    views: Sequence[tuple[str, int]] = (),
) -> nn.Module:
    """Build the network that a state dict belongs to, with its values.

    ``views`` are those of :class:`SeveralViews`. RuntimeError if the values do not fit; other
    errors as of :func:`build`.
    """
    # A stranger may name a network of gigabytes: its shapes are compared before it takes memory.
    # The RegNets cannot be built without (NotImplementedError); the largest takes 2.6 GB.
    with contextlib.suppress(NotImplementedError), torch.device("meta"):
        build(architecture, classes, views).load_state_dict(state, strict=True, assign=True)
    network = build(architecture, classes, views)
    network.load_state_dict(state, strict=True)
    return network
