"""Bundles made from other people's models."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.importers.facts import (
    Said,
    check_shape,
    describing,
    read_model,
    read_model_info,
    read_picture_facts,
)
from vinoreward.bundles.importers.golden import check_golden
from vinoreward.bundles.importers.torch_module import export_module
from vinoreward.bundles.schema import BundleSpec, Decision, Encoding
from vinoreward.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Self

    from vinoreward.bundles.bundle import Bundle

UNBOUNDED = 1e6
"""Stated where no bounds are known: far beyond any latent vector, so that nothing is clipped."""

_MEANS = ("mu", "mean", "loc", "z_mean", "z_mu")
_LOG_VARIANCES = ("logvar", "log_var", "log_variance", "logvariance", "z_logvar", "z_log_var")

GoldenFrame = tuple[str | Path | NDArray[np.uint8], str | Path | NDArray[np.floating[Any]]]


@dataclass(frozen=True)
class FromOthers:
    """Base of :class:`~vinoreward.bundles.bundle.Bundle`: the ways to describe a foreign model."""

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
        output: Literal["logits", "probabilities"] | None = None,
        output_index: int = 0,
        threshold: float | None = None,
        crop: tuple[int, int, int, int] | None = None,
        resize: Literal["none", "pil_bilinear"] = "none",
        name: str | None = None,
        trusted: bool = False,
    ) -> Self:
        """Describe somebody else's ``.onnx`` or OpenVINO ``.xml`` classifier.

        What is not given is read from the graph (size, layout, softmax at the end) and from
        Intel model_api's ``model_info`` (labels, mean, scale, channel order, threshold) where the
        file carries it. Nothing else is guessed. The bundle is in memory: it has no golden frames
        and no hashes until :meth:`save` writes it.

        Args:
            path: the model file.
            labels: one per output, in order.
            success_label: which label means success.
            height: pixels of the network's input.
            width: pixels of the network's input.
            mean: per channel, in the network's channel order, in units of ``pixel / scale``.
            std: as ``mean``.
            scale: what pixels are divided by first; 255 unless said.
            color_order: what the network was trained on; RGB unless said here or in the file.
            layout: of the network's input.
            output: whether the graph returns logits or probabilities.
            output_index: which output of the graph.
            threshold: probability from which on it is a success; 0.5 unless said.
            crop: ``(top, left, height, width)`` cut out of the given picture first.
            resize: how other sizes are brought to ``height`` and ``width``.
            name: the bundle's name; the file's name unless said.
            trusted: take any operators, of any cost; see ``SECURITY.md``.

        Raises:
            ModelNotFoundError: no such file.
            ModelCorruptError: the file cannot be read.
            ModelRefusedError: it has operators that are not allowed, or needs too much memory or
                work, and is not trusted.
            ConfigError: facts are missing (the message lists the arguments) or contradict.
        """
        path = Path(path)
        said = Said(height, width, mean, std, scale, color_order, layout, crop, resize)
        model = read_model(path, said, trusted=trusted)
        check_shape(path, model, output_index)
        info = read_model_info(path, model)
        names = tuple(labels) if labels is not None else info.labels or ()
        also = {"labels": names or None, "success_label": success_label}
        picture = read_picture_facts(path, model, info, said, "from_model", also)
        columns = model.output(output_index).partial_shape[1]
        if columns.is_static and columns.get_length() != len(names):
            raise ConfigError(
                f"{path} has {columns.get_length()} outputs, but there are {len(names)} labels "
                f"{names}. Expected one label per output; give labels= in the order of the outputs."
            )
        last = model.output(output_index).node.input_value(0).node.get_type_name()
        found = info.threshold if threshold is None else threshold
        with describing(path):
            spec = BundleSpec(
                name=name or path.stem,
                labels=names,
                success_label=cast("str", success_label),
                picture=picture,
                decision=Decision() if found is None else Decision(threshold=found),
                output=output or ("probabilities" if last in ("Softmax", "Sigmoid") else "logits"),
                output_index=output_index,
            )
        return cls(path=path.absolute(), spec=spec, trusted=trusted)

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
        """Describe somebody else's ``.onnx`` or OpenVINO ``.xml`` encoder.

        A variational encoder returns means and natural log variances, in two outputs or side by
        side in one; a plain autoencoder's returns its vector. As with :meth:`from_model` what is
        not given is read from the file, nothing is guessed, and the bundle is in memory until
        :meth:`save` writes it.

        ``height`` to ``resize``, ``name`` and ``trusted`` are as in :meth:`from_model`.

        Args:
            path: the model file.
            latent_size: D, the length of the vectors.
            posterior: whether one output of 2 D columns holds means and log variances (True) or
                the vector itself (False). Not needed with ``latent_size`` or two outputs.
            outputs: names or numbers of the outputs: the vector, or means then log variances. None:
                the only output, or two that are called like ``mu`` and ``logvar``.
            low: lower bounds of the vectors, (D,) or one for all. What lies beyond is clipped. None
                is -1e6: nothing is clipped.
            high: likewise.
            latent_std: (D,) mean posterior standard deviation, the unit in which backends are
                compared, where it is known.
            golden: a picture, ``(h, w, 3)`` uint8 RGB or a file, and the vector (D,) that it must
                give, or an ``.npy`` file. Checks size, colour order and value range.

        Raises:
            ModelNotFoundError, ModelCorruptError, ModelRefusedError, ConfigError: as
                :meth:`from_model`.
            PictureMismatchError: the golden picture has another size.
            BundleParityError: the golden picture gives another vector; the message says what
                would be right where that can be found out.
        """
        path = Path(path)
        said = Said(height, width, mean, std, scale, color_order, layout, crop, resize)
        model = read_model(path, said, trusted=trusted)
        chosen = _outputs(path, model, outputs)
        for index in chosen:
            check_shape(path, model, index)
        info = read_model_info(path, model)
        picture = read_picture_facts(path, model, info, said, "from_encoder")
        size, posterior = _size(path, model, chosen, latent_size, posterior)
        with describing(path):
            spec = BundleSpec(
                name=name or path.stem,
                kind="encoder",
                labels=(),
                picture=picture,
                output_index=chosen[0],
                latent_size=size,
                encoding=Encoding(
                    low=_bound(low, -UNBOUNDED, size),
                    high=_bound(high, UNBOUNDED, size),
                    posterior=posterior,
                    std=None if latent_std is None else tuple(latent_std),
                    log_variance_output=chosen[1] if len(chosen) == 2 else None,
                ),
            )
        bundle = cls(path=path.absolute(), spec=spec, trusted=trusted)
        if golden is not None:
            check_golden(cast("Bundle", bundle), golden)
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

        The weights are read as tensors only; nothing in the file is executed.

        ``height`` to ``color_order`` are of the pictures that the module was trained on, as in
        :meth:`from_model`.

        Args:
            module: takes floats ``(N, 3, H, W)`` and returns ``(mu, logvar)`` or one tensor.
            weights: its state dict, ``.safetensors`` or as ``torch.save`` writes it.
            onnx_path: the ``.onnx`` file to write.
            facts: other arguments of :meth:`from_encoder`: ``latent_size``, ``posterior``, ``low``,
                ``high``, ``latent_std``, ``crop``, ``resize``, ``golden``, ``name``, ``trusted``.

        Raises:
            ModelNotFoundError: no such weights.
            ModelCorruptError: a file that is not a plain state dict, or of another network.
            ConfigError: the module's output or an argument cannot work.
            MissingExtraError: torch or onnxscript is not installed.
        """
        # A mistyped name is said before the export, not after it.
        inspect.signature(cls.from_encoder).bind(onnx_path, height=height, width=width, **facts)
        two = export_module(
            module,
            Path(weights),
            Path(onnx_path),
            height=height,
            width=width,
            mean=mean,
            std=std,
            scale=scale,
            color_order=color_order,
        )
        if two:
            facts["posterior"] = True
        bundle = cls.from_encoder(onnx_path, height=height, width=width, **facts)
        picture = dataclasses.replace(
            bundle.spec.picture,
            mean=(mean[0], mean[1], mean[2]),
            std=(std[0], std[1], std[2]),
            scale=scale,
            color_order=color_order,
        )
        return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, picture=picture))


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
