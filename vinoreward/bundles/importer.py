"""Bundles made from other people's models: from the file's own facts and the caller's arguments."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.network import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    check_ends,
    openvino_model,
    read_bytes,
)
from vinoreward.backends.onnx_file import read_metadata
from vinoreward.backends.probe import try_network
from vinoreward.backends.runtime import import_openvino
from vinoreward.bundles import foreign_encoder
from vinoreward.bundles.golden import made_up_pictures
from vinoreward.bundles.reader import shown
from vinoreward.bundles.schema import (
    ONE_COLUMN,
    BundleSpec,
    Decision,
    Encoding,
    Output,
    Picture,
)
from vinoreward.errors import BundleError, ConfigError

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Self

    from vinoreward.bundles.bundle import Bundle

UNBOUNDED = 1e6
"""The bound of unbounded vectors: far beyond any, so that nothing is clipped."""

GoldenFrame = tuple[str | Path | NDArray[np.uint8], str | Path | NDArray[np.floating[Any]]]


_KEYS = (
    "labels", "mean_values", "scale_values", "reverse_input_channels", "orig_width", "orig_height",
    "confidence_threshold",
)  # fmt: skip


# Operators of OpenVINO that pass on the values of their first input, or means of them ...
_MOVES = frozenset(
    """
    AvgPool Clamp Convert FakeQuantize Gather Identity Negative ReduceMean Relu Reshape Slice Split
    Squeeze StridedSlice Transpose Unsqueeze VariadicSplit
    """.split()  # noqa: SIM905 - read as words
)
# ... those that join inputs, or as 1 - p and a dequantization join one with constants ...
_JOINS = frozenset(("Add", "Concat", "Maximum", "Minimum", "Multiply", "Subtract"))
# ... those that make probabilities, and those that make numbers without bounds.
_HEADS = frozenset(("Sigmoid", "SoftMax", "Softmax"))
_LINEAR = frozenset(("Convolution", "GroupConvolution", "MatMul"))


@dataclass(frozen=True)
class GivenPicture:
    """The caller's arguments about the picture, see ``Bundle.from_model``; None: not given."""

    height: int | None
    width: int | None
    mean: Sequence[float] | None
    std: Sequence[float] | None
    scale: float | None
    color_order: Literal["RGB", "BGR"] | None
    layout: Literal["NCHW", "NHWC"] | None
    crop: tuple[int, int, int, int] | None
    resize: Literal["none", "pil_bilinear"]


@dataclass(frozen=True)
class FromOthers:
    """Base of :class:`~vinoreward.bundles.bundle.Bundle`: makes bundles of others' models."""

    path: Path
    spec: BundleSpec
    trusted: bool = False

    @classmethod
    def from_model(
        cls,
        path: str | Path,
        *,
        labels: Sequence[str] | None = None,
        success_label: str | None = None,
        height: int | None = None,
        width: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        scale: float | None = None,
        color_order: Literal["RGB", "BGR"] | None = None,
        layout: Literal["NCHW", "NHWC"] | None = None,
        output: Output | None = None,
        output_index: int = 0,
        threshold: float | None = None,
        crop: tuple[int, int, int, int] | None = None,
        resize: Literal["none", "pil_bilinear"] = "none",
        name: str | None = None,
        trusted: bool = False,
    ) -> Self:
        """Make a bundle of somebody else's ``.onnx`` classifier.

        Missing arguments are read from the graph (size, layout, its last function) and from Intel
        model_api's ``model_info`` in the file (labels, mean, scale, channel order, threshold).
        Nothing else is guessed. The bundle is in memory: it has no golden frames and no hashes
        until :meth:`save` writes it.

        Args:
            path: the model file.
            labels: one per output, in order. For a network with one output: two, of which it gives
                the second.
            success_label: which label means success.
            height: pixels of the network's input.
            width: pixels of the network's input.
            mean: per channel, in the network's channel order, in units of ``pixel / scale``.
            std: as ``mean``.
            scale: what pixels are divided by first; 255 unless given.
            color_order: of the training pictures; RGB unless given here or in the file.
            layout: of the network's input.
            output: whether the graph returns ``"logits"`` or ``"probabilities"``, one per label;
                or one ``"logit"`` or ``"probability"`` (of a sigmoid) for the second of two labels.
            output_index: which output of the graph.
            threshold: lowest probability of success; 0.5 unless given.
            crop: ``(top, left, height, width)`` cut out of the given picture first.
            resize: how other sizes are brought to ``height`` and ``width``.
            name: the bundle's name; the file's name unless given.
            trusted: allow any operators, of any cost; see ``SECURITY.md``.

        Raises:
            ModelNotFoundError: no such file.
            ModelCorruptError: the file cannot be read.
            ModelRefusedError: it is not trusted and has operators that are not allowed, or needs
                too much memory or work.
            ConfigError: arguments are missing (the message lists them) or contradict the file.
        """
        path = Path(path)
        given = GivenPicture(height, width, mean, std, scale, color_order, layout, crop, resize)
        model = read_model(path, trusted=trusted)
        check_shape(path, model, output_index)
        info = read_model_info(path)
        names = tuple(labels) if labels is not None else info.labels or ()
        also = {"labels": names or None, "success_label": success_label}
        picture = read_picture_facts(path, model, info, given, "from_model", also)
        makers = _makers(model.output(output_index)) if output is None else None
        output = _head(path, model.output(output_index), output, names, makers)
        with describing(path):
            decision = Decision()
            if threshold is not None:
                decision = Decision(threshold=threshold, chosen_for={"chosen by": "the caller"})
            elif info.threshold is not None:
                decision = Decision(threshold=info.threshold)
            spec = BundleSpec(
                name=name or path.stem,
                labels=names,
                success_label=cast("str", success_label),
                picture=picture,
                decision=decision,
                output=output,
                output_index=output_index,
            )
        bundle = cls(path=path.absolute(), spec=spec, trusted=trusted)
        if makers is not None:
            _check_values(cast("Bundle", bundle), makers)
        return bundle

    @classmethod
    def from_encoder(
        cls,
        path: str | Path,
        *,
        latent_size: int | None = None,
        posterior: bool | None = None,
        outputs: Sequence[str | int] | str | int | None = None,
        height: int | None = None,
        width: int | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        scale: float | None = None,
        color_order: Literal["RGB", "BGR"] | None = None,
        layout: Literal["NCHW", "NHWC"] | None = None,
        low: Sequence[float] | float | None = None,
        high: Sequence[float] | float | None = None,
        latent_std: Sequence[float] | None = None,
        crop: tuple[int, int, int, int] | None = None,
        resize: Literal["none", "pil_bilinear"] = "none",
        golden: GoldenFrame | None = None,
        name: str | None = None,
        trusted: bool = False,
    ) -> Self:
        """Make a bundle of somebody else's ``.onnx`` encoder.

        A variational encoder returns means and natural log variances, in two outputs or side by
        side in one; a plain autoencoder returns its vector. As with :meth:`from_model`, missing
        arguments are read from the file, nothing is guessed, and the bundle is in memory until
        :meth:`save` writes it.

        ``height`` to ``resize``, ``name`` and ``trusted`` are as in :meth:`from_model`.

        Args:
            path: the model file.
            latent_size: D, the length of the vectors.
            posterior: whether one output of 2 D columns holds means and log variances (True) or
                the vector itself (False). Not needed with ``latent_size`` or two outputs.
            outputs: names or numbers of the outputs: the vector, or means then log variances. None:
                the only output, or two with names like ``mu`` and ``logvar``.
            low: lower bounds of the vectors, (D,) or one for all, to which they are clipped. None
                is -1e6: nothing is clipped.
            high: upper bounds, likewise.
            latent_std: (D,) mean posterior standard deviation, if known; backends are compared in
                this unit.
            golden: a picture, ``(h, w, 3)`` uint8 RGB or a file, and its expected vector, (D,) or
                an ``.npy`` file. Checks size, colour order and value range.

        Raises:
            ModelNotFoundError, ModelCorruptError, ModelRefusedError, ConfigError: as
                :meth:`from_model`.
            PictureMismatchError: the golden picture has another size.
            BundleParityError: the golden picture gives another vector; the message names the
                arguments that give the right one, if any do.
        """
        path = Path(path)
        given = GivenPicture(height, width, mean, std, scale, color_order, layout, crop, resize)
        model = read_model(path, trusted=trusted)
        chosen = foreign_encoder.outputs_of(path, model, outputs)
        for index in chosen:
            check_shape(path, model, index)
        info = read_model_info(path)
        picture = read_picture_facts(path, model, info, given, "from_encoder")
        size, posterior = foreign_encoder.latent_of(path, model, chosen, latent_size, posterior)
        with describing(path):
            spec = BundleSpec(
                name=name or path.stem,
                kind="encoder",
                labels=(),
                picture=picture,
                output_index=chosen[0],
                latent_size=size,
                encoding=Encoding(
                    low=foreign_encoder.bound_of(low, -UNBOUNDED, size),
                    high=foreign_encoder.bound_of(high, UNBOUNDED, size),
                    posterior=posterior,
                    std=None if latent_std is None else tuple(latent_std),
                    log_variance_output=chosen[1] if len(chosen) == 2 else None,
                ),
            )
        bundle = cls(path=path.absolute(), spec=spec, trusted=trusted)
        if golden is not None:
            foreign_encoder.check_golden(cast("Bundle", bundle), golden)
        return bundle

    @classmethod
    def from_encoder_module(
        cls,
        module: nn.Module,
        weights: str | Path,
        onnx_path: str | Path,
        *,
        height: int,
        width: int,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        scale: float = 255.0,
        color_order: Literal["RGB", "BGR"] = "RGB",
        **facts: Any,
    ) -> Self:
        """Export somebody else's torch encoder, with its preprocessing inside.

        The weights are read as tensors only; nothing in the file is executed. ``height`` to
        ``color_order`` are of the training pictures, as in :meth:`from_model`.

        Args:
            module: takes floats ``(N, 3, H, W)`` and returns ``(mu, logvar)`` or one tensor.
            weights: its state dict, ``.safetensors`` or as ``torch.save`` writes it.
            onnx_path: the ``.onnx`` file to write.
            facts: other arguments of :meth:`from_encoder`: ``latent_size``, ``posterior``, ``low``,
                ``high``, ``latent_std``, ``crop``, ``resize``, ``golden``, ``name``, ``trusted``.

        Raises:
            ModelNotFoundError: no such weights.
            ModelCorruptError: no plain state dict, or of another network.
            ConfigError: the module's output or an argument cannot work.
            MissingExtraError: torch or onnxscript is not installed.
        """
        given = {"mean": mean, "std": std, "scale": scale, "color_order": color_order}
        return cls._exported(
            cls.from_encoder, module, weights, onnx_path, (height, width), given, facts
        )

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        weights: str | Path,
        onnx_path: str | Path,
        *,
        height: int,
        width: int,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        scale: float = 255.0,
        color_order: Literal["RGB", "BGR"] = "RGB",
        **facts: Any,
    ) -> Self:
        """Export somebody else's torch classifier, with its preprocessing inside.

        As :meth:`from_encoder_module`, with the facts of :meth:`from_model`.

        Args:
            module: takes floats ``(N, 3, H, W)`` and returns one row of numbers per picture.
            weights: its state dict, ``.safetensors`` or as ``torch.save`` writes it.
            onnx_path: the ``.onnx`` file to write.
            facts: other arguments of :meth:`from_model`: ``labels``, ``success_label``, ``output``,
                ``threshold``, ``crop``, ``resize``, ``name``, ``trusted``.

        Raises:
            ModelNotFoundError, ModelCorruptError, ConfigError, MissingExtraError: as
                :meth:`from_encoder_module`.
        """
        given = {"mean": mean, "std": std, "scale": scale, "color_order": color_order}
        return cls._exported(
            cls.from_model, module, weights, onnx_path, (height, width), given, facts
        )

    @classmethod
    def _exported(
        cls,
        make: Callable[..., Self],
        module: nn.Module,
        weights: str | Path,
        onnx_path: str | Path,
        size: tuple[int, int],
        given: dict[str, Any],
        facts: dict[str, Any],
    ) -> Self:
        """Export a module for pictures as ``given``; return what ``make`` makes of the file."""
        height, width = size
        # A mistyped argument fails before the export.
        signature = inspect.signature(make)
        signature.bind(onnx_path, height=height, width=width, **facts)
        with describing(Path(onnx_path)):
            picture = Picture(height, width, **given)
        pair = "posterior" in signature.parameters
        paths = Path(weights), Path(onnx_path)
        if foreign_encoder.export_module(module, *paths, picture, pair=pair):
            facts["posterior"] = True
        bundle = make(onnx_path, height=height, width=width, **facts)
        given = {name: getattr(picture, name) for name in given}
        picture = dataclasses.replace(bundle.spec.picture, **given)
        return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, picture=picture))


def read_picture_facts(
    path: Path,
    model: Any,
    info: ModelInfo,
    given: GivenPicture,
    method: str,
    also: Mapping[str, object] | None = None,
) -> Picture:
    """Return the network's picture from its file and the caller's arguments.

    Messages name ``method`` of Bundle; values of ``also`` that are None are missing too.
    """
    kind = model.input(0).element_type.get_type_name()
    if kind not in ("u8", "f16", "f32"):
        raise ConfigError(
            f"{path} takes numbers of the type {kind}. Expected float32, float16 or, where the "
            "graph converts pictures itself, uint8; export it with an input of float32."
        )
    in_graph = kind == "u8"
    shape = [
        None if size.is_dynamic else size.get_length() for size in model.input(0).partial_shape
    ]
    height, width, layout = given.height, given.width, given.layout or _layout(shape)
    missing: list[str] = []
    axes = {"NCHW": (1,), "NHWC": (3,)}.get(layout or "", (1, 3))
    if not {shape[axis] for axis in axes} & {3, None}:
        raise ConfigError(
            f"{path} takes inputs of shape {model.input(0).partial_shape}, no pictures of 3 "
            "channels. Expected RGB or BGR; export it with the conversion from colour in its graph."
        )
    if layout is None:
        missing.append("layout")
    else:
        rows, columns = (2, 3) if layout == "NCHW" else (1, 2)
        height = height or shape[rows] or info.height
        width = width or shape[columns] or info.width
    needed: dict[str, object] = {"height": height, "width": width, **(also or {})}
    mean, std, scale = given.mean, given.std, given.scale
    ignored = [name for name in ("mean", "std", "scale") if getattr(given, name) is not None]
    if in_graph and ignored:
        raise ConfigError(
            f"{path} takes uint8 pictures, so {', '.join(f'{name}=' for name in ignored)} would "
            "never be applied. Expected a graph that normalises them itself and no such argument; "
            "leave out the argument, or export the network with an input of float32."
        )
    if not in_graph:
        # model_api's values are in grey levels, arguments in pixel / scale.
        if mean is None and std is None and scale is None and info.scaled:
            mean, std, scale = info.mean, info.std, 1.0
        needed |= {"mean": mean, "std": std}
    missing += [key for key, value in needed.items() if value is None]
    if missing:
        raise ConfigError(
            f"{path} does not say {', '.join(missing)}. Expected these facts, which cannot be "
            f"guessed; give Bundle.{method} the arguments {', '.join(f'{m}=' for m in missing)}."
        )
    order = given.color_order or info.color_order or "RGB"
    if in_graph and (layout != "NHWC" or order != "RGB"):
        raise ConfigError(
            f"{path} takes uint8 pictures in {layout} and {order}. Expected NHWC and RGB where the "
            "graph converts pictures itself; export it without its preprocessing, or with a "
            "transposition and channel reversal inside the graph (pass color_order='RGB' then)."
        )
    with describing(path):
        return Picture(
            height=cast("int", height),
            width=cast("int", width),
            color_order=order,
            mean=cast("tuple[float, float, float]", tuple(mean or (0.0, 0.0, 0.0))),
            std=cast("tuple[float, float, float]", tuple(std or (1.0, 1.0, 1.0))),
            crop=given.crop,
            resize=given.resize,
            in_graph=in_graph,
            layout=cast('Literal["NCHW", "NHWC"]', layout),
            scale=255.0 if scale is None else scale,
        )


@contextlib.contextmanager
def describing(path: Path) -> Iterator[None]:
    """Turn a BundleError about a value into a ConfigError about the arguments."""
    try:
        yield
    except BundleError as error:
        raise ConfigError(f"{path} cannot be described with these arguments: {error}") from error


def read_model(path: Path, *, trusted: bool) -> Any:
    """Return the OpenVINO model of an ``.onnx`` file; errors as ``from_model``."""
    if path.suffix not in (".onnx", ".xml"):
        raise ConfigError(f"{path} is no .onnx file. Expected one; export the network as ONNX.")
    content = read_bytes(path, None)
    if not trusted:
        try_network(path, content)
    return openvino_model(import_openvino(), path, content)


def check_shape(path: Path, model: Any, output_index: int) -> None:
    """Raise ConfigError unless the model maps pictures to rows of numbers."""
    check_ends(path, len(model.inputs), len(model.outputs), output_index)
    source, target = model.input(0).partial_shape, model.output(output_index).partial_shape
    if source.rank.is_dynamic or len(source) != 4 or target.rank.is_dynamic or len(target) != 2:
        raise ConfigError(
            f"{path} turns {source} into {target}. Expected pictures (N, 3, H, W) or (N, H, W, 3) "
            "to (N, columns); give a network of that form, flattened at its end."
        )


def _head(
    path: Path,
    end: Any,
    output: Output | None,
    labels: tuple[str, ...],
    makers: AbstractSet[str] | None,
) -> Output:
    """Return what a graph's ``end`` returns for these labels, or refuse what contradicts it."""
    columns = None if end.partial_shape[1].is_dynamic else int(end.partial_shape[1].get_length())
    single = columns == 1 if output is None else output in ONE_COLUMN
    if output is None and single:
        output = "probability" if makers and makers <= _HEADS else "logit"
    elif output is None:
        output = "probabilities" if makers and makers <= _HEADS else "logits"
    if single and len(labels) != 2:
        raise ConfigError(
            f"{path} has one output, but there are {len(labels)} labels {labels}. Expected two; "
            "give labels= with that of a low output first and that of a high one second."
        )
    if columns is not None and columns != (1 if single else len(labels)):
        expected = f"one output for {output!r}" if single else "one label per output"
        raise ConfigError(
            f"{path} has {columns} outputs, but there are {len(labels)} labels {labels}. Expected "
            f"{expected}; give labels= in the order of the outputs, or correct output=."
        )
    return output


def _makers(end: Any) -> set[str]:
    """Return the operators that make the values of an output, which later ones only pass on."""
    found: set[str] = set()
    seen: set[str] = set()
    todo = [end.node]
    while todo:
        node = todo.pop()
        kind, name = node.get_type_name(), node.get_name()
        if name in seen or kind == "Constant":
            continue
        seen.add(name)
        sources = [node.input_value(place).get_node() for place in range(node.get_input_size())]
        if kind in _MOVES or kind == "Result":
            todo.append(sources[0])
        elif kind in _JOINS:
            todo += sources
        else:
            found.add(kind)
    return found


def _check_values(bundle: Bundle, makers: AbstractSet[str]) -> None:
    """Raise ConfigError if a network's outputs for a few pictures are not of the assumed kind.

    ``makers`` are the operators that make them. Numbers of a linear layer may happen to lie between
    0 and 1, but do not sum to 1.
    """
    output = bundle.spec.output
    with bundle.backend("openvino", precision="fp32") as backend:
        values = backend.infer(made_up_pictures(bundle.spec.picture))
    within = bool((values >= 0).all() and (values <= 1).all())
    if "prob" in output and not within:
        found = f"from {values.min():.4g} to {values.max():.4g} behind a sigmoid or softmax"
    elif output == "logit" and within and not makers <= _LINEAR:
        found = "from 0 to 1"
    elif output == "logits" and within and np.allclose(values.sum(axis=1), 1, atol=1e-3):
        found = "from 0 to 1 that sum to 1 in every row"
    else:
        return
    kinds = ("probability", "logit") if output in ONE_COLUMN else ("probabilities", "logits")
    raise ConfigError(
        f"{bundle.path} returns numbers {found}. Expected to know whether these are probabilities "
        f"or logits, which its graph does not say; give output={kinds[0]!r} or output={kinds[1]!r}."
    )


def _layout(shape: list[int | None]) -> Literal["NCHW", "NHWC"] | None:
    """Return the layout by the axis of size 3, or None if that is ambiguous."""
    first, last = shape[1] == 3, shape[3] == 3
    if first == last:
        return None
    return "NCHW" if first else "NHWC"


@dataclass(frozen=True)
class ModelInfo:
    """A file's metadata; ``None`` where it has none.

    ``mean`` and ``std`` are in grey levels (0 to 255), in the network's channel order.
    """

    labels: tuple[str, ...] | None
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scaled: bool
    color_order: Literal["RGB", "BGR"] | None
    height: int | None
    width: int | None
    threshold: float | None


def read_model_info(path: Path) -> ModelInfo:
    """Return ``model_info`` of the metadata of an ``.onnx`` file.

    model_api gives networks BGR pictures: ``reverse_input_channels`` is true for a network that
    takes RGB. ``resize_type`` is ignored: it means OpenCV's resizing, and a bundle has only the
    antialiased one.
    """
    info = {
        key.removeprefix("model_info").strip(" ./:"): value.strip()
        for key, value in read_metadata(path.read_bytes()).items()
        if key.startswith("model_info")
    }
    raw = {key: value for key, value in info.items() if key in _KEYS}
    mean, std = (_numbers(path, raw, key) for key in ("mean_values", "scale_values"))
    height, width, threshold = (
        next(iter(_numbers(path, raw, key) or ()), None)
        for key in ("orig_height", "orig_width", "confidence_threshold")
    )
    reverse = raw.get("reverse_input_channels")
    order: Literal["RGB", "BGR"] | None = None
    if reverse is not None and reverse.lower() in ("true", "yes", "1"):
        order = "RGB"
    elif reverse is not None and reverse.lower() in ("false", "no", "0", ""):
        order = "BGR"
    elif reverse is not None:
        raise _wrong(path, "reverse_input_channels", reverse, "True or False")
    return ModelInfo(
        labels=tuple(raw["labels"].split()) if raw.get("labels") else None,
        mean=((mean or (0.0,)) * 3)[:3],
        std=((std or (1.0,)) * 3)[:3],
        scaled=mean is not None or std is not None,
        color_order=order,
        height=int(height) if height is not None and height > 0 else None,
        width=int(width) if width is not None and width > 0 else None,
        threshold=threshold,
    )


def _numbers(path: Path, raw: dict[str, str], key: str) -> tuple[float, ...] | None:
    """Return one number or three; None if the file has none."""
    if key not in raw:
        return None
    try:
        values = tuple(float(item) for item in raw[key].replace(",", " ").split())
    except ValueError:
        values = ()
    if len(values) not in (1, 3) or not all(map(math.isfinite, values)):
        raise _wrong(path, key, raw[key], "one finite number or three")
    return values


def _wrong(path: Path, key: str, value: str, expected: str) -> ConfigError:
    return ConfigError(
        f"{path} has model_info {key} = {shown(value)}. Expected {expected}; correct the file's "
        "metadata, or export the model again."
    )
