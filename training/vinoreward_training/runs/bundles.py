"""Model cards of bundles, and changes of saved ones: an INT8 network, a calibration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy.typing as npt
import yaml

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import Golden
from vinoreward.bundles.locate import CARD_FILE, GOLDEN_FILE, INT8_FILE, readable
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec, Quantization
from vinoreward.errors import BundleError
from vinoreward.files import read_plain

MAX_CARD_BYTES = 1 << 20


def front_matter(spec: BundleSpec) -> str:
    """Return what the Hugging Face Hub reads at the beginning of a model card: a block of YAML."""
    task = "image-classification" if spec.kind == "classifier" else "image-feature-extraction"
    kind = "reward-model" if spec.kind == "classifier" else "state-encoder"
    facts: dict[str, Any] = {
        "license": "unknown",  # its maker's choice
        "library_name": "vinoreward",
        "pipeline_tag": task,
        "tags": [kind, "reinforcement-learning", "robotics", "gymnasium", "openvino"],
    }
    test = spec.metrics.get("test")
    rates = {
        name: test[name]
        for name in ("recall", "precision", "false_positive_rate")
        if isinstance(test, Mapping) and isinstance(test.get(name), float) and 0 <= test[name] <= 1
    }
    if rates:
        facts["metrics"] = [name for name in rates if name in ("recall", "precision")]
        results = {
            "task": {"type": task},
            "dataset": {"type": "images", "name": "held-out frames of its own data"},
            "metrics": [{"type": name, "value": value} for name, value in rates.items()],
        }
        facts["model-index"] = [{"name": spec.name, "results": [results]}]
    return f"---\n{yaml.safe_dump(facts, sort_keys=False)}---\n\n"


def card_of(folder: Path) -> str | None:
    """Return a bundle's model card, None without one; BundleError if it cannot be read."""
    path = folder / CARD_FILE
    if not path.exists():
        return None
    with readable(path, f"a model card of at most {MAX_CARD_BYTES} bytes; remove it"):
        return read_plain(path, MAX_CARD_BYTES).decode("utf-8", "replace")


def of_cut_images(bundle: Bundle) -> Bundle:
    """Return a bundle for images ``(N, H, W, 3)`` from which the part is already cut."""
    image = dataclasses.replace(bundle.spec.image, crop=None)
    return dataclasses.replace(bundle, spec=dataclasses.replace(bundle.spec, image=image))


def add_int8(
    bundle: Bundle,
    int8_path: str | Path,
    quantization: Quantization,
    golden_logits_int8: npt.NDArray[Any],
    int8_band: float | None = None,
) -> Path:
    """Add or replace a saved bundle's INT8 network and the result of its gate; return the folder.

    A network that failed the gate is saved for study and never chosen. Errors are those of
    :func:`~vinoreward.bundles.save.save_bundle`.

    Args:
        bundle: a saved bundle.
        int8_path: the ``.onnx`` file.
        quantization: the result of the gate.
        golden_logits_int8: ``(G, K)`` outputs of the INT8 network for the bundle's golden images.
        int8_band: see :class:`~vinoreward.bundles.schema.Decision`.
    """
    decision = dataclasses.replace(bundle.spec.decision, int8_band=int8_band)
    return update_bundle(
        bundle,
        dataclasses.replace(bundle.spec, quantization=quantization, decision=decision),
        {INT8_FILE: Path(int8_path)},
        dataclasses.replace(bundle.golden, logits_int8=golden_logits_int8),
        card_of(bundle.path),
    )


def update_bundle(
    bundle: Bundle,
    spec: BundleSpec,
    changes: Mapping[str, Path | bytes | None],
    golden: Golden,
    card: str | None,
    card_images: Mapping[str, Path] = MappingProxyType({}),
) -> Path:
    """Replace a saved bundle; errors as :func:`add_int8`.

    Files that are None in ``changes`` go, all others stay, as do the card's other images.
    """
    kept = {name: bundle.path / name for name in bundle.spec.files if name != GOLDEN_FILE}
    files = {name: content for name, content in {**kept, **changes}.items() if content is not None}
    folder = bundle.path / "images"
    images = {} if folder.is_symlink() else {item.name: item for item in sorted(folder.glob("*"))}
    for path in (*kept.values(), bundle.path / CARD_FILE, folder, *images.values()):
        if path.is_symlink():  # what it points to may be any private file
            raise BundleError(
                f"{path} is a link to {path.resolve()}, whose content would become part of the "
                "bundle. Expected files of the bundle's own; if you know what the links point to, "
                f"copy the bundle without them, cp -rL {bundle.path} my-bundle, and give the copy."
            )
    return save_bundle(
        bundle.path,
        spec,
        files,
        golden.images,
        golden.logits,
        card,
        {**{name: item for name, item in images.items() if item.is_file()}, **card_images},
        golden_logits_int8=golden.logits_int8,
        overwrite=True,
    )
