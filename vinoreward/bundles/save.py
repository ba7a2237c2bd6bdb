"""Writing bundles with their model cards, complete or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from vinoreward.bundles.golden import Golden
from vinoreward.bundles.locate import (
    CARD_FILE,
    GOLDEN_FILE,
    MODEL_FILE,
    MODEL_FILES,
    SPEC_FILE,
    SPEC_HASH_FILE,
    previous_of,
    readable,
)
from vinoreward.bundles.schema import ONE_COLUMN, BundleSpec, check_file_name
from vinoreward.errors import BundleError, ConfigError, ModelNotFoundError, RunFolderError
from vinoreward.files import read_plain, sha256, write_json

MAX_CARD_BYTES = 1 << 20
_SHEET = 8
_USES = {
    "classifier": """import vinoreward

classifier = vinoreward.Classifier("path/to/this/folder")
probabilities = classifier.probability(images)  # (N, height, width, 3) uint8 RGB""",
    "encoder": """import vinoreward

encoder = vinoreward.Encoder("path/to/this/folder")
latents = encoder.encode(images)  # (N, height, width, 3) uint8 RGB

# or around an environment whose observation is or contains the image
env = vinoreward.EncodedObservation(env, "path/to/this/folder")""",
}


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
        card: text of ``README.md``; written from the spec if ``None``.
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
    int8 = golden_logits_int8
    golden = Golden(
        np.ascontiguousarray(golden_images),
        np.ascontiguousarray(golden_logits, dtype=np.float32),
        None if int8 is None else np.ascontiguousarray(int8, dtype=np.float32),
    )
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
        if "/" in name or Path(name).suffix.lower() not in (".png", ".jpg", ".gif"):
            raise BundleError(
                f"the card image is called {name!r}. Expected a plain .png, .jpg or .gif name "
                "without folders; rename it."
            )
    with _building(path, overwrite=overwrite) as folder:
        for name, content in files.items():
            _put(folder / name, content)
        (folder / GOLDEN_FILE).write_bytes(golden.to_bytes())
        (folder / "images").mkdir()
        _sheet(golden.images).save(folder / "images" / "golden.png")
        for name, source in card_images.items():
            _put(folder / "images" / name, source)
        hashed = sorted([*files, GOLDEN_FILE])
        spec = dataclasses.replace(spec, files={name: sha256(folder / name) for name in hashed})
        text = model_card(spec, ["golden.png", *sorted(card_images)]) if card is None else card
        (folder / CARD_FILE).write_text(text, encoding="utf-8")
        write_json(folder / SPEC_FILE, spec.to_dict())
        (folder / SPEC_HASH_FILE).write_text(sha256(folder / SPEC_FILE) + "\n", encoding="ascii")
    return path.absolute()


def card_of(folder: Path) -> str | None:
    """Return a bundle's model card, None without one; BundleError if it cannot be read."""
    path = folder / CARD_FILE
    if not path.exists():
        return None
    with readable(path, f"a model card of at most {MAX_CARD_BYTES} bytes; remove it"):
        return read_plain(path, MAX_CARD_BYTES).decode("utf-8", "replace")


def refuse_links(bundle: Path, copied: Iterable[Path]) -> None:
    """Refuse to copy what a link in a bundle points to, which may be any private file."""
    for path in copied:
        if path.is_symlink():
            raise BundleError(
                f"{path} is a link to {path.resolve()}, whose content would become part of the "
                "bundle. Expected files of the bundle's own; if you know what the links point to, "
                f"copy the bundle without them, cp -rL {bundle} my-bundle, and give the copy."
            )


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


def _sheet(images: NDArray[np.uint8]) -> Image.Image:
    """Return the first golden images side by side, for the card."""
    return Image.fromarray(np.concatenate(list(images[:_SHEET]), axis=1))


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


def model_card(spec: BundleSpec, images: Sequence[str] = ()) -> str:
    """Return the text of ``README.md`` for a bundle, with these files of ``images/``."""
    described = yaml.safe_dump(spec.to_dict(), sort_keys=False, default_flow_style=None, width=100)
    sections = [
        f"{front_matter(spec)}# {spec.name}\n\n{_summary(spec)}",
        f"## Use it\n\n```python\n{_USES[spec.kind]}\n```",
        f"## What `bundle.json` says\n\n```yaml\n{described}```",
    ]
    if images:
        shown = "\n\n".join(f"![{name}](images/{name})" for name in images)
        sections.append(
            "## Images\n\n`golden.png` shows the frames with recorded outputs, which are run "
            f"whenever the bundle is loaded.\n\n{shown}"
        )
    return "\n\n".join(sections) + "\n"


def _summary(spec: BundleSpec) -> str:
    size = f"images of {spec.image.height} x {spec.image.width} pixels (height x width)"
    if spec.kind == "encoder":
        text = f"An encoder: {size} to {spec.latent_size} numbers."
    else:
        one = spec.output in ONE_COLUMN
        text = (
            f"A success classifier of {size} with the labels "
            f"{', '.join(f'`{label}`' for label in spec.labels)} "
            f"({'its one output is for the second' if one else 'in the order of its outputs'}); "
            f"`{spec.success_label}` means success."
        )
    if spec.architecture:
        text += f" Architecture: {spec.architecture}."
    if spec.image.views:
        text += f" Views from top to bottom: {', '.join(map(str, spec.image.views))}."
    gate = spec.quantization
    if gate is None:
        return f"{text} There is no INT8 network; make one with `vinoreward quantize`."
    what = "decisions flipped"
    if spec.kind == "encoder":
        what = "frames whose vector moves by more than one unit"
    used = "passed its gate" if gate.passed else "did not pass its gate and is never chosen"
    text += (
        f" The INT8 network {used}; {what}: {gate.flips} of {gate.frames}, "
        f"{gate.max_flip_rate:.3%} allowed."
    )
    if band := spec.decision.int8_band:
        text += (
            f" An image whose log-odds lie within {band:.3g} of the threshold's is scored again "
            "by the FP32 network, whose answer counts; these flips are those that remain."
        )
    return text
