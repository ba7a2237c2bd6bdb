"""``vinoreward import``: a classifier or an encoder trained elsewhere becomes a bundle."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import made_up_images
from vinoreward.bundles.importers.modules import load_state, without_prefix
from vinoreward.bundles.locate import MODEL_FILE
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import ONE_COLUMN, Encoding
from vinoreward.entry_points import named_function
from vinoreward.errors import ConfigError, ImageMismatchError, needed_for
from vinoreward.images import ImageSpec, View, read_image
from vinoreward_training.classifier.lerobot import (
    LABELS,
    is_reward_classifier,
    read_reward_classifier,
)
from vinoreward_training.configs import ImportConfig
from vinoreward_training.data.dataset import MIN_FRAMES, load_frames, same_aspect
from vinoreward_training.data.dataset_files import read_about
from vinoreward_training.encoder.probe import bounds, mean_std
from vinoreward_training.runs.next_command import after_import, to_train
from vinoreward_training.runs.settings import refuse_ignored
from vinoreward_training.tasks.recorded import recorded_task

if TYPE_CHECKING:
    from torch import nn

BUILDER = "a function without arguments that builds the network"
MAX_IMAGES = 500
"""On which the bounds of a latent are measured."""
GOLDEN_IMAGES = 8
MAX_BYTES = 2**28
"""Of typical images in memory."""
OF_IMAGES = ("mean", "std", "scale", "color_order")
OF_CLASSIFIERS = ("labels", "success_label", "output")
OF_ENCODERS = ("data", "golden")
OF_GRAPHS = ("layout", "outputs")
OF_LEROBOT = ("network", "height", "width", "crop", *OF_IMAGES, *OF_GRAPHS, *OF_CLASSIFIERS)


def run(config: ImportConfig) -> int:
    """Describe the network, check it and save the bundle; return 0."""
    encoder = _is_encoder(config)
    others = OF_CLASSIFIERS if encoder else OF_ENCODERS
    refuse_ignored(config, others, f"the import of {'an encoder' if encoder else 'a classifier'}")
    import_one = _import_encoder if encoder else _import_classifier
    with tempfile.TemporaryDirectory() as folder:
        import_one(config, Path(folder) / "model.onnx")
    return 0


def _is_encoder(config: ImportConfig) -> bool:
    if config.labels or is_reward_classifier(config.model):
        return False
    return config.data is not None or config.golden is not None


def _facts(config: ImportConfig, names: tuple[str, ...]) -> dict[str, Any]:
    """Return what the options say of the network; what they leave out is not in it."""
    names = ("height", "width", "crop", *OF_IMAGES, *names)
    facts = {name: getattr(config, name) for name in names}
    facts |= {"resize": "pil_bilinear", "name": config.name or config.model.stem}
    return {name: value for name, value in facts.items() if value not in (None, ())}


def _check_state_dict(config: ImportConfig, *needed: str) -> None:
    """Raise ConfigError unless the options say what a file of weights does not."""
    if config.model.suffix not in (".pt", ".pth", ".bin", ".safetensors"):
        raise ConfigError(
            field="model",
            value=str(config.model),
            expected="an .onnx, or a state dict (.pt, .pth, .safetensors)",
            remedy="export the network as ONNX",
        )
    refuse_ignored(config, OF_GRAPHS, "the import of a state dict")
    names = ("network", "height", "width", *needed)
    if missing := [f"`{name}`" for name in names if getattr(config, name) in (None, ())]:
        raise ConfigError(
            f"{config.model} is a state dict, which does not say what it belongs to. Expected also "
            f"{', '.join(missing)}; `network` is a name of torchvision's or a function that builds "
            "the module.",
            field=missing[0].strip("`"),
        )


def _import_classifier(config: ImportConfig, onnx_path: Path) -> None:
    if is_reward_classifier(config.model):
        refuse_ignored(config, OF_LEROBOT, "a folder of LeRobot, which says it itself,")
        bundle = _of_lerobot(config, onnx_path)
    elif config.model.suffix in (".onnx", ".xml"):
        refuse_ignored(config, ("network",), "a file with its graph")
        facts = _facts(config, (*OF_CLASSIFIERS, "layout"))
        if config.outputs:
            if len(config.outputs) > 1 or not config.outputs[0].isdecimal():
                raise ConfigError(
                    field="outputs", value=config.outputs, expected="the number of one output"
                )
            facts["output_index"] = int(config.outputs[0])
        bundle = Bundle.from_model(config.model, **facts)
    else:
        _check_state_dict(config, "labels", "mean", "std")
        module, facts = _classifier_network(config), _facts(config, OF_CLASSIFIERS)
        bundle = Bundle.from_model(onnx_path, module=module, weights=config.model, **facts)
    spec, image = bundle.spec, bundle.spec.image
    # Until the bundle is calibrated no image of its camera is known. Images of the network's own
    # size are neither cropped nor resized.
    images = made_up_images(image)
    with bundle.backend("openvino", precision="fp32", verify=False) as backend:
        outputs = backend.infer(images)
    files = {MODEL_FILE: bundle.path}
    path = save_bundle(config.out, spec, files, images, outputs, overwrite=config.overwrite)
    print(
        f"bundle {path}: {image.height} x {image.width} pixels, {image.color_order}, to"
        f" {spec.output} of {', '.join(spec.labels)}; {spec.success_label!r} means success."
    )
    print(f"its threshold of {spec.decision.threshold:g} is not calibrated yet.")
    print(f"next: {after_import(path)}")


def _classifier_network(config: ImportConfig) -> nn.Module:
    """Return the untrained network of a state dict, with the outputs that the file has."""
    name = str(config.network)
    if ":" in name:
        module: nn.Module = named_function(name, "network", BUILDER)()
        return module
    with needed_for("building a torchvision network", "train"):
        import torchvision
    if name not in torchvision.models.list_models(module=torchvision.models):
        raise ConfigError(
            field="network",
            value=name,
            expected="a classifier of torchvision or a function that builds the module",
            remedy="correct `network`, or export the network as ONNX",
        )
    # They fill fresh weights with a slow SciPy distribution, and warn of it.
    more = {"init_weights": False} if name in ("googlenet", "inception_v3") else {}

    def build(outputs: int) -> nn.Module:
        net: nn.Module = torchvision.models.get_model(
            name, weights=None, num_classes=outputs, **more
        )
        return net

    if config.output in ONE_COLUMN:
        return build(1)
    if config.output is None and len(config.labels) == 2:
        one = build(1)
        wanted = {key: value.shape for key, value in one.state_dict().items()}
        found = without_prefix(load_state(config.model), wanted)
        if {key: value.shape for key, value in found.items()} == wanted:
            return one
    return build(len(config.labels))


def _of_lerobot(config: ImportConfig, onnx_path: Path) -> Bundle:
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
        resize="none" if several else "pil_bilinear",
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


def _import_encoder(config: ImportConfig, onnx_path: Path) -> None:
    if config.data is None or config.golden is None:
        raise ConfigError(
            field="data" if config.data is None else "golden",
            value=None,
            expected="a folder of typical images for an encoder, and an image with its latent",
        )
    facts: dict[str, Any] = {"mean": (0.0,) * 3, "std": (1.0,) * 3, "scale": 255.0}
    facts |= _facts(config, ("golden",))
    with contextlib.suppress(OSError, ValueError):  # Bundle.from_encoder says what is wrong
        facts["latent_size"] = np.load(config.golden[1], mmap_mode="r").size
    if config.model.suffix in (".onnx", ".xml"):
        outputs = [int(one) if one.isdecimal() else one for one in config.outputs] or None
        bundle = Bundle.from_encoder(config.model, layout=config.layout, outputs=outputs, **facts)
    else:
        _check_state_dict(config)
        module = named_function(str(config.network), "network", BUILDER)()
        bundle = Bundle.from_encoder(onnx_path, module=module, weights=config.model, **facts)
    images = _typical_images(config, config.data, config.golden[0], bundle.spec.image)
    encoding = _with_bounds(bundle, images)
    dataset = {**bundle.spec.dataset, **recorded_task(read_about(config.data))}
    spec = dataclasses.replace(bundle.spec, dataset=dataset, encoding=encoding)
    saved = dataclasses.replace(bundle, spec=spec).save(
        config.out, images[:GOLDEN_IMAGES], overwrite=config.overwrite
    )
    outputs_are = "means and variances" if encoding.posterior else "one vector"
    print(
        f"bundle {saved.path}: {spec.image.height} x {spec.image.width} pixels to "
        f"{spec.latent_size} numbers ({outputs_are}); the golden image's latent is right."
    )
    print(f"next: {to_train(saved.path, saved.spec)}")


def _with_bounds(bundle: Bundle, images: npt.NDArray[np.uint8]) -> Encoding:
    """Return the encoding with bounds and deviation measured on typical images (N, h, w, 3)."""
    encoding = cast(Encoding, bundle.spec.encoding)
    size = len(encoding.low)
    with bundle.backend("openvino", precision="fp32", verify=False) as backend:
        outputs = backend.infer(bundle.prepare(images))
    std = mean_std(outputs[:, size:]) if encoding.posterior else np.zeros(size, np.float32)
    low, high = bounds(outputs[:, :size], std)
    # A number that is the same for all images still needs an interval.
    room = np.maximum(0.0, 1e-3 - (high - low))
    return dataclasses.replace(
        encoding,
        low=tuple(map(float, low - room)),
        high=tuple(map(float, high + room)),
        std=tuple(map(float, std)) if encoding.posterior else None,
    )


def _typical_images(
    config: ImportConfig, data: Path, golden: Path, image: ImageSpec
) -> npt.NDArray[np.uint8]:
    """Return typical images (N, h, w, 3) uint8, before the bundle crops and resizes them.

    ImageMismatchError if they would be stretched, and the golden image has another shape.
    """
    # A few first: many large ones would fill the memory.
    few = load_frames(data, limit=MIN_FRAMES).images
    size = (few.shape[1], few.shape[2])
    part = size if config.crop is None else config.crop[2:]
    wanted = (image.height, image.width)
    known = same_aspect(read_image(golden).shape[:2], size)
    if not known and not same_aspect(part, wanted):
        raise ImageMismatchError(
            f"{part[0]} x {part[1]} pixels (height x width) would be stretched to the encoder's "
            f"{wanted[0]} x {wanted[1]}, which moves everything that it knows the place of. "
            "Expected the same aspect ratio: cut out what was cut out in training with `crop`; if "
            "it was trained on stretched images, give a `golden` image of that shape.",
            field="crop",
        )
    count = max(MIN_FRAMES, min(MAX_IMAGES, MAX_BYTES // few[0].nbytes))
    return load_frames(data, limit=count).images
