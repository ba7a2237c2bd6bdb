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
    NetworkFile,
    Run,
    describing,
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
    network = NetworkFile(path, trusted=trusted)
    chosen = _outputs_of(path, network.model, facts.get("outputs"))
    columns = [network.columns(index) for index in chosen]
    image = network.image_spec(facts)
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
) -> list[int]:
    """Return the numbers of one output, or of the means and the log variances."""
    names = [sorted(output.get_names()) for output in model.outputs]
    places = {key: place for place, each in enumerate(names) for key in (place, *each)}
    if outputs is not None:
        chosen = [
            places.get(key) for key in ([outputs] if isinstance(outputs, (str, int)) else outputs)
        ]
    elif len(names) == 1:
        chosen = [0]
    else:
        lasts = [{name.lower().rsplit("/", 1)[-1] for name in each} for each in names]
        fitting = [
            [place for place, each in enumerate(lasts) if each & usual]
            for usual in (_MEANS, _LOG_VARIANCES)
        ]
        chosen = [found[0] if len(found) == 1 else None for found in fitting]
    known = [place for place in chosen if place is not None]
    if len(set(known)) != len(chosen) or not 1 <= len(known) <= 2:
        raise ConfigError(
            f"{path} has the outputs {', '.join('/'.join(each) or '?' for each in names)}, and "
            f"`outputs` is {outputs!r}. Expected one, or two different ones, means first and "
            "natural log variances second; name or number them, or call them mu and logvar.",
            field="outputs",
        )
    return known


def _latent_of(
    path: Path, columns: list[int | None], latent_size: int | None, posterior: bool | None
) -> tuple[int, bool]:
    """Return the length of the vectors and whether there are log variances.

    ``columns`` are the numbers of columns of the one output or the two.
    """
    pair = len(columns) == 2
    total = None if columns[0] is None else len(columns) * columns[0]
    if posterior is None and pair:
        posterior = True
    elif posterior is None and total is not None and latent_size is not None:
        posterior = {latent_size: False, 2 * latent_size: True}.get(total)
    size = latent_size or (total or 0) // (1 + bool(posterior))
    fits = size > 0 and total in (None, size * (1 + bool(posterior)))
    if posterior is None or not fits or (pair and (not posterior or columns[0] != columns[-1])):
        raise ConfigError(
            f"{path} returns {' and '.join(str(each or 'any') for each in columns)} numbers per "
            f"image; latent_size is {latent_size} and posterior is {posterior}. Expected as many "
            "as the latent size with `posterior=False`, or twice as many with `posterior`: means "
            "and as many log variances, side by side or in two outputs; give one of these, or a "
            "`latent_size` that fits, or name the outputs with `outputs`.",
            field="posterior",
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
    limit = GOLDEN_TOLERANCE * float(np.abs(expected).max()) + 1e-4

    def vector_of(described: BundleSpec, image: NDArray[np.uint8]) -> NDArray[np.float64]:
        return np.asarray(means(run(described, image[None]), encoding)[0], np.float64)

    def fits(vector: NDArray[np.float64]) -> bool:
        return bool(np.abs(vector - expected).max() <= limit)

    vector = vector_of(spec, image)
    if fits(vector):
        return
    remedies = [name for name, other in other_images(spec) if fits(vector_of(other, image))]
    if spec.image.in_graph and fits(vector_of(spec, image[..., ::-1])):
        remedies.append("red and blue swapped in the graph (export it with the other colour order)")
    cause = (
        f"with {remedies[0]} it is right"
        if remedies
        else "no other colour order, range or usual normalisation is right either: check `mean`, "
        "`std` and `scale`, the image's file format, and whether the vector is the mean"
    )
    raise BundleParityError(
        f"the golden image gives {row(vector, 6)} in {path}. Expected {row(expected, 6)}; {cause}."
    )


def other_images(spec: BundleSpec) -> Iterator[tuple[str, BundleSpec]]:
    """Yield a float network's description with each usual mistake corrected, and its arguments.

    Nothing for a network that converts images in its graph.
    """
    image = spec.image
    ranges: dict[str, tuple[float, Any, Any]] = {
        "": (image.scale, image.mean, image.std),
        "`scale=255`, `mean=0 0 0` and `std=1 1 1`": (255.0, (0, 0, 0), (1, 1, 1)),
        "`scale=255`, `mean=0.5 0.5 0.5` and `std=0.5 0.5 0.5`": (255.0, (0.5,) * 3, (0.5,) * 3),
        "`scale=1`, `mean=0 0 0` and `std=1 1 1`": (1.0, (0, 0, 0), (1, 1, 1)),
        "`scale=255`, `mean=0.485 0.456 0.406` and `std=0.229 0.224 0.225`": (
            255.0,
            IMAGENET_MEAN,
            IMAGENET_STD,
        ),
    }
    orders: tuple[Literal["RGB", "BGR"], ...] = ("RGB", "BGR")
    for (name, (scale, mean, std)), order in itertools.product(ranges.items(), orders):
        words = [name, f"`color_order={order}`" if order != image.color_order else ""]
        if any(words) and not image.in_graph:
            changed = dataclasses.replace(image, scale=scale, mean=mean, std=std, color_order=order)
            yield " and ".join(filter(None, words)), dataclasses.replace(spec, image=changed)


def _vector(given: Any, encoding: Encoding) -> NDArray[np.float64]:
    """Return the (D,) expected means, from an array or an ``.npy`` file."""
    try:
        if isinstance(given, (str, Path)):
            stream = io.BytesIO(read_plain(given, MAX_VECTOR_BYTES))
            given = np.lib.format.read_array(stream, allow_pickle=False)
        vector = np.asarray(given, np.float64).reshape(-1)
    except DAMAGED as error:
        raise InputError(
            f"the golden vector cannot be read: {reason_of(error)}. Expected the means of one "
            "image, as an array or an .npy file that numpy.save wrote."
        ) from error
    size = len(encoding.low)
    if vector.size not in ((size, 2 * size) if encoding.posterior else (size,)):
        raise InputError(
            f"the golden vector has {vector.size} numbers. Expected {size}, the latent size; give "
            "the means of one image."
        )
    return vector[:size]
