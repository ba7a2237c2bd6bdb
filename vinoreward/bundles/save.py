"""Writing bundles, complete or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vinoreward.bundles.golden import Golden
from vinoreward.bundles.locate import (
    CARD_FILE,
    GOLDEN_FILE,
    MODEL_FILE,
    MODEL_FILES,
    SPEC_FILE,
    SPEC_HASH_FILE,
    previous_of,
)
from vinoreward.bundles.schema import BundleSpec, check_file_name
from vinoreward.errors import ConfigError, ModelNotFoundError, RunFolderError
from vinoreward.files import sha256, write_json


def save_bundle(
    path: str | Path,
    spec: BundleSpec,
    files: Mapping[str, Path | bytes],
    golden_images: NDArray[Any],
    golden_logits: NDArray[Any],
    card: str | None = None,
    card_images: Mapping[str, Path] = MappingProxyType({}),
    *,
    golden_logits_int8: NDArray[Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a bundle as a folder and return its absolute path.

    Args:
        path: the new folder; another one is renamed to it when complete.
        spec: the description; ``files`` is filled in here.
        files: name in the bundle to a file or its content: ``model.onnx``, optionally
            others of ``MODEL_FILES``.
        golden_images: ``(G, H, W, 3)`` uint8 RGB as :func:`prepare` returns them; choose images of
            every label, in colour, some of them close to the threshold.
        golden_logits: ``(G, K)`` outputs of the FP32 network for them.
        card: text of ``README.md``; a few lines if ``None``.
        card_images: name to image file, copied to ``images/``.
        golden_logits_int8: ``(G, K)`` the same of the INT8 network.
        overwrite: replace an existing bundle; anything else is never replaced.

    Raises:
        ConfigError: ``path`` exists and may not be replaced, or a file name is not allowed.
        BundleError: golden images or an image's name are not valid.
        ModelNotFoundError: a file to copy is missing.
        RunFolderError: the folder cannot be written or the disk is full; nothing was changed.
    """
    path = Path(path)
    int8 = None if golden_logits_int8 is None else np.asarray(golden_logits_int8, np.float32)
    golden = Golden(np.asarray(golden_images), np.asarray(golden_logits, np.float32), int8)
    golden.check(spec)
    unknown = sorted(set(files) - set(MODEL_FILES))
    if unknown or MODEL_FILE not in files:
        found = f"the files {', '.join(unknown)}" if unknown else f"no model, {MODEL_FILE}"
        raise ConfigError(
            f"the bundle was given {found}. Expected {MODEL_FILE}, and others of "
            f"{', '.join(MODEL_FILES)}; rename them, or use card_images for images."
        )
    for name in card_images:
        check_file_name(name)
    with _building(path, overwrite=overwrite) as folder:
        for name, content in files.items():
            _put(folder / name, content)
        (folder / GOLDEN_FILE).write_bytes(golden.to_bytes())
        if card_images:
            (folder / "images").mkdir()
        for name, source in card_images.items():
            _put(folder / "images" / name, source)
        hashed = sorted([*files, GOLDEN_FILE])
        spec = dataclasses.replace(spec, files={name: sha256(folder / name) for name in hashed})
        text = _short_card(spec) if card is None else card
        (folder / CARD_FILE).write_text(text, encoding="utf-8")
        write_json(folder / SPEC_FILE, spec.to_dict())
        (folder / SPEC_HASH_FILE).write_text(sha256(folder / SPEC_FILE) + "\n", encoding="ascii")
    return path.absolute()


@contextlib.contextmanager
def _building(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield an empty folder; rename it to ``path`` when the block succeeds."""
    previous = previous_of(path)
    part = path.with_name(f".{path.name}-{os.urandom(4).hex()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if previous.is_dir() and not path.exists():
            previous.rename(path)  # an earlier save ended between its two renames
        _check_target(path, overwrite=overwrite)
        part.mkdir()
        yield part
        for item in part.rglob("*"):
            if item.is_file():
                with item.open("rb") as written:
                    os.fsync(written.fileno())
        shutil.rmtree(previous, ignore_errors=True)
        if path.exists():
            path.rename(previous)
        try:
            part.rename(path)
        except OSError:
            if previous.exists():
                previous.rename(path)
            raise
        shutil.rmtree(previous, ignore_errors=True)
    except (RunFolderError, ModelNotFoundError):
        raise
    except OSError as error:
        raise RunFolderError(
            f"cannot write the bundle {path}: {error.strerror or error}. Expected a writable folder"
            " with free space; choose another folder or free some space, nothing was changed."
        ) from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _check_target(path: Path, *, overwrite: bool) -> None:
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ConfigError(f"{path} is not a folder. Expected a new name; choose another one.")
    if not path.exists() or not any(path.iterdir()):
        return
    if not (path / SPEC_FILE).is_file():
        raise ConfigError(
            f"{path} holds something else than a bundle. Expected a new folder; choose another name"
            " (only bundles are ever replaced)."
        )
    if not overwrite:
        raise ConfigError(
            f"there is a bundle at {path} already. Expected a new folder; choose another name, or "
            "pass overwrite=True to replace it."
        )


def _put(target: Path, content: Path | bytes) -> None:
    if isinstance(content, bytes):
        target.write_bytes(content)
    elif Path(content).is_file():
        shutil.copyfile(content, target)
    else:
        raise ModelNotFoundError(
            f"there is no file {content}, which should become {target.name} of the bundle. Expected"
            " an existing file; check the path."
        )


def _short_card(spec: BundleSpec) -> str:
    """Return ``README.md`` of a bundle without a card of its own, for people and for the Hub."""
    task, use, what = "image-feature-extraction", "Encoder", f"{spec.latent_size} numbers"
    if spec.kind == "classifier":
        task, use, what = "image-classification", "Classifier", ", ".join(spec.labels)
    return f"""---
license: unknown
library_name: vinoreward
pipeline_tag: {task}
tags: [reinforcement-learning, robotics, gymnasium, openvino]
---

# {spec.name}

From images of {spec.image.height} x {spec.image.width} pixels (height x width) to {what}.
`bundle.json` says the rest. To use it: `vinoreward.{use}("path/to/this/folder")`.
"""
