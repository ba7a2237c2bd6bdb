"""Other people's encoders: their outputs, a description of them, and a golden image."""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.bundles.golden import means, row
from vinoreward.bundles.importers.facts import (
    EncoderFacts,
    GoldenFrame,
    Run,
    check_shape,
    columns_of,
    describing,
    read_image_spec,
    read_model,
    read_model_info,
)
from vinoreward.bundles.schema import BundleSpec, Encoding
from vinoreward.errors import BundleParityError, ConfigError, InputError
from vinoreward.files import DAMAGED, read_plain, reason_of
from vinoreward.images import read_image

UNBOUNDED = 1e6
"""The bound of unbounded vectors: far beyond any, so that nothing is clipped."""
_MEANS = {"mu", "mean", "loc", "z_mean", "z_mu"}
_LOG_VARIANCES = {"logvar", "log_var", "log_variance", "logvariance", "z_logvar", "z_log_var"}
MAX_VECTOR_BYTES = 1 << 20
GOLDEN_TOLERANCE = 1e-2
"""Share of the vector's largest number: above rounding, below the effect of wrong colours."""


def describe(path: Path, facts: EncoderFacts, run: Run, *, trusted: bool) -> BundleSpec:
    """Return the description of an encoder's file; errors as of ``Bundle.from_encoder``."""
    model = read_model(path, trusted=trusted)
    chosen = _outputs_of(path, model, facts.get("outputs"))
    for index in chosen:
        check_shape(path, model, index)
    image = read_image_spec(path, model, read_model_info(path), facts, "from_encoder")
    columns = [columns_of(model, index) for index in chosen]
    size, posterior = _latent_of(path, columns, facts.get("latent_size"), facts.get("posterior"))
    bounds: dict[str, Any] = {}
    for key, unbounded in (("low", -UNBOUNDED), ("high", UNBOUNDED)):
        bound = facts.get(key)
        bound = unbounded if bound is None else bound
        bounds[key] = (bound,) * size if isinstance(bound, (int, float)) else bound
    with describing(path):
        encoding = Encoding(
            **bounds,
            posterior=posterior,
            std=cast("tuple[float, ...] | None", facts.get("latent_std")),
            log_variance_output=chosen[1] if len(chosen) == 2 else None,
        )
        spec = BundleSpec(
            name=facts.get("name") or path.stem,
            kind="encoder",
            labels=(),
            image=image,
            output_index=chosen[0],
            latent_size=size,
            encoding=encoding,
        )
    if (golden := facts.get("golden")) is not None:
        _check_golden(path, spec, encoding, golden, run)
    return spec


def _outputs_of(
    path: Path, model: Any, outputs: Sequence[str | int] | str | int | None
) -> tuple[int, ...]:
    """Return the numbers of one output, or of the means and the log variances."""
    names = [sorted(output.get_names()) for output in model.outputs]
    if outputs is None and len(names) == 1:
        return (0,)
    chosen: list[int | None] = []
    if outputs is None:
        lasts = [{name.lower().rsplit("/", 1)[-1] for name in several} for several in names]
        for usual in (_MEANS, _LOG_VARIANCES):
            found = [place for place, each in enumerate(lasts) if each & usual]
            chosen.append(found[0] if len(found) == 1 else None)
    else:
        places = {key: place for place, each in enumerate(names) for key in (place, *each)}
        several = [outputs] if isinstance(outputs, (str, int)) else outputs
        chosen = [places.get(key) for key in several]
    known = [place for place in chosen if place is not None]
    if len(known) < len(chosen) or len(set(known)) != len(known) or not 1 <= len(known) <= 2:
        raise ConfigError(
            f"{path} has the outputs {', '.join('/'.join(each) or '?' for each in names)}, and "
            f"outputs is {outputs!r}. Expected one, or two different ones, means first and natural "
            "log variances second; name or number them, or call them mu and logvar."
        )
    return tuple(known)


def _latent_of(
    path: Path, columns: list[int | None], latent_size: int | None, posterior: bool | None
) -> tuple[int, bool]:
    """Return the length of the vectors and whether there are log variances.

    ``columns`` are the numbers of columns of the one output or the two.
    """
    if len(columns) == 2 and (posterior is False or columns[0] != columns[1]):
        raise ConfigError(
            f"{path} has two outputs with {columns[0]} and {columns[1]} columns, and posterior="
            f"{posterior}. Expected as many log variances as means; name the outputs with outputs=."
        )
    total = None if columns[0] is None else len(columns) * columns[0]
    if len(columns) == 2:
        posterior = True
    elif posterior is None and total is not None and latent_size is not None:
        posterior = {latent_size: False, 2 * latent_size: True}.get(total)
    if posterior is None or (total is None and latent_size is None):
        raise ConfigError(
            f"{path} returns {total or 'an unknown number of'} numbers per image with "
            f"latent_size={latent_size} and posterior={posterior}. Expected to know what they are: "
            "give Bundle.from_encoder posterior=True for means and log variances side by side, "
            "posterior=False for the vector alone, or a latent_size= that fits."
        )
    size = latent_size or (total or 0) // (1 + posterior)
    if total not in (None, size * (1 + posterior)):
        raise ConfigError(
            f"{path} returns {total} numbers per image with latent_size={latent_size} and "
            f"posterior={posterior}. Expected {'twice ' if posterior else ''}the latent size; "
            "correct the arguments."
        )
    return size, posterior


def _check_golden(
    path: Path, spec: BundleSpec, encoding: Encoding, golden: GoldenFrame, run: Run
) -> None:
    """Raise BundleParityError unless the network gives the golden image's vector.

    The message names the arguments that give the right one, if any do.
    """
    image = golden[0] if isinstance(golden[0], np.ndarray) else read_image(golden[0])
    expected = _vector(golden[1], encoding)

    def vector_of(described: BundleSpec, shown: NDArray[np.uint8]) -> NDArray[np.float64]:
        return np.asarray(means(run(described, shown[None]), encoding)[0], np.float64)

    vector = vector_of(spec, image)
    if _same(vector, expected):
        return
    remedies = [
        name for name, other in other_images(spec) if _same(vector_of(other, image), expected)
    ]
    if spec.image.in_graph and _same(vector_of(spec, image[..., ::-1]), expected):
        remedies.append("red and blue swapped in the graph (export it with the other colour order)")
    cause = (
        f"with {remedies[0]} it is right"
        if remedies
        else "no other colour order, range or usual normalisation is right either: check mean, std "
        "and scale, the image's file format, and whether the vector is the mean"
    )
    raise BundleParityError(
        f"the golden image gives {row(vector, 6)} in {path}. Expected {row(expected, 6)}; {cause}."
    )


def other_images(spec: BundleSpec) -> Iterator[tuple[str, BundleSpec]]:
    """Yield a float network's description with each usual mistake corrected, and its arguments.

    Nothing for a network that converts images in its graph.
    """
    image = spec.image
    if image.in_graph:
        return
    ranges: dict[str, tuple[float, Any, Any]] = {
        "": (image.scale, image.mean, image.std),
        "scale=255, mean 0 and std 1": (255.0, (0, 0, 0), (1, 1, 1)),
        "scale=255, mean 0.5 and std 0.5": (255.0, (0.5,) * 3, (0.5,) * 3),
        "scale=1, mean 0 and std 1": (1.0, (0, 0, 0), (1, 1, 1)),
        "scale=255 and ImageNet's mean and std": (255.0, IMAGENET_MEAN, IMAGENET_STD),
    }
    orders: tuple[Literal["RGB", "BGR"], ...] = ("RGB", "BGR")
    for (name, (scale, mean, std)), order in itertools.product(ranges.items(), orders):
        words = [name, f"color_order={order!r}" if order != image.color_order else ""]
        if any(words):
            changed = dataclasses.replace(image, scale=scale, mean=mean, std=std, color_order=order)
            yield " and ".join(filter(None, words)), dataclasses.replace(spec, image=changed)


def _same(vector: NDArray[np.float64], expected: NDArray[np.float64]) -> bool:
    limit = GOLDEN_TOLERANCE * float(np.abs(expected).max()) + 1e-4
    return bool(np.abs(vector - expected).max() <= limit)


def _vector(given: Any, encoding: Encoding) -> NDArray[np.float64]:
    if isinstance(given, (str, Path)):
        try:
            stream = io.BytesIO(read_plain(given, MAX_VECTOR_BYTES))
            given = np.lib.format.read_array(stream, allow_pickle=False)
        except DAMAGED as error:
            raise InputError(
                f"the golden vector {given} cannot be read: {reason_of(error)}. Expected an .npy "
                "file of numbers; write it with numpy.save."
            ) from error
    try:
        vector = np.asarray(given, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the golden vector holds no numbers: {error}. Expected the means of one image."
        ) from error
    size = len(encoding.low)
    if vector.size not in ((size, 2 * size) if encoding.posterior else (size,)):
        raise InputError(
            f"the golden vector has {vector.size} numbers. Expected {size}, the latent size; give "
            "the means of one image."
        )
    return vector[:size]
