"""Describing somebody else's classifier from what its file says and what the caller adds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, cast

from vinoreward.bundles.importers.model_info import read_model_info
from vinoreward.bundles.importers.picture import check_shape, read_model, read_picture_facts
from vinoreward.bundles.schema import BundleSpec, Decision
from vinoreward.errors import BundleError, ConfigError

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
    trusted: bool,
) -> BundleSpec:
    """Return the spec of a foreign classifier; arguments as ``Bundle.from_model`` has them.

    Raises:
        ModelNotFoundError, ModelCorruptError, ConfigError: as ``Bundle.from_model``.
    """
    model = read_model(path, height=height, width=width, layout=layout, trusted=trusted)
    info = read_model_info(path, model)
    check_shape(path, model, output_index)
    found_labels = tuple(labels) if labels is not None else info.labels
    picture = read_picture_facts(
        path,
        model,
        info,
        height=height,
        width=width,
        mean=mean,
        std=std,
        scale=scale,
        color_order=color_order,
        layout=layout,
        crop=crop,
        resize=resize,
        also={"labels": found_labels or None, "success_label": success_label},
        method="from_model",
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
            picture=picture,
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


def _ends_with(model: Any, output_index: int) -> _Output:
    node = model.output(output_index).node.input_value(0).node
    return "probabilities" if node.get_type_name() in ("Softmax", "Sigmoid") else "logits"
