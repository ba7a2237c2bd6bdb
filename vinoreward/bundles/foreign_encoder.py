"""Other people's encoders: finding their outputs, a golden picture, and the export from torch."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.convert import export_onnx
from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.backends.probe import read_weights
from vinoreward.bundles.golden import means, row
from vinoreward.bundles.picture import read_picture
from vinoreward.bundles.schema import BundleSpec, Encoding, Picture
from vinoreward.errors import (
    BundleParityError,
    ConfigError,
    InputError,
    MissingExtraError,
    ModelCorruptError,
    ModelNotFoundError,
    install_command,
    needed_for,
)
from vinoreward.files import read_npy, read_plain

if TYPE_CHECKING:
    from torch import nn

    from vinoreward.bundles.bundle import Bundle

_MEANS = {"mu", "mean", "loc", "z_mean", "z_mu"}
_LOG_VARIANCES = {"logvar", "log_var", "log_variance", "logvariance", "z_logvar", "z_log_var"}
MAX_VECTOR_BYTES = 1 << 20
GOLDEN_TOLERANCE = 1e-2
"""Share of the vector's largest number: above rounding, below the effect of wrong colours."""


def outputs_of(
    path: Path, model: Any, outputs: Sequence[str | int] | str | int | None
) -> tuple[int, ...]:
    """Return the numbers of one output, or of the means and the log variances."""
    names = [sorted(output.get_names()) for output in model.outputs]
    known = ", ".join("/".join(item) or "?" for item in names)
    if outputs is None:
        if len(names) == 1:
            return (0,)
        lasts = [{name.lower().rsplit("/", 1)[-1] for name in several} for several in names]
        mean, spread = (
            [index for index, each in enumerate(lasts) if each & usual]
            for usual in (_MEANS, _LOG_VARIANCES)
        )
        if len(mean) == 1 and len(spread) == 1:
            return (mean[0], spread[0])
        raise ConfigError(
            f"{path} has the outputs {known}. Expected one, or two with the names mu and logvar; "
            "choose with outputs=, means first and natural log variances second."
        )
    chosen = []
    for item in [outputs] if isinstance(outputs, (str, int)) else outputs:
        places = (
            [index for index, several in enumerate(names) if item in several]
            if isinstance(item, str)
            else [item] * (0 <= item < len(names))
        )
        if not places:
            raise ConfigError(
                f"{path} has the outputs {known}, and {item!r} was asked for. Expected names or "
                "numbers of outputs; correct outputs=."
            )
        chosen.append(places[0])
    if len(set(chosen)) != len(chosen) or not 1 <= len(chosen) <= 2:
        raise ConfigError(
            f"outputs is {outputs!r}. Expected one output, or two different ones: the means and "
            "the natural log variances."
        )
    return tuple(chosen)


def latent_of(
    path: Path, model: Any, chosen: tuple[int, ...], latent_size: int | None, posterior: bool | None
) -> tuple[int, bool]:
    """Return the length of the vectors and whether there are log variances."""
    sizes = [model.output(index).partial_shape[1] for index in chosen]
    columns = [None if size.is_dynamic else int(size.get_length()) for size in sizes]
    if len(chosen) == 2:
        if posterior is False or columns[0] != columns[1]:
            raise ConfigError(
                f"{path} has two outputs with {columns[0]} and {columns[1]} columns, and posterior="
                f"{posterior}. Expected as many log variances as means; name the outputs with "
                "outputs=."
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
            "give Bundle.from_encoder posterior=True for means and log variances side by side, "
            "posterior=False for the vector alone, or a latent_size= that fits."
        )
    size, rest = divmod(total, 2 if posterior else 1)
    if rest or latent_size not in (None, size):
        raise ConfigError(
            f"{path} returns {total} numbers per picture with latent_size={latent_size} and "
            f"posterior={posterior}. Expected {'twice ' if posterior else ''}the latent size; "
            "correct the arguments."
        )
    return size, posterior


def bound_of(
    bound: Sequence[float] | float | None, otherwise: float, size: int
) -> tuple[float, ...]:
    """Return a bound for every dimension."""
    if bound is None or isinstance(bound, (int, float)):
        return (float(otherwise if bound is None else bound),) * size
    return tuple(float(value) for value in bound)


def check_golden(bundle: Bundle, golden: tuple[Any, Any]) -> None:
    """Run one picture, ``(h, w, 3)`` or a file, and compare with its vector, (D,) or an ``.npy``.

    Raises:
        PictureMismatchError: the picture has another size.
        InputError: no picture, or no vector of that length.
        BundleParityError: another vector; the message names the arguments that give the right one.
    """
    path, spec = bundle.path, bundle.spec
    encoding = cast("Encoding", spec.encoding)  # which every encoder's spec has
    picture = golden[0] if isinstance(golden[0], np.ndarray) else read_picture(golden[0])
    expected = _vector(golden[1], encoding)

    def run(described: BundleSpec, frame: NDArray[np.uint8]) -> NDArray[np.float64]:
        own = dataclasses.replace(bundle, spec=described)
        with own.backend("openvino", precision="fp32", verify=False) as backend:
            outputs = backend.infer(np.ascontiguousarray(own.prepare(frame[None])))
        return np.asarray(means(outputs, encoding)[0], np.float64)

    vector = run(spec, picture)
    if _same(vector, expected):
        return
    remedies = [
        name for name, other in other_pictures(spec) if _same(run(other, picture), expected)
    ]
    if spec.picture.in_graph and _same(run(spec, picture[..., ::-1]), expected):
        remedies.append("red and blue swapped in the graph (export it with the other colour order)")
    cause = (
        f"with {remedies[0]} it is right"
        if remedies
        else "no other colour order, range or usual normalisation is right either: check mean, std "
        "and scale, the picture's file format, and whether the vector is the mean"
    )
    raise BundleParityError(
        f"the golden picture gives {row(vector, 6)} in {path}. Expected {row(expected, 6)}; "
        f"{cause}."
    )


def other_pictures(spec: BundleSpec) -> Iterator[tuple[str, BundleSpec]]:
    """Yield a float network's description with each usual mistake corrected, and its arguments.

    Nothing for a network that converts pictures in its graph.
    """
    picture = spec.picture
    if picture.in_graph:
        return
    ranges: dict[str, tuple[float, Any, Any]] = {
        "": (picture.scale, picture.mean, picture.std),
        "scale=255, mean 0 and std 1": (255.0, (0, 0, 0), (1, 1, 1)),
        "scale=255, mean 0.5 and std 0.5": (255.0, (0.5,) * 3, (0.5,) * 3),
        "scale=1, mean 0 and std 1": (1.0, (0, 0, 0), (1, 1, 1)),
        "scale=255 and ImageNet's mean and std": (255.0, IMAGENET_MEAN, IMAGENET_STD),
    }
    orders: tuple[Literal["RGB", "BGR"], ...] = ("RGB", "BGR")
    for (name, (scale, mean, std)), order in itertools.product(ranges.items(), orders):
        words = [name, f"color_order={order!r}" if order != picture.color_order else ""]
        if any(words):
            changed = dataclasses.replace(
                picture, scale=scale, mean=mean, std=std, color_order=order
            )
            yield " and ".join(filter(None, words)), dataclasses.replace(spec, picture=changed)


def _same(vector: NDArray[np.float64], expected: NDArray[np.float64]) -> bool:
    limit = GOLDEN_TOLERANCE * float(np.abs(expected).max()) + 1e-4
    return bool(np.abs(vector - expected).max() <= limit)


def _vector(given: Any, encoding: Encoding) -> NDArray[np.float64]:
    if isinstance(given, (str, Path)):
        try:
            given = read_npy(read_plain(given, MAX_VECTOR_BYTES))
        except (OSError, ModelCorruptError) as error:
            raise InputError(
                f"the golden vector {given} cannot be read: {error}. Expected an .npy file of "
                "numbers; write it with numpy.save."
            ) from error
    try:
        vector = np.asarray(given, np.float64).reshape(-1)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the golden vector holds no numbers: {error}. Expected the means of one picture."
        ) from error
    size = len(encoding.low)
    if vector.size not in ((size, 2 * size) if encoding.posterior else (size,)):
        raise InputError(
            f"the golden vector has {vector.size} numbers. Expected {size}, the latent size; give "
            "the means of one picture."
        )
    return vector[:size]


def export_module(
    module: nn.Module, weights: Path, path: Path, picture: Picture, *, pair: bool = True
) -> bool:
    """Load the weights into the module and write it as ONNX: uint8 RGB ``(N, H, W, 3)`` to rows.

    Return whether the module returned means and log variances apart, which are one output now. Only
    with ``pair`` it may.
    """
    with needed_for("exporting a module", "train"):
        import torch

        from vinoreward.backends.torch_networks import WithPreprocess
    if path.suffix != ".onnx":
        raise ConfigError(f"the export is named {path}. Expected a name that ends in .onnx.")
    module = copy.deepcopy(module).eval().to("cpu")
    state = without_prefix(load_state(weights), module.state_dict())
    try:
        module.load_state_dict(state, strict=True)
    except RuntimeError as error:
        raise ModelCorruptError(
            f"{weights} does not hold the weights of {type(module).__name__}. Expected its complete"
            f" state dict; give the module that the file belongs to. {str(error)[:300]}"
        ) from error
    shape = (2, 3, picture.height, picture.width)
    try:
        with torch.no_grad():
            output = module(torch.zeros(shape))
    except (RuntimeError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{type(module).__name__} does not run on floats of shape {shape}: {error} Expected a "
            "module from pictures to vectors; correct height and width, or give the encoder alone."
        ) from error
    parts = list(output) if isinstance(output, (tuple, list)) else [output]
    if len(parts) > 1 + pair or any(
        not isinstance(part, torch.Tensor) or part.ndim != 2 or len(part) != 2 for part in parts
    ):
        kinds = ", ".join(
            str(tuple(part.shape)) if isinstance(part, torch.Tensor) else type(part).__name__
            for part in parts
        )
        raise ConfigError(
            f"{type(module).__name__} returns {kinds} for two pictures. Expected (2, D)"
            f"{' or two of them, (mu, logvar)' if pair else ''}; give the "
            f"{'encoder' if pair else 'classifier'} alone, wrapped in a module if necessary."
        )

    class SideBySide(torch.nn.Module):
        """The foreign module for RGB pictures, with one output."""

        def __init__(self) -> None:
            super().__init__()
            self.module = module

        def forward(self, planes: torch.Tensor) -> torch.Tensor:
            if picture.color_order == "BGR":
                planes = planes.flip(1)
            output = self.module(planes)
            return torch.cat(list(output) if isinstance(output, (tuple, list)) else [output], 1)

    # WithPreprocess divides by 255 and takes RGB; mean and std are in the network's channel order.
    order = slice(None, None, -1) if picture.color_order == "BGR" else slice(None)
    mean, std = (
        [value * picture.scale / 255.0 for value in list(values)[order]]
        for values in (picture.mean, picture.std)
    )
    export_onnx(WithPreprocess(SideBySide(), mean, std), path, picture.height, picture.width)
    return len(parts) == 2


def load_state(path: Path) -> Mapping[str, Any]:
    """Return a state dict, read without executing anything in the file.

    Raises:
        ModelNotFoundError, ModelCorruptError: no such file, or it holds something else.
        MissingExtraError: safetensors is not installed.
    """
    try:
        return read_weights(path)
    except FileNotFoundError as error:
        raise ModelNotFoundError(
            f"there are no weights at {path}. Expected a state dict; check the path."
        ) from error
    except ImportError as error:
        raise MissingExtraError(
            f"{path} needs {error.name}, which is not installed. Install it with: "
            f"{install_command('train')}"
        ) from error
    except ModelCorruptError as error:
        raise ModelCorruptError(
            f"{path} cannot be read as a state dict: {error}. Expected names and tensors; save it "
            "with torch.save(module.state_dict(), path) of PyTorch 1.6 or newer, or as safetensors."
        ) from error


def without_prefix(state: Mapping[str, Any], names: Collection[str]) -> Mapping[str, Any]:
    """Return a state dict without what a wrapper put before every name, if ``names`` are left.

    DataParallel puts ``module.`` there, torch.compile ``_orig_mod.``, Lightning often ``model.``.
    """
    bare = state
    while bare and bare.keys() != set(names):
        prefix = next(iter(bare)).partition(".")[0] + "."
        if not all(name.startswith(prefix) for name in bare):
            return state
        bare = {name.removeprefix(prefix): value for name, value in bare.items()}
    return bare
