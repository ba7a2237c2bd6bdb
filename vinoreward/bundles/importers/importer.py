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

from vinoreward.bundles.importers.encoder import (
    bound_of,
    check_golden,
    export_module,
    latent_of,
    outputs_of,
)
from vinoreward.bundles.importers.facts import (
    GivenPicture,
    check_shape,
    describing,
    read_model,
    read_model_info,
    read_picture_facts,
)
from vinoreward.bundles.schema import BundleSpec, Decision, Encoding, Picture
from vinoreward.errors import ConfigError

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Self

    from vinoreward.bundles.bundle import Bundle

UNBOUNDED = 1e6
"""Stated where no bounds are known: far beyond any latent vector, so that nothing is clipped."""

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
            scale: what pixels are divided by first; 255 unless given.
            color_order: what the network was trained on; RGB unless given here or in the file.
            layout: of the network's input.
            output: whether the graph returns logits or probabilities.
            output_index: which output of the graph.
            threshold: probability from which on it is a success; 0.5 unless given.
            crop: ``(top, left, height, width)`` cut out of the given picture first.
            resize: how other sizes are brought to ``height`` and ``width``.
            name: the bundle's name; the file's name unless given.
            trusted: take any operators, of any cost; see ``SECURITY.md``.

        Raises:
            ModelNotFoundError: no such file.
            ModelCorruptError: the file cannot be read.
            ModelRefusedError: it has operators that are not allowed, or needs too much memory or
                work, and is not trusted.
            ConfigError: facts are missing (the message lists the arguments) or contradict.
        """
        path = Path(path)
        given = GivenPicture(height, width, mean, std, scale, color_order, layout, crop, resize)
        model = read_model(path, given, trusted=trusted)
        check_shape(path, model, output_index)
        info = read_model_info(path, model)
        names = tuple(labels) if labels is not None else info.labels or ()
        also = {"labels": names or None, "success_label": success_label}
        picture = read_picture_facts(path, model, info, given, "from_model", also)
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
        given = GivenPicture(height, width, mean, std, scale, color_order, layout, crop, resize)
        model = read_model(path, given, trusted=trusted)
        chosen = outputs_of(path, model, outputs)
        for index in chosen:
            check_shape(path, model, index)
        info = read_model_info(path, model)
        picture = read_picture_facts(path, model, info, given, "from_encoder")
        size, posterior = latent_of(path, model, chosen, latent_size, posterior)
        with describing(path):
            spec = BundleSpec(
                name=name or path.stem,
                kind="encoder",
                labels=(),
                picture=picture,
                output_index=chosen[0],
                latent_size=size,
                encoding=Encoding(
                    low=bound_of(low, -UNBOUNDED, size),
                    high=bound_of(high, UNBOUNDED, size),
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
        # A mistyped argument fails before the export, not after it.
        inspect.signature(cls.from_encoder).bind(onnx_path, height=height, width=width, **facts)
        given: dict[str, Any] = {"mean": mean, "std": std, "scale": scale}
        given["color_order"] = color_order
        with describing(Path(onnx_path)):
            picture = Picture(height, width, **given)
        if export_module(module, Path(weights), Path(onnx_path), picture):
            facts["posterior"] = True
        bundle = cls.from_encoder(onnx_path, height=height, width=width, **facts)
        given = {name: getattr(picture, name) for name in given}
        picture = dataclasses.replace(bundle.spec.picture, **given)
        return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, picture=picture))
