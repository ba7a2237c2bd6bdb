"""The bundle: load it, check it, run it."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.backends.base import BACKENDS, Backend, load_backend
from vinoreward.backends.network import NetworkSpec, Preprocess
from vinoreward.bundles import locate
from vinoreward.bundles.golden import Golden, check_parity, read_golden
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import BundleError, ConfigError, ModelNotFoundError
from vinoreward.files import sha256 as hash_of
from vinoreward.images import prepare

if TYPE_CHECKING:
    from torch import nn
    from typing_extensions import Unpack

    from vinoreward.bundles.importers.facts import ClassifierFacts, EncoderFacts

WEIGHTS_FILE = "model.safetensors"


@dataclass(frozen=True)
class Bundle:
    """A network with everything needed to run and check it. Plain data; can be pickled.

    Example::

        bundle = Bundle.load("panda-hover-classifier")
        with bundle.backend("openvino") as backend:
            logits = backend.infer(bundle.prepare(images))  # (N, K) float32

    Attributes:
        path: the bundle's folder, or the model file of a bundle made by :meth:`from_model` or
            :meth:`from_encoder`.
        spec: what ``bundle.json`` says.
        trusted: whether its networks may have any operators, of any cost.
    """

    path: Path
    spec: BundleSpec
    trusted: bool = False

    @classmethod
    def load(
        cls,
        path_or_name: str | Path,
        *,
        verify: bool = True,
        sha256: str | None = None,
        trusted: bool = False,
    ) -> Bundle:
        """Load a bundle from a folder, or one that an installed package registers by name.

        Args:
            path_or_name: a registered name such as ``"panda-hover-classifier"``, else a folder
                (``./name`` where a registered bundle has its name).
            verify: compare every file's SHA-256 with the recorded one.
            sha256: the :attr:`sha256` that the bundle must have, from a source you trust. It pins
                every file, because ``bundle.json`` lists the hash of each.
            trusted: allow any operators, of any cost; see ``SECURITY.md``.

        Raises:
            ModelNotFoundError: no such bundle, or one of its files is missing.
            BundleError: the description is not valid, or of a newer schema.
            BundleEditedError: a file was changed after saving, or it is not the pinned bundle.
        """
        folder = locate.find(path_or_name).absolute()  # a worker may start in another folder
        spec = locate.read_spec(folder, check_hash=verify, pinned=sha256)
        locate.check_files(folder, spec, hashes=verify or sha256 is not None)
        return cls(path=folder, spec=spec, trusted=trusted)

    @classmethod
    def from_hub(cls, name: str, *, sha256: str | None = None, trusted: bool = False) -> Bundle:
        """Load a bundle of the Hugging Face Hub; it is downloaded once.

        Args:
            name: ``owner/name`` or ``owner/name@revision``; a revision is a branch, a tag or a
                whole commit, ``main`` by default. Only a commit, or ``sha256``, pins the bundle.
            sha256: as in :meth:`load`.
            trusted: as in :meth:`load`.

        Raises:
            ConfigError: the name has another form.
            ModelNotFoundError: there is no such bundle, or the Hub cannot be reached.
            MissingExtraError: the extra ``hub`` is not installed.
            BundleError, BundleEditedError: as :meth:`load`, or the bundle is too large.
        """
        from vinoreward.bundles.hub import download

        return cls.load(download(name), sha256=sha256, trusted=trusted)

    @property
    def sha256(self) -> str:
        """SHA-256 of ``bundle.json`` on disk, for :meth:`load`; the bundle must be saved."""
        return hash_of(self._file(locate.SPEC_FILE, "hash"))

    @property
    def saved(self) -> bool:
        """Whether this is a folder with hashes and golden frames."""
        return bool(self.spec.files)

    @property
    def golden(self) -> Golden:
        """The recorded frames, read from disk; BundleError if there are none."""
        return read_golden(self._file(locate.GOLDEN_FILE, "golden frames"), self.spec)

    def _file(self, name: str, what: str) -> Path:
        if not self.saved:
            raise BundleError(
                f"the bundle of {self.path} is not saved, so it has no {what}. Expected a bundle's "
                "folder; write one with bundle.save(path, golden_images)."
            )
        return locate.inside(self.path, name)

    def resolve_precision(self, backend: str, precision: str = "auto") -> str:
        """Return ``"fp32"``, ``"bf16"``, ``"fp16"`` or ``"int8"``.

        ``"auto"`` is INT8 if the bundle has it, its gate passed and the backend gains by it, which
        OpenVINO does, without VNNI too; ONNX Runtime's INT8 of these networks is no faster than its
        FP32. By a rule, not by timing here, so that a seed pays the same rewards everywhere. With
        progress it is FP32: INT8 is checked for its decisions, and progress loses by it.

        Raises:
            ConfigError: INT8 was requested, but is missing, failed the gate or cannot run there.
        """
        gate = self.spec.quantization
        ready = gate is not None and gate.passed and locate.INT8_FILE in self.spec.files
        if precision == "auto":
            gains = backend == "openvino" and self.spec.progress is None
            return "int8" if ready and gains else "fp32"
        known = BACKENDS.find(backend).precisions
        if precision not in known:
            raise ConfigError(
                f"precision {precision!r} was requested from the {backend} backend. Expected auto "
                f"or one of {', '.join(known)}; choose one of these, or another backend."
            )
        if precision == "int8" and not ready:
            reason = "it has no INT8 network"
            if gate is not None and not gate.passed:
                reason = (
                    f"its INT8 network failed the gate ({gate.flips} of {gate.frames} frames "
                    f"differ, allowed are {gate.max_flip_rate:.2%})"
                )
            raise ConfigError(
                f"precision 'int8' was requested from the bundle {self.spec.name!r}, but {reason}. "
                "Expected one that passed the gate; use precision='auto' or 'fp32', or run: "
                f"vinoreward calibrate --int8 on --bundle {self.path}"
            )
        return precision

    def second_look_band(self, precision: str) -> float | None:
        """Return the half-width, in log-odds, within which FP32 checks an INT8 decision, or None.

        None if the network of the resolved ``precision`` decides alone. Means over translations are
        FP32's.
        """
        decision = self.spec.decision
        if precision != "int8" or not decision.int8_band:
            return None
        return max(decision.int8_band, decision.translation_band or 0.0)

    def network(self, precision: str = "auto") -> NetworkSpec:
        """Return the network as backends take it; ``"auto"`` is OpenVINO's choice."""
        spec, image = self.spec, self.spec.image
        if precision in ("auto", "int8"):
            precision = self.resolve_precision("openvino", precision)
        name = locate.INT8_FILE if precision == "int8" else locate.MODEL_FILE
        preprocess = None
        if not image.in_graph:
            preprocess = Preprocess(
                image.mean, image.std, image.scale, image.color_order, image.layout
            )
        return NetworkSpec(
            path=self.path / name if self.saved else self.path,
            size=(image.height, image.width),
            columns=spec.width,
            sha256=spec.files.get(name),
            preprocess=preprocess,
            output_index=spec.output_index,
            joined_index=None if spec.encoding is None else spec.encoding.log_variance_output,
            architecture=spec.architecture,
            weights=self.path / WEIGHTS_FILE if WEIGHTS_FILE in spec.files else None,
            weights_sha256=spec.files.get(WEIGHTS_FILE),
            views=tuple((view.name, view.height) for view in image.views),
            trusted=self.trusted,
            golden=self.path / locate.GOLDEN_FILE if self.saved else None,
            mean=image.mean,
            std=image.std,
        )

    def backend(
        self,
        name: str = "openvino",
        *,
        device: str = "CPU",
        precision: str = "auto",
        threads: int = 1,
        verify: bool = True,
    ) -> Backend:
        """Return a backend for this network, checked with the golden frames.

        Args:
            name: see :func:`~vinoreward.backends.base.load_backend`.
            device: device name, in capitals.
            precision: as of :meth:`resolve_precision`.
            threads: threads that one inference may use.
            verify: load the network now and run the golden frames. Otherwise, and for a bundle
                that is not saved, the network is loaded on first use.

        Raises:
            BundleParityError: the golden frames give other outputs than recorded.
            ConfigError: the backend does not support the arguments.
            MissingExtraError: the backend's library is not installed.
        """
        resolved = self.resolve_precision(name, precision)
        backend = load_backend(
            name, self.network(resolved), device=device, precision=resolved, threads=threads
        )
        if verify and self.saved:
            with contextlib.ExitStack() as on_error:
                on_error.callback(backend.close)
                check_parity(backend, self.golden, self.spec)
                on_error.pop_all()
        return backend

    def prepare(self, images: NDArray[Any]) -> NDArray[np.uint8]:
        """Crop and resize images, see :func:`vinoreward.images.prepare`."""
        return prepare(images, self.spec.image)

    def save(
        self, path: str | Path, golden_images: NDArray[Any], *, overwrite: bool = False
    ) -> Bundle:
        """Write a bundle made of a model file as the folder ``path``; return the saved bundle.

        ``golden_images`` are ``(N, h, w, 3)`` uint8 RGB, a few typical ones of every label. Their
        recorded outputs are OpenVINO's in FP32. ``overwrite`` replaces an existing bundle.

        Raises:
            ConfigError: the bundle is saved already, or ``path`` exists.
            InputError, ImageMismatchError: the images do not fit.
            RunFolderError: the folder cannot be written.
        """
        if self.saved:
            raise ConfigError(
                f"the bundle {self.path} is saved already. Expected one made from a model file; "
                "copy the folder instead."
            )
        from vinoreward.bundles.save import save_bundle

        files, images = {locate.MODEL_FILE: self.path}, self.prepare(golden_images)
        outputs = self._fp32(images)
        saved = save_bundle(Path(path), self.spec, files, images, outputs, overwrite=overwrite)
        return dataclasses.replace(Bundle.load(saved, verify=False), trusted=self.trusted)

    def _fp32(self, images: NDArray[np.uint8]) -> NDArray[np.float32]:
        with self.backend("openvino", precision="fp32", verify=False) as backend:
            return backend.infer(images)

    @classmethod
    def from_model(
        cls,
        path: str | Path,
        *,
        module: nn.Module | None = None,
        weights: str | Path | None = None,
        trusted: bool = False,
        **facts: Unpack[ClassifierFacts],
    ) -> Bundle:
        """Make a bundle of somebody else's classifier, an ``.onnx`` file or a torch module.

        Missing arguments are read from the graph (size, layout, its last function) and from Intel
        model_api's ``model_info`` in the file (labels, mean, scale, channel order, threshold).
        Nothing else is guessed. The bundle is in memory: it has no golden frames and no hashes
        until :meth:`save` writes it.

        Args:
            path: the ``.onnx`` file; with ``module`` it is written, with its preprocessing inside.
            module: takes floats ``(N, 3, H, W)`` and returns one row of numbers per image. Then
                ``height`` and ``width`` are needed, and mean and std are ImageNet's unless given.
            weights: the module's state dict, ``.safetensors`` or as ``torch.save`` writes it, read
                as tensors only; None if the module has its weights.
            trusted: as in :meth:`load`.
            facts: ``labels``, ``success_label``, ``mean``, ``std`` and others of
                :class:`~vinoreward.bundles.importers.facts.ClassifierFacts`.

        Raises:
            ModelNotFoundError: no such file.
            ModelCorruptError: the file cannot be read, or the weights are another network's.
            ModelRefusedError: it is not trusted and has operators that are not allowed, or needs
                too much memory or work.
            ConfigError: arguments are missing (the message lists them) or contradict the file, or
                the module's output cannot work.
            MissingExtraError: a module is given, and torch or onnxscript is not installed.
        """
        from vinoreward.bundles.importers.classifier import describe
        from vinoreward.bundles.importers.facts import ClassifierFacts

        return cls._import(describe, ClassifierFacts, path, module, weights, facts, trusted)

    @classmethod
    def from_encoder(
        cls,
        path: str | Path,
        *,
        module: nn.Module | None = None,
        weights: str | Path | None = None,
        trusted: bool = False,
        **facts: Unpack[EncoderFacts],
    ) -> Bundle:
        """Make a bundle of somebody else's encoder, as :meth:`from_model` does.

        A variational encoder returns means and natural log variances, in two outputs or side by
        side in one; a plain autoencoder returns its vector.

        Args:
            path: as in :meth:`from_model`.
            module: takes floats ``(N, 3, H, W)`` and returns ``(mu, logvar)`` or one tensor; mean 0
                and std 1 unless given.
            weights: as in :meth:`from_model`.
            trusted: as in :meth:`load`.
            facts: ``latent_size``, ``posterior``, ``golden`` and others of
                :class:`~vinoreward.bundles.importers.facts.EncoderFacts`.

        Raises:
            ImageMismatchError, InputError: the golden image has another size, or is none.
            BundleParityError: the golden image gives another vector; the message names the
                arguments that give the right one, if any do.
            VinorewardError: those of :meth:`from_model`.
        """
        from vinoreward.bundles.importers.encoder import describe
        from vinoreward.bundles.importers.facts import EncoderFacts

        return cls._import(describe, EncoderFacts, path, module, weights, facts, trusted)

    @classmethod
    def _import(
        cls,
        describe: Callable[..., BundleSpec],
        known: type[Any],
        path: str | Path,
        module: nn.Module | None,
        weights: str | Path | None,
        facts: Mapping[str, Any],
        trusted: bool,
    ) -> Bundle:
        """Return the bundle of a file that ``describe`` describes, by facts of a ``known`` type."""
        if unknown := set(facts) - known.__optional_keys__:
            raise TypeError(f"unexpected keyword arguments: {', '.join(sorted(unknown))}")
        path = Path(path).absolute()
        in_graph: dict[str, Any] = {}

        def run(spec: BundleSpec, images: NDArray[np.uint8]) -> NDArray[np.float32]:
            bundle = cls(path, spec, trusted)
            return bundle._fp32(bundle.prepare(images))

        if module is None and weights is not None:
            raise ConfigError(
                f"{path} was given weights= without module=. Expected both, or an .onnx file "
                "alone; give the torch module that the weights belong to."
            )
        if module is not None:
            from vinoreward.bundles.importers.modules import export_module

            encoder = "latent_size" in known.__optional_keys__
            facts, in_graph = export_module(module, weights, path, facts, encoder=encoder)
        spec = describe(path, facts, run, trusted=trusted)
        image = dataclasses.replace(spec.image, **in_graph)
        return cls(path, dataclasses.replace(spec, image=image), trusted)


AnyBundle = Bundle | str | Path | Mapping[str, Any]
"""A loaded bundle, its folder or registered name, or what :func:`bundle_spec` returned."""


def resolve_bundle(bundle: AnyBundle) -> Bundle:
    """Return the bundle, loaded; errors as :meth:`Bundle.load`."""
    if isinstance(bundle, Bundle):
        return bundle
    if not isinstance(bundle, Mapping):
        return Bundle.load(bundle)
    path, spec = Path(str(bundle.get("model"))), BundleSpec.from_dict(bundle.get("spec"))
    if spec.files or not path.is_file():
        raise ModelNotFoundError(
            f"there is no bundle in memory of the model file {path}. Expected what "
            "Bundle.from_model read; restore it, or write the bundle with bundle.save and give its "
            "folder."
        )
    return Bundle(path, spec)


def bundle_spec(given: AnyBundle, bundle: Bundle) -> str | dict[str, Any]:
    """Return what ``env.spec`` says of a bundle: its registered name, else plain data of it."""
    if isinstance(given, str) and given in locate.known_names():
        return given
    if bundle.saved:
        return str(bundle.path)
    return {"model": str(bundle.path), "spec": bundle.spec.to_dict()}
