"""The network that ``finetune`` trains, and the weights that it begins with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.backends.torch_classifiers import (
    OWN,
    TIMM,
    SeveralViews,
    build,
    check_name,
    head_of,
)
from vinoreward.backends.torch_networks import WithPreprocess
from vinoreward.bundles.importers.modules import load_state
from vinoreward.errors import ConfigError, ModelCorruptError, ModelNotFoundError
from vinoreward_training.classifier.training import ChannelsLast
from vinoreward_training.configs import FinetuneConfig
from vinoreward_training.data.dataset import Dataset

Normalization = tuple[tuple[float, ...], tuple[float, ...]]
Weights = Mapping[str, Tensor]
_HALVES = ("googlenet", "inception_v3")
"""Their weights want pixels from -1 to 1, to which torchvision itself (``transform_input``) brings
images that were normalised for ImageNet."""
MOMENTUM = 0.1
"""Least momentum of batch normalization. MobileNetV3's 0.01 is for a million steps: after the few
hundred of a small data set its running statistics are still half random."""


def check_network(config: FinetuneConfig) -> None:
    """Raise ConfigError if there is no such network, or its options contradict each other."""
    check_name(config.network)
    if config.weights is not None and config.pretrained:
        raise ConfigError(
            "found `weights` and `pretrained`. Expected one source of initial weights; leave the "
            "other out.",
            field="pretrained",
        )
    if config.freeze and config.weights is None and not config.pretrained:
        raise ConfigError(
            "only the last layer is trained, and the layers before it are random. Expected initial "
            "weights; give `pretrained`, or a file of them with `weights`.",
            field="freeze",
        )


def build_for(
    config: FinetuneConfig, height: int, width: int, views: Sequence[tuple[str, int]] = ()
) -> nn.Module:
    """Return the network of a training with its initial weights, for images of this size.

    ``views`` are names and heights of the views in an image; empty for an image of one.

    Raises:
        ConfigError: the network does not take images of this size.
        ModelNotFoundError, ModelCorruptError: no initial weights, or of another network.
    """
    outputs = 3 if config.progress else 2
    net = build(config.network, outputs, views)
    _initialise(config.network, net)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.momentum is not None:
            module.momentum = max(module.momentum, MOMENTUM)
    check_size(config.network, net, height, width, outputs)
    if config.weights is not None or config.pretrained:
        source = config.weights or f"{config.network}, pretrained"
        if config.weights is None:
            weights = pretrained_weights(config.network)
        else:
            weights = read_weights(config.weights)
        fresh = load_weights(config.network, net, weights, source)
        print(f"weights from {source}; left fresh: {', '.join(fresh) or 'none'}")
    if config.freeze:
        layers = tuple(f"{name}." for name in head_of(config.network, net))
        for name, parameter in net.named_parameters():
            parameter.requires_grad = name.startswith(layers)
    return net


def module_for(config: FinetuneConfig, dataset: Dataset) -> ChannelsLast:
    """Return the network of a training with its preprocessing; see :func:`build_for`."""
    height, width = dataset.images.shape[1:3]
    views = [(view.name, view.height) for view in dataset.views]
    inner = WithPreprocess(build_for(config, height, width, views), *normalization(config.network))
    return ChannelsLast(inner, frozen=config.freeze)


def _initialise(architecture: str, net: Any) -> None:
    """Draw initial weights of the convolutions that are not torchvision's or timm's."""
    if isinstance(net, SeveralViews):
        for part in (*([net.features] if architecture in OWN else []), net.cameras):
            _draw(part)
        _draw(net.classifier, net.classifier[-1])
    elif architecture in OWN:
        _draw(net, net.classifier[0])


def _draw(network: nn.Module, head: nn.Module | None = None) -> None:
    """Draw initial weights of convolutions: small ones in a network's last one, ``head``."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and module is not head:
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
    if isinstance(head, nn.Conv2d) and head.bias is not None:
        nn.init.normal_(head.weight, std=0.01)
        nn.init.zeros_(head.bias)


def check_size(
    architecture: str, net: nn.Module, height: int, width: int, outputs: int = 2
) -> None:
    """Raise ConfigError unless a network takes images of this size and gives so many outputs."""
    training = net.training
    net.eval()
    pools = [each for each in net.modules() if isinstance(each, nn.MaxPool2d)]
    hooks = [each.register_forward_pre_hook(_check_window) for each in pools]
    try:
        with torch.inference_mode():
            logits = net(torch.zeros(1, 3, height, width))
    except (RuntimeError, AssertionError, ValueError, IndexError) as error:
        raise ConfigError(
            f"{architecture} does not take images of {height} x {width} pixels "
            f"({str(error).splitlines()[0] if str(error) else type(error).__name__}). Expected "
            "a size that it takes; give another `image_size`, or choose another `network`.",
            field="image_size",
        ) from error
    finally:
        net.train(training)
        for hook in hooks:
            hook.remove()
    if not isinstance(logits, Tensor) or logits.shape != (1, outputs):
        raise ConfigError(
            f"{architecture} gives no logits for two labels. Expected a classifier; choose another "
            "`network`.",
            field="network",
        )


def _check_window(pool: nn.Module, inputs: tuple[Tensor, ...]) -> None:
    """Raise ValueError where PyTorch fills up a pool's input, which OpenVINO refuses to do."""
    window, padding = (torch.tensor(getattr(pool, name)) for name in ("kernel_size", "padding"))
    size = torch.tensor(inputs[0].shape[-2:])
    if (window > size + 2 * padding).any():
        got = " x ".join(map(str, size.tolist()))
        raise ValueError(f"a pool is larger than its input of {got}")


def normalization(network: str) -> Normalization:
    """Return mean and standard deviation of a channel, in units of 0 to 1.

    They are those of the network's published weights. These may come as a file too, and so may
    weights that were trained from them; without any, all serve.
    """
    if network in _HALVES:
        return (0.5, 0.5, 0.5), (0.5, 0.5, 0.5)
    about = _timm_config(network)
    return (IMAGENET_MEAN, IMAGENET_STD) if about is None else (about.mean, about.std)


def _timm_config(architecture: str) -> Any:
    if not architecture.startswith(TIMM):
        return None
    import timm

    return timm.get_pretrained_cfg(architecture.removeprefix(TIMM))


def read_weights(path: Path) -> Weights:
    """Read a state dict from a ``.safetensors`` or ``.pt`` file."""
    if not path.is_file():
        raise ModelNotFoundError(
            f"there are no weights at {path}. Expected a .safetensors or .pt file; correct "
            "`weights`.",
            field="weights",
        )
    return dict(load_state(path))


def pretrained_weights(architecture: str) -> Weights:
    """Return the weights that torchvision or timm publish, from their cache or downloaded.

    ModelNotFoundError if there are none, or they can not be downloaded.
    """
    source = "them"
    try:
        if architecture.startswith(TIMM):
            from huggingface_hub import hf_hub_download

            about = _timm_config(architecture)
            name = about.hf_hub_filename or "model.safetensors"
            if about.hf_hub_id:
                source = f"https://huggingface.co/{about.hf_hub_id}/resolve/main/{name}"
            return read_weights(Path(hf_hub_download(about.hf_hub_id, name)))
        from torchvision.models import get_model_weights

        published = get_model_weights(architecture).DEFAULT
        source = published.url
        weights: Weights = published.get_state_dict(
            progress=False, check_hash=True, weights_only=True
        )
        return weights
    except Exception as error:  # of the library, the download or the file
        why = (str(error) or type(error).__name__).strip().splitlines()[0][:200]
        raise ModelNotFoundError(
            f"there are no published weights of {architecture} here ({why}). Expected some in the "
            f"library's cache, or a connection to download them; download {source} elsewhere and "
            "give the file with `weights`, or choose another `network`.",
            field="pretrained",
        ) from error


def load_weights(
    architecture: str, net: nn.Module, weights: Weights, source: Path | str
) -> list[str]:
    """Load weights into a network; return the names left untrained.

    The last layer keeps its fresh values where its shape differs (it was for other classes), and so
    does what ``weights`` does not name. ModelCorruptError if nothing fits, or another layer has
    another shape.
    """
    own = net.state_dict()
    head = tuple(f"{name}." for name in head_of(architecture, net))
    known = {_name_in(own, name, net, architecture): value for name, value in weights.items()}
    known = {name: value for name, value in known.items() if name in own}
    fits = {name: value for name, value in known.items() if own[name].shape == value.shape}
    wrong = [name for name in known if name not in fits and not name.startswith(head)]
    if wrong or not fits:
        why = f"nothing in it fits ({len(weights)} tensors, {len(own)} wanted)"
        if wrong:
            why = f"{len(wrong)} layers have other shapes, {wrong[0]} among them"
        raise ModelCorruptError(
            f"{source} does not hold weights of {architecture}: {why}. Expected a state dict of "
            "the same network; name that network with `network`, or leave the weights out.",
            field="weights",
        )
    net.load_state_dict({**own, **fits})
    return sorted(set(own) - set(fits))


def _name_in(own: Weights, name: str, net: nn.Module, architecture: str) -> str:
    """Return the network's name for a tensor of a file."""
    name = name.removeprefix("net.")
    if isinstance(net, SeveralViews):
        return name if name in own else f"features.{name}"
    if name not in own and architecture in OWN:
        # torchvision's head is a Sequential with dropout first, ours starts with the convolution.
        return name.replace("classifier.1.", "classifier.0.")
    return name
