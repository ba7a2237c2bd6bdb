"""What follows a training: the export is checked; bundle, card and report are written."""

from __future__ import annotations

import dataclasses
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from vinoreward.backends.base import load_backend
from vinoreward.backends.convert import export_onnx
from vinoreward.backends.network import NetworkSpec, TensorSpec
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import OutputError
from vinoreward_training.runs.machine import package_versions
from vinoreward_training.runs.report import Section, markdown, write_report

if TYPE_CHECKING:
    from torch import nn

EXPORT_TOLERANCE = 2e-3
"""Largest difference that an exported network may show, in units of its largest number."""

Floats = npt.NDArray[np.float32]
Images = npt.NDArray[np.uint8]


def spread(images: Images, indices: npt.NDArray[np.int64], count: int) -> Images:
    """Return at most ``count`` of the images with these indices, at equal distances."""
    return images[indices[:: max(1, len(indices) // count)][:count]]


def weights_of(module: nn.Module, metadata: dict[str, str] | None = None) -> bytes:
    """Return a module's state dict as a ``.safetensors`` file."""
    from safetensors.torch import save

    state = {name: value.contiguous() for name, value in module.state_dict().items()}
    return bytes(save(state, metadata=metadata))


def export_checked(module: nn.Module, path: Path, images: Images, expected: Floats) -> float:
    """Write a network as ONNX; return its largest difference from torch, on both runtimes.

    Args:
        module: with its preprocessing, see :func:`~vinoreward.backends.convert.export_onnx`.
        path: of the file; it takes uint8 pictures.
        images: (N, H, W, 3) uint8, a few to compare on.
        expected: (N, K) what torch gives for them.

    Raises:
        OutputError: the exported network does not compute what was trained.
    """
    export_onnx(module, path, *images.shape[1:3])
    spec = NetworkSpec(
        path,
        TensorSpec((None, *images.shape[1:]), "uint8"),
        TensorSpec((None, expected.shape[1]), "float32"),
    )
    worst, limit = 0.0, EXPORT_TOLERANCE * max(1.0, float(np.abs(expected).max()))
    for name in ("openvino", "onnxruntime"):
        with load_backend(name, spec) as backend:
            difference = float(np.abs(backend.infer(images) - expected).max())
        if not difference <= limit:
            raise OutputError(
                f"the exported network gives numbers {difference:.4g} away from torch's on {name}. "
                f"Expected at most {limit:.4g}; export with other versions of torch or onnx "
                "(vinoreward doctor lists them)."
            )
        worst = max(worst, difference)
    return worst


def publish(
    folder: Path,
    title: str,
    intro: str,
    sections: Sequence[Section],
    spec: BundleSpec,
    files: Mapping[str, Path | bytes],
    golden: tuple[Images, Floats],
) -> Path:
    """Write FOLDER/bundle, with the sections as its card, and FOLDER/report.html.

    Args:
        folder: the run folder.
        title: of the report; the bundle's name follows it.
        intro: what the bundle is, for the card.
        sections: of both; their pictures go into the bundle.
        spec: of the bundle; versions are added.
        files: of the bundle; those in ``folder`` are removed there.
        golden: pictures and what the network gives for them.

    Returns:
        The bundle's path.

    Raises:
        RunFolderError: a file cannot be written.
    """
    made_by = package_versions(("vinoreward", "torch", "torchvision", "onnx", "openvino", "numpy"))
    present = {name: version for name, version in made_by.items() if version is not None}
    spec = dataclasses.replace(spec, versions={"python": platform.python_version(), **present})
    drawn = {Path(path).name: Path(path) for section in sections for path in section.pictures}
    card = markdown(spec.name, intro, sections)
    saved = save_bundle(folder / "bundle", spec, files, *golden, card, drawn, overwrite=True)
    write_report(folder / "report.html", f"{title} {spec.name}", sections)
    for file in files.values():
        if isinstance(file, Path):
            file.unlink()
    print(f"bundle {saved}, report {folder / 'report.html'}")
    return saved
