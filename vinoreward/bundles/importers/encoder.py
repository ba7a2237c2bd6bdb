"""Describing somebody else's encoder from what its file says and what the caller adds."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from vinoreward.bundles.importers.model_info import read_model_info
from vinoreward.bundles.importers.picture import check_shape, read_model, read_picture_facts
from vinoreward.bundles.schema import BundleSpec, Encoding
from vinoreward.errors import BundleError, ConfigError

UNBOUNDED = 1e6
"""Stated where no bounds are known: far beyond any latent vector, so that nothing is clipped."""

_MEANS = ("mu", "mean", "loc", "z_mean", "z_mu")
_LOG_VARIANCES = ("logvar", "log_var", "log_variance", "logvariance", "z_logvar", "z_log_var")


def describe_encoder(
    path: Path,
    *,
    latent_size: int | None,
    posterior: bool | None,
    outputs: Sequence[str | int] | str | int | None,
    height: int | None,
    width: int | None,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    scale: float | None,
    color_order: Literal["RGB", "BGR"] | None,
    layout: Literal["NCHW", "NHWC"] | None,
    low: Sequence[float] | float | None,
    high: Sequence[float] | float | None,
    latent_std: Sequence[float] | None,
    crop: tuple[int, int, int, int] | None,
    resize: Literal["none", "pil_bilinear"],
    name: str | None,
    trusted: bool,
) -> BundleSpec:
    """Return the spec of a foreign encoder; arguments as ``Bundle.from_encoder`` has them.

    Raises:
        ModelNotFoundError, ModelCorruptError, ConfigError: as ``Bundle.from_encoder``.
    """
    model = read_model(path, height=height, width=width, layout=layout, trusted=trusted)
    chosen = _outputs(path, model, outputs)
    for index in chosen:
        check_shape(path, model, index)
    picture = read_picture_facts(
        path,
        model,
        read_model_info(path, model),
        height=height,
        width=width,
        mean=mean,
        std=std,
        scale=scale,
        color_order=color_order,
        layout=layout,
        crop=crop,
        resize=resize,
        also={},
        method="from_encoder",
    )
    size, has_posterior = _size(path, model, chosen, latent_size, posterior)
    try:
        return BundleSpec(
            name=name or path.stem,
            kind="encoder",
            labels=(),
            picture=picture,
            output_index=chosen[0],
            latent_size=size,
            encoding=Encoding(
                low=_bound(low, -UNBOUNDED, size),
                high=_bound(high, UNBOUNDED, size),
                posterior=has_posterior,
                std=None if latent_std is None else tuple(latent_std),
                log_variance_output=chosen[1] if len(chosen) == 2 else None,
            ),
        )
    except BundleError as error:
        raise ConfigError(f"{path} cannot be described with these arguments: {error}") from error


def with_preprocess(
    spec: BundleSpec,
    mean: Sequence[float],
    std: Sequence[float],
    scale: float,
    color_order: Literal["RGB", "BGR"],
) -> BundleSpec:
    """Return the spec with what was built into its graph written down."""
    one, two, three = (float(value) for value in mean)
    first, second, third = (float(value) for value in std)
    picture = dataclasses.replace(
        spec.picture,
        mean=(one, two, three),
        std=(first, second, third),
        scale=scale,
        color_order=color_order,
    )
    return dataclasses.replace(spec, picture=picture)


def _outputs(
    path: Path, model: Any, outputs: Sequence[str | int] | str | int | None
) -> tuple[int, ...]:
    """Return which outputs are meant: one, or the means and the log variances."""
    names = [sorted(output.get_names()) for output in model.outputs]
    shown = ", ".join("/".join(item) or "?" for item in names)
    if outputs is None:
        if len(names) == 1:
            return (0,)
        means, spreads = (_called(names, known) for known in (_MEANS, _LOG_VARIANCES))
        if len(means) == 1 and len(spreads) == 1:
            return (means[0], spreads[0])
        raise ConfigError(
            f"{path} has the outputs {shown}. Expected one, or two that are called mu and logvar; "
            "say which are meant with outputs=, means first and natural log variances second."
        )
    asked = [outputs] if isinstance(outputs, (str, int)) else list(outputs)
    found = []
    for item in asked:
        places = (
            [index for index, several in enumerate(names) if item in several]
            if isinstance(item, str)
            else [item] * (0 <= item < len(names))
        )
        if not places:
            raise ConfigError(
                f"{path} has the outputs {shown}, and {item!r} was asked for. Expected names or "
                "numbers of outputs; correct outputs=."
            )
        found.append(places[0])
    if len(set(found)) != len(found) or not 1 <= len(found) <= 2:
        raise ConfigError(
            f"outputs is {outputs!r}. Expected one output, or two different ones: the means and "
            "the natural log variances."
        )
    return tuple(found)


def _called(names: list[list[str]], known: tuple[str, ...]) -> list[int]:
    return [
        index
        for index, several in enumerate(names)
        if any(name.lower().rsplit("/", 1)[-1] in known for name in several)
    ]


def _size(
    path: Path,
    model: Any,
    chosen: tuple[int, ...],
    latent_size: int | None,
    posterior: bool | None,
) -> tuple[int, bool]:
    """Return the length of the vectors and whether log variances come with them."""
    sizes = [model.output(index).partial_shape[1] for index in chosen]
    columns = [None if size.is_dynamic else int(size.get_length()) for size in sizes]
    if len(chosen) == 2:
        if posterior is False or columns[0] != columns[1]:
            raise ConfigError(
                f"{path} has two outputs with {columns[0]} and {columns[1]} columns and posterior="
                f"{posterior} was said. Expected as many log variances as means; name the outputs "
                "with outputs=."
            )
        posterior = True
        total = columns[0] if columns[0] is None else 2 * columns[0]
    else:
        total = columns[0]
    if total is None and latent_size is not None and posterior is not None:
        return latent_size, posterior
    if total is not None and posterior is None and latent_size is not None:
        posterior = {latent_size: False, 2 * latent_size: True}.get(total)
    if total is None or posterior is None:
        raise ConfigError(
            f"{path} returns {total or 'an unknown number of'} numbers per picture with "
            f"latent_size={latent_size} and posterior={posterior}. Expected to know what they are: "
            "give Bundle.from_encoder posterior=True where they are means and log variances side "
            "by side, posterior=False where they are the vector, or a latent_size= that fits."
        )
    size, rest = divmod(total, 2 if posterior else 1)
    if rest or latent_size not in (None, size):
        raise ConfigError(
            f"{path} returns {total} numbers per picture with latent_size={latent_size} and "
            f"posterior={posterior}. Expected {'twice ' if posterior else ''}the latent size; "
            "correct the arguments."
        )
    return size, posterior


def _bound(bound: Sequence[float] | float | None, otherwise: float, size: int) -> tuple[float, ...]:
    if bound is None or isinstance(bound, (int, float)):
        return (float(otherwise if bound is None else bound),) * size
    return tuple(float(value) for value in bound)
