"""What follows a training: the export is checked; bundle, card and report are written."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vinoreward.backends.base import load_backend
from vinoreward.backends.network import NetworkSpec, TensorSpec
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import OutputError
from vinoreward_training.runs.machine import package_versions
from vinoreward_training.runs.report import Section, markdown, write_report

EXPORT_TOLERANCE = 2e-3
"""Largest difference that an exported network may show, in units of its largest number."""

Floats = npt.NDArray[np.float32]


def check_export(path: Path, images: npt.NDArray[np.uint8], expected: Floats) -> float:
    """Return the largest difference of an ONNX file from torch, on both runtimes.

    Args:
        path: of the file; it takes uint8 pictures.
        images: (N, H, W, 3) uint8, a few to compare on.
        expected: (N, K) what torch gives for them.

    Raises:
        OutputError: the exported network does not compute what was trained.
    """
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


def versions() -> dict[str, str]:
    """Return the versions of what makes a bundle."""
    found = package_versions(("vinoreward", "torch", "torchvision", "onnx", "openvino", "numpy"))
    present = {name: version for name, version in found.items() if version is not None}
    return {"python": platform.python_version(), **present}


def publish(
    folder: Path,
    title: str,
    intro: str,
    sections: Sequence[Section],
    spec: BundleSpec,
    files: Mapping[str, Path | bytes],
    golden: tuple[npt.NDArray[np.uint8], Floats],
) -> Path:
    """Write FOLDER/bundle, with the sections as its card, and FOLDER/report.html.

    Args:
        folder: the run folder.
        title: of the report; the bundle's name follows it.
        intro: what the bundle is, for the card.
        sections: of both; their pictures go into the bundle.
        spec: of the bundle.
        files: of the bundle; those in ``folder`` are removed there.
        golden: pictures and what the network gives for them.

    Returns:
        The bundle's path.

    Raises:
        RunFolderError: a file cannot be written.
    """
    drawn = {Path(path).name: Path(path) for section in sections for path in section.pictures}
    card = markdown(spec.name, intro, sections)
    saved = save_bundle(folder / "bundle", spec, files, *golden, card, drawn, overwrite=True)
    write_report(folder / "report.html", f"{title} {spec.name}", sections)
    for file in files.values():
        if isinstance(file, Path):
            file.unlink()
    print(f"bundle {saved}, report {folder / 'report.html'}")
    return saved
