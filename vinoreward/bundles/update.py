"""Changes of a saved bundle: an INT8 network, an OOD detector, a new calibration."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from numpy.typing import NDArray

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.golden import Golden
from vinoreward.bundles.locate import CARD_FILE, GOLDEN_FILE, GUARD_FILE, INT8_FILE
from vinoreward.bundles.save import (
    card_of,
    model_card,
    refuse_links,
    save_bundle,
)
from vinoreward.bundles.schema import BundleSpec, Quantization


def add_int8(
    bundle: Bundle,
    int8_path: str | Path,
    quantization: Quantization,
    golden_logits_int8: NDArray[Any],
    int8_band: float | None = None,
    *,
    card: str | None = None,
) -> Path:
    """Add or replace a saved bundle's INT8 network and the result of its gate; return the folder.

    A network that failed the gate is saved for study and never chosen. On errors, those of
    :func:`save_bundle`, the old bundle is unchanged.

    Args:
        bundle: a saved bundle.
        int8_path: the ``.onnx`` file.
        quantization: the result of the gate.
        golden_logits_int8: ``(G, K)`` outputs of the INT8 network for the bundle's golden images.
        int8_band: see :class:`~vinoreward.bundles.schema.Decision`.
        card: new text of ``README.md``. Otherwise a card generated from the spec is generated
            again, and one written by hand is kept.
    """
    decision = dataclasses.replace(bundle.spec.decision, int8_band=int8_band)
    return update_bundle(
        bundle,
        dataclasses.replace(bundle.spec, quantization=quantization, decision=decision),
        {INT8_FILE: Path(int8_path)},
        dataclasses.replace(bundle.golden, logits_int8=golden_logits_int8),
        card or _own_card(bundle),
    )


def with_guard(bundle: Bundle, guard: bytes, metrics: Mapping[str, Any], sentence: str) -> Path:
    """Add or replace a saved bundle's guard; return the folder.

    ``guard`` is the content of ``guard.npz``, ``metrics`` what is known of it, ``sentence`` the
    same in words, for a card with a line on the guard. Errors are those of :func:`save_bundle`.
    """
    card = _own_card(bundle)
    if card is not None:
        card = re.sub(r"(?m)^- guard: .*$", lambda _: f"- guard: {sentence}", card, count=1)
    spec = dataclasses.replace(bundle.spec, metrics=bundle.spec.metrics | {"guard": dict(metrics)})
    return update_bundle(bundle, spec, {GUARD_FILE: guard}, bundle.golden, card)


def update_bundle(
    bundle: Bundle,
    spec: BundleSpec,
    changes: Mapping[str, Path | bytes | None],
    golden: Golden,
    card: str | None,
    card_images: Mapping[str, Path] = MappingProxyType({}),
) -> Path:
    """Replace a saved bundle; errors are those of :func:`save_bundle`.

    Files that are None in ``changes`` go, all others stay, as do the card's other images.
    """
    kept = {name: bundle.path / name for name in bundle.spec.files if name != GOLDEN_FILE}
    files = {name: content for name, content in {**kept, **changes}.items() if content is not None}
    images = _own_images(bundle)
    refuse_links(bundle.path, [*kept.values(), bundle.path / CARD_FILE, *images.values()])
    return save_bundle(
        bundle.path,
        spec,
        files,
        golden.images,
        golden.logits,
        card,
        {**images, **card_images},
        golden_logits_int8=golden.logits_int8,
        overwrite=True,
    )


def _own_images(bundle: Bundle) -> dict[str, Path]:
    """Return the images of a bundle's card but for that of the golden images."""
    folder = bundle.path / "images"
    refuse_links(bundle.path, [folder])
    items = [item for item in sorted(folder.glob("*")) if item.name != "golden.png"]
    return {item.name: item for item in items if item.is_symlink() or item.is_file()}


def _own_card(bundle: Bundle) -> str | None:
    """Return a bundle's card if it was written by hand; None if it was made from the spec."""
    card = card_of(bundle.path)
    generated = model_card(bundle.spec, ["golden.png", *_own_images(bundle)])
    return None if card == generated else card
