"""Bundles made from other people's models."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.importers.classifier import describe
from vinoreward.bundles.importers.encoder import describe_encoder, with_preprocess
from vinoreward.bundles.importers.golden import check_golden
from vinoreward.bundles.importers.torch_module import export_module
from vinoreward.bundles.schema import BundleSpec

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Self

    from vinoreward.bundles.bundle import Bundle

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

        spec = describe(
            Path(path),
            labels=labels,
            success_label=success_label,
            height=height,
            width=width,
            mean=mean,
            std=std,
            scale=scale,
            color_order=color_order,
            layout=layout,
            output=output,
            output_index=output_index,
            threshold=threshold,
            crop=crop,
            resize=resize,
            name=name,
            trusted=trusted,
        )
        return cls(path=Path(path).absolute(), spec=spec, trusted=trusted)

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

        Args:
            path: the model file.
            latent_size: D, the length of the vectors.
            posterior: whether one output of 2 D columns holds means and log variances (True) or
                the vector itself (False). Not needed with ``latent_size`` or two outputs.
            outputs: names or numbers of the outputs: the vector, or means then log variances. None:
                the only output, or two that are called like ``mu`` and ``logvar``.
            height: pixels of the network's input.
            width: pixels of the network's input.
            mean: per channel, in the network's channel order, in units of ``pixel / scale``.
            std: as ``mean``.
            scale: what pixels are divided by first; 255 unless said.
            color_order: what the network was trained on; RGB unless said here or in the file.
            layout: of the network's input.
            low: lower bounds of the vectors, (D,) or one for all. What lies beyond is clipped. None
                is -1e6: nothing is clipped.
            high: likewise.
            latent_std: (D,) mean posterior standard deviation, the unit in which backends are
                compared, where it is known.
            crop: ``(top, left, height, width)`` cut out of the given picture first.
            resize: how other sizes are brought to ``height`` and ``width``.
            golden: a picture, ``(h, w, 3)`` uint8 RGB or a file, and the vector (D,) that it must
                give, or an ``.npy`` file. Checks size, colour order and value range.
            name: the bundle's name; the file's name unless said.
            trusted: take any operators, of any cost; see ``SECURITY.md``.

        Raises:
            ModelNotFoundError: no such file.
            ModelCorruptError: the file cannot be read.
            ModelRefusedError: it has operators that are not allowed, or needs too much memory or
                work, and is not trusted.
            ConfigError: facts are missing (the message lists the arguments) or contradict.
            PictureMismatchError: the golden picture has another size.
            BundleParityError: the golden picture gives another vector; the message says what
                would be right where that can be found out.
        """

        spec = describe_encoder(
            Path(path),
            latent_size=latent_size,
            posterior=posterior,
            outputs=outputs,
            height=height,
            width=width,
            mean=mean,
            std=std,
            scale=scale,
            color_order=color_order,
            layout=layout,
            low=low,
            high=high,
            latent_std=latent_std,
            crop=crop,
            resize=resize,
            name=name,
            trusted=trusted,
        )
        bundle = cls(path=Path(path).absolute(), spec=spec, trusted=trusted)
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
        latent_size: int | None = None,
        posterior: bool | None = None,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
        scale: float = 255.0,
        color_order: Literal["RGB", "BGR"] = "RGB",
        low: Sequence[float] | float | None = None,
        high: Sequence[float] | float | None = None,
        latent_std: Sequence[float] | None = None,
        crop: tuple[int, int, int, int] | None = None,
        resize: Literal["none", "pil_bilinear"] = "none",
        golden: GoldenFrame | None = None,
        name: str | None = None,
        trusted: bool = False,
    ) -> Self:
        """Export somebody else's torch encoder, with its preprocessing inside.

        The weights are read as tensors only; nothing in the file is executed. Arguments not named
        here are those of :meth:`from_encoder`.

        Args:
            module: takes floats ``(N, 3, H, W)`` and returns ``(mu, logvar)`` or one tensor.
            weights: its state dict, ``.safetensors`` or as ``torch.save`` writes it.
            onnx_path: the ``.onnx`` file to write.

        Raises:
            ModelNotFoundError: no such weights.
            ModelCorruptError: a file that is not a plain state dict, or of another network.
            ConfigError: the module's output or an argument cannot work.
            MissingExtraError: torch or onnxscript is not installed.
        """

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
        described = cls.from_encoder(
            onnx_path,
            height=height,
            width=width,
            latent_size=latent_size,
            posterior=True if two else posterior,
            low=low,
            high=high,
            latent_std=latent_std,
            crop=crop,
            resize=resize,
            name=name,
            trusted=trusted,
        )
        spec = with_preprocess(described.spec, mean, std, scale, color_order)
        bundle = cls(path=described.path, spec=spec, trusted=trusted)
        if golden is not None:
            check_golden(cast("Bundle", bundle), golden)
        return bundle
