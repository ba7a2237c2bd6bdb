"""``vinoreward import-classifier``: a classifier trained elsewhere becomes a bundle."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import made_up_images
from vinoreward.bundles.importers.modules import load_state, without_prefix
from vinoreward.bundles.schema import ONE_COLUMN
from vinoreward.entry_points import named_function
from vinoreward.errors import ConfigError, needed_for
from vinoreward.images import View
from vinoreward_training.classifier.lerobot import (
    LABELS,
    is_reward_classifier,
    read_reward_classifier,
)
from vinoreward_training.configs import ImportClassifierConfig
from vinoreward_training.runs.imports import in_options
from vinoreward_training.runs.next_command import after_import
from vinoreward_training.runs.settings import refuse_ignored

if TYPE_CHECKING:
    from torch import nn

FACTORY = "a function without arguments that builds the network"
_OF_FILES = (
    "labels", "success_label", "architecture", "module", "size", "mean", "std", "scale",
    "color_order", "layout", "output", "output_index", "crop",
)  # fmt: skip


def torchvision_network(name: str, state: Path, labels: int, output: str | None) -> nn.Module:
    """Return an untrained classifier of torchvision's, with the outputs that a state dict has."""
    with needed_for("building a torchvision network", "train"):
        import torchvision
    known = torchvision.models.list_models(module=torchvision.models)
    if name not in known:
        raise ConfigError(
            f"torchvision has no classifier {name!r}. Expected one of {', '.join(known)}; for "
            "another network give --module, or export it as ONNX."
        )
    # They fill fresh weights with a slow SciPy distribution, and warn of it.
    more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}

    def build(outputs: int) -> nn.Module:
        module: nn.Module = torchvision.models.get_model(
            name, weights=None, num_classes=outputs, **more
        )
        return module

    single = output in ONE_COLUMN
    net = build(1 if single else labels)
    if output is None and labels == 2:
        one = build(1)
        wanted = {key: value.shape for key, value in one.state_dict().items()}
        found = without_prefix(load_state(state), wanted)
        if {key: value.shape for key, value in found.items()} == wanted:
            return one
    return net


def _described(config: ImportClassifierConfig, onnx_path: Path) -> Bundle:
    """Return the bundle in memory; a module is exported to ``onnx_path``."""
    height, width = config.size or (None, None)
    facts: dict[str, Any] = {
        "labels": config.labels or None,
        "success_label": config.success_label,
        "mean": config.mean,
        "std": config.std,
        "scale": config.scale,
        "color_order": config.color_order,
        "output": config.output,
        "threshold": config.threshold,
        "crop": config.crop,
        "resize": "pil_bilinear" if config.resize else "none",
        "name": config.name or config.model.stem,
    }
    if is_reward_classifier(config.model):
        refuse_ignored(config, _OF_FILES, "a folder of LeRobot, which says it itself,")
        return _of_lerobot(config, onnx_path)
    if config.model.suffix in (".onnx", ".xml"):
        refuse_ignored(config, ("architecture", "module"), "a file with its graph")
        return Bundle.from_model(
            config.model,
            height=height,
            width=width,
            layout=config.layout,
            output_index=config.output_index,
            **facts,
        )
    if config.model.suffix not in (".pt", ".pth", ".bin", ".safetensors"):
        raise ConfigError(
            f"{config.model} is no network that can be imported. Expected an .onnx, or a "
            "state dict (.pt, .pth, .safetensors); export the network as ONNX."
        )
    refuse_ignored(config, ("layout", "output_index"), "the import of a state dict")
    if config.module is not None:
        refuse_ignored(config, ("architecture",), "an import with --module")
    needed = {
        "--architecture (a torchvision name such as resnet18) or --module": config.architecture
        or config.module,
        "--size HEIGHT WIDTH": config.size,
        "--labels": config.labels,
        "--mean": config.mean,
        "--std": config.std,
    }
    if missing := [name for name, value in needed.items() if not value]:
        raise ConfigError(
            f"{config.model} is a state dict, which does not say what it belongs to. Expected also "
            f"{', '.join(missing)}."
        )
    if config.module is not None:
        module = named_function(config.module, "module", FACTORY)()
    else:
        module = torchvision_network(
            str(config.architecture), config.model, len(config.labels), config.output
        )
    given = {name: value for name, value in facts.items() if value is not None}
    return Bundle.from_model(
        onnx_path,
        module=module,
        weights=config.model,
        height=int(height or 0),
        width=int(width or 0),
        **given,
    )


def _of_lerobot(config: ImportClassifierConfig, onnx_path: Path) -> Bundle:
    """Return the bundle of a LeRobot reward classifier; its folder says everything else."""
    found = read_reward_classifier(config.model)
    height, width = found.size
    several = len(found.cameras) > 1
    bundle = Bundle.from_model(
        onnx_path,
        module=found.module(),
        height=height,
        width=width,
        mean=(0.0, 0.0, 0.0),  # it normalises each camera's image itself
        std=(1.0, 1.0, 1.0),
        output="logit",
        labels=LABELS,
        success_label=LABELS[1],
        threshold=config.threshold,
        resize="pil_bilinear" if config.resize and not several else "none",
        name=config.name or config.model.resolve().name,
    )
    if not several:
        return bundle
    views = tuple(
        View(camera.key.rpartition(".")[2], camera.height, f"obs:{camera.key}")
        for camera in found.cameras
    )
    image = dataclasses.replace(bundle.spec.image, views=views)
    return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, image=image))


def run(config: ImportClassifierConfig) -> int:
    """Describe, check and save; return 0."""
    with tempfile.TemporaryDirectory() as folder, in_options():
        bundle = _described(config, Path(folder) / "model.onnx")
        image = bundle.spec.image
        # Until the bundle is calibrated, no image of its camera is known. One of its own size is
        # neither cropped nor resized: these are the network's input.
        saved = bundle.save_prepared(config.out, made_up_images(image), overwrite=config.overwrite)
    spec = saved.spec
    print(
        f"bundle {saved.path}: {image.height} x {image.width} pixels, {image.color_order}, to"
        f" {spec.output} of {', '.join(spec.labels)}; {spec.success_label!r} means success."
    )
    print(f"its threshold of {spec.decision.threshold:g} is not calibrated yet.")
    print(f"next: {after_import(saved.path)}")
    return 0
