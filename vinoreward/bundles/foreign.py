"""Describing somebody else's model from what its file says and what the caller adds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

from vinoreward.backends.telemetry import import_openvino
from vinoreward.bundles.model_info import read_model_info
from vinoreward.bundles.schema import BundleSpec, Decision, Picture
from vinoreward.errors import BundleError, ConfigError, ModelCorruptError, ModelNotFoundError

_Output = Literal["logits", "probabilities"]


def describe(
    path: Path,
    *,
    labels: Sequence[str] | None,
    success_label: str | None,
    height: int | None,
    width: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    scale: float | None,
    color_order: Literal["RGB", "BGR"] | None,
    layout: Literal["NCHW", "NHWC"] | None,
    output: _Output | None,
    output_index: int,
    threshold: float | None,
    crop: tuple[int, int, int, int] | None,
    resize: Literal["none", "pil_bilinear"],
    name: str | None,
) -> BundleSpec:
    """Return the spec of a foreign classifier; arguments as ``Bundle.from_model`` has them.

    Raises:
        ModelNotFoundError, ModelCorruptError, ConfigError: as ``Bundle.from_model``.
    """
    model = _read(path)
    info = read_model_info(path, model)
    _check_shape(path, model, output_index)
    in_graph = model.input(0).element_type.to_dtype().name == "uint8"
    shape = [
        None if size.is_dynamic else size.get_length() for size in model.input(0).partial_shape
    ]
    layout = layout or _layout(shape)
    missing: list[str] = []
    if layout is None:
        missing.append("layout")
    else:
        rows, columns = (2, 3) if layout == "NCHW" else (1, 2)
        height = height or shape[rows] or info.height
        width = width or shape[columns] or info.width
    found_labels = tuple(labels) if labels is not None else info.labels
    asked: dict[str, object] = {
        "height": height,
        "width": width,
        "labels": found_labels or None,
        "success_label": success_label,
    }
    if not in_graph:
        # model_api counts in grey levels; arguments count in pixel / scale.
        from_file = mean is None and std is None and scale is None and info.scaled
        if from_file:
            mean, std, scale = info.mean, info.std, 1.0
        asked |= {"mean": mean, "std": std}
    missing += [key for key, value in asked.items() if value is None]
    if missing:
        raise ConfigError(
            f"{path} does not say {', '.join(missing)}. Expected these facts, which cannot be "
            f"guessed; give Bundle.from_model the arguments {', '.join(f'{m}=' for m in missing)}."
        )
    order = color_order or info.color_order or "RGB"
    if in_graph and (layout != "NHWC" or order != "RGB"):
        raise ConfigError(
            f"{path} takes uint8 pictures in {layout} and {order}. Expected NHWC and RGB where the "
            "graph converts pictures itself; export it without its preprocessing, or with a "
            "transposition and channel reversal inside the graph (pass color_order='RGB' then)."
        )
    columns_out = model.output(output_index).partial_shape[1]
    if columns_out.is_static and columns_out.get_length() != len(found_labels or ()):
        raise ConfigError(
            f"{path} has {columns_out.get_length()} outputs, but there are "
            f"{len(found_labels or ())} labels {found_labels}. Expected one label per output; give "
            "labels= in the order of the outputs."
        )
    try:
        return BundleSpec(
            name=name or path.stem,
            labels=found_labels or (),
            success_label=cast("str", success_label),
            picture=Picture(
                height=cast("int", height),
                width=cast("int", width),
                color_order=order,
                mean=_three(mean or (0.0, 0.0, 0.0)),
                std=_three(std or (1.0, 1.0, 1.0)),
                crop=crop,
                resize=resize,
                in_graph=in_graph,
                layout=cast('Literal["NCHW", "NHWC"]', layout),
                scale=255.0 if scale is None else scale,
            ),
            decision=Decision(
                threshold=threshold
                if threshold is not None
                else (info.threshold if info.threshold is not None else 0.5)
            ),
            output=output or _ends_with(model, output_index),
            output_index=output_index,
        )
    except BundleError as error:
        raise ConfigError(f"{path} cannot be described with these arguments: {error}") from error


def _read(path: Path) -> Any:
    if path.suffix not in (".onnx", ".xml"):
        raise ConfigError(
            f"{path} is no .onnx and no .xml file. Expected one of these; export the network as "
            "ONNX."
        )
    wanted = [path, path.with_suffix(".bin")] if path.suffix == ".xml" else [path]
    for file in wanted:
        if not file.is_file():
            raise ModelNotFoundError(
                f"there is no model file {file}. Expected an existing file; check the path."
            )
    ov = import_openvino()
    try:
        return ov.Core().read_model(path)
    except RuntimeError as error:
        raise ModelCorruptError(
            f"{path} cannot be read as a network. Expected an ONNX file or an OpenVINO .xml with "
            "its .bin; the file is damaged or of another kind, export it again."
        ) from error


def _check_shape(path: Path, model: Any, output_index: int) -> None:
    if len(model.inputs) != 1 or output_index >= len(model.outputs):
        raise ConfigError(
            f"{path} has {len(model.inputs)} inputs and {len(model.outputs)} outputs. Expected one "
            f"input and an output number {output_index}; give another model or output_index."
        )
    source, target = model.input(0).partial_shape, model.output(output_index).partial_shape
    if source.rank.is_dynamic or len(source) != 4 or target.rank.is_dynamic or len(target) != 2:
        raise ConfigError(
            f"{path} turns {source} into {target}. Expected pictures (N, 3, H, W) or (N, H, W, 3) "
            "to (N, number of labels); give an image classifier."
        )


def _layout(shape: list[int | None]) -> Literal["NCHW", "NHWC"] | None:
    """Return where the three channels are, or None where that is not certain."""
    first, last = shape[1] == 3, shape[3] == 3
    if first == last:
        return None
    return "NCHW" if first else "NHWC"


def _ends_with(model: Any, output_index: int) -> _Output:
    node = model.output(output_index).node.input_value(0).node
    return "probabilities" if node.get_type_name() in ("Softmax", "Sigmoid") else "logits"


def _three(values: Sequence[float]) -> tuple[float, float, float]:
    if len(values) != 3:
        raise BundleError(f"mean or std has {len(values)} numbers. Expected 3, one per channel.")
    return float(values[0]), float(values[1]), float(values[2])
