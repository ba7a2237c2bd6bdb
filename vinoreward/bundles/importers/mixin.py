"""The class methods of Bundle that make bundles of other people's models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.network import IMAGENET_MEAN, IMAGENET_STD
from vinoreward.bundles.schema import BundleSpec

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Self, Unpack

    from vinoreward.bundles.importers.facts import ClassifierFacts, EncoderFacts

_OF_MODULES = ("height", "width", "mean", "std", "scale", "color_order")


@dataclass(frozen=True)
class BundleImportMixin:
    """Base of :class:`~vinoreward.bundles.bundle.Bundle`: makes bundles of others' models."""

    path: Path
    spec: BundleSpec
    trusted: bool = False

    @classmethod
    def from_model(
        cls, path: str | Path, *, trusted: bool = False, **facts: Unpack[ClassifierFacts]
    ) -> Self:
        """Make a bundle of somebody else's ``.onnx`` classifier.

        Missing arguments are read from the graph (size, layout, its last function) and from Intel
        model_api's ``model_info`` in the file (labels, mean, scale, channel order, threshold).
        Nothing else is guessed. The bundle is in memory: it has no golden frames and no hashes
        until :meth:`save` writes it.

        Args:
            path: the model file.
            trusted: allow any operators, of any cost; see ``SECURITY.md``.
            facts: ``labels``, ``success_label``, ``mean``, ``std`` and others of
                :class:`~vinoreward.bundles.importers.facts.ClassifierFacts`.

        Raises:
            ModelNotFoundError: no such file.
            ModelCorruptError: the file cannot be read.
            ModelRefusedError: it is not trusted and has operators that are not allowed, or needs
                too much memory or work.
            ConfigError: arguments are missing (the message lists them) or contradict the file.
        """
        from vinoreward.bundles.importers import classifier
        from vinoreward.bundles.importers import facts as known

        return cls._made(classifier.describe, known.ClassifierFacts, path, facts, trusted)

    @classmethod
    def from_encoder(
        cls, path: str | Path, *, trusted: bool = False, **facts: Unpack[EncoderFacts]
    ) -> Self:
        """Make a bundle of somebody else's ``.onnx`` encoder.

        A variational encoder returns means and natural log variances, in two outputs or side by
        side in one; a plain autoencoder returns its vector. As with :meth:`from_model`, missing
        arguments are read from the file, nothing is guessed, and the bundle is in memory until
        :meth:`save` writes it.

        Args:
            path: the model file.
            trusted: allow any operators, of any cost; see ``SECURITY.md``.
            facts: ``latent_size``, ``posterior``, ``golden`` and others of
                :class:`~vinoreward.bundles.importers.facts.EncoderFacts`.

        Raises:
            ModelNotFoundError, ModelCorruptError, ModelRefusedError, ConfigError: as
                :meth:`from_model`.
            ImageMismatchError: the golden image has another size.
            InputError: the golden image or vector is none.
            BundleParityError: the golden image gives another vector; the message names the
                arguments that give the right one, if any do.
        """
        from vinoreward.bundles.importers import encoder
        from vinoreward.bundles.importers import facts as known

        return cls._made(encoder.describe, known.EncoderFacts, path, facts, trusted)

    @classmethod
    def from_encoder_module(
        cls,
        module: nn.Module,
        weights: str | Path | None,
        onnx_path: str | Path,
        *,
        trusted: bool = False,
        **facts: Unpack[EncoderFacts],
    ) -> Self:
        """Export somebody else's torch encoder, with its preprocessing inside.

        The weights are read as tensors only; nothing in the file is executed.

        Args:
            module: takes floats ``(N, 3, H, W)`` and returns ``(mu, logvar)`` or one tensor.
            weights: its state dict, ``.safetensors`` or as ``torch.save`` writes it; None if the
                module has its weights.
            onnx_path: the ``.onnx`` file to write.
            trusted: as in :meth:`from_encoder`.
            facts: as in :meth:`from_encoder`; ``height`` and ``width`` are needed, and mean 0 and
                standard deviation 1 unless given.

        Raises:
            ModelNotFoundError: no such weights.
            ModelCorruptError: no plain state dict, or of another network.
            ConfigError: the module's output or an argument cannot work.
            MissingExtraError: torch or onnxscript is not installed.
        """
        default = {"mean": (0.0, 0.0, 0.0), "std": (1.0, 1.0, 1.0)}
        make = cls.from_encoder
        return cls._exported(make, module, weights, onnx_path, default, facts, trusted, pair=True)

    @classmethod
    def from_module(
        cls,
        module: nn.Module,
        weights: str | Path | None,
        onnx_path: str | Path,
        *,
        trusted: bool = False,
        **facts: Unpack[ClassifierFacts],
    ) -> Self:
        """Export somebody else's torch classifier, with its preprocessing inside.

        As :meth:`from_encoder_module`, with the facts of :meth:`from_model`; mean and standard
        deviation are ImageNet's unless given. ``module`` takes floats ``(N, 3, H, W)`` and returns
        one row of numbers per image.
        """
        default = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
        return cls._exported(cls.from_model, module, weights, onnx_path, default, facts, trusted)

    @classmethod
    def _made(
        cls,
        describe: Callable[..., BundleSpec],
        known: type[Any],
        path: str | Path,
        facts: Mapping[str, Any],
        trusted: bool,
    ) -> Self:
        """Return the bundle of a file that ``describe`` describes, by facts of a ``known`` type."""
        if unknown := set(facts) - known.__optional_keys__:
            raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
        path = Path(path).absolute()

        def run(spec: BundleSpec, images: NDArray[np.uint8]) -> NDArray[np.float32]:
            bundle: Any = cls(path=path, spec=spec, trusted=trusted)  # a Bundle
            with bundle.backend("openvino", precision="fp32", verify=False) as backend:
                outputs: NDArray[np.float32] = backend.infer(bundle.prepare(images))
            return outputs

        return cls(path=path, spec=describe(path, facts, run, trusted=trusted), trusted=trusted)

    @classmethod
    def _exported(
        cls,
        make: Callable[..., Self],
        module: nn.Module,
        weights: str | Path | None,
        onnx_path: str | Path,
        default: Mapping[str, Any],
        facts: Mapping[str, Any],
        trusted: bool,
        *,
        pair: bool = False,
    ) -> Self:
        """Export a module; return what ``make`` makes of the file."""
        from vinoreward.bundles.importers.facts import describing
        from vinoreward.bundles.importers.modules import export_module
        from vinoreward.images import ImageSpec

        said = {key: value for key, value in facts.items() if value is not None}
        given = {**default, **{key: said.pop(key) for key in _OF_MODULES if key in said}}
        with describing(Path(onnx_path)):
            image = ImageSpec(**given)
        if export_module(module, weights, Path(onnx_path), image, pair=pair):
            said["posterior"] = True
        size = {"height": image.height, "width": image.width}
        bundle = make(onnx_path, trusted=trusted, **size, **said)
        # What the graph does by now.
        given = {key: getattr(image, key) for key in given}
        image = dataclasses.replace(bundle.spec.image, **given)
        return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, image=image))
