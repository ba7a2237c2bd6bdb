"""Writing bundles, complete or not at all, with their model cards in Markdown."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import yaml
from numpy.typing import NDArray
from PIL import Image

from vinoreward.bundles.golden import Golden
from vinoreward.bundles.locate import SPEC_FILE, SPEC_HASH_FILE, model_name, previous_of, readable
from vinoreward.bundles.schema import (
    ONE_COLUMN,
    BundleSpec,
    Encoding,
    Quantization,
    check_file_name,
)
from vinoreward.errors import BundleError, ConfigError, ModelNotFoundError, RunFolderError
from vinoreward.files import read_plain, sha256, write_json

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle

# The decoder is only for looking at an encoder's reconstructions.
MODEL_FILES = (
    "model.onnx", "model.safetensors", "model.int8.onnx", "decoder.onnx", "decoder.safetensors",
    "guard.npz",
)  # fmt: skip
MAX_CARD_BYTES = 1 << 20
_SHEET = 8


def save_bundle(
    path: str | Path,
    spec: BundleSpec,
    files: Mapping[str, Path | bytes],
    golden_images: NDArray[Any],
    golden_logits: NDArray[Any],
    card: str | None = None,
    card_pictures: Mapping[str, Path] | None = None,
    *,
    golden_logits_int8: NDArray[Any] | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a bundle as a folder and return its absolute path.

    Args:
        path: the new folder; it is built beside it and renamed when complete.
        spec: the description; ``files`` is filled in here.
        files: name in the bundle to a file or its content: ``model.onnx``, optionally
            others of ``MODEL_FILES``.
        golden_images: ``(G, H, W, 3)`` uint8 RGB as :func:`prepare` returns them; choose frames of
            every label, in colour, some of them close to the threshold.
        golden_logits: ``(G, K)`` outputs of the FP32 network for them.
        card: text of ``README.md``; written from the spec if ``None``.
        card_pictures: name to picture file, copied to ``pictures/``.
        golden_logits_int8: ``(G, K)`` the same of the INT8 network.
        overwrite: replace an existing bundle; anything else is never replaced.

    Raises:
        ConfigError: ``path`` exists and may not be replaced, or a file name is not allowed.
        BundleError: golden frames or a picture's name are not valid.
        ModelNotFoundError: a file to copy is missing.
        RunFolderError: the folder cannot be written or the disk is full; nothing was changed.
    """
    path = Path(path)
    golden = Golden(
        np.ascontiguousarray(golden_images),
        np.ascontiguousarray(golden_logits, dtype=np.float32),
        None
        if golden_logits_int8 is None
        else np.ascontiguousarray(golden_logits_int8, dtype=np.float32),
    )
    golden.check(spec)
    _check_names(files)
    pictures = dict(card_pictures or {})
    for name in pictures:
        check_file_name(name)
        if "/" in name or Path(name).suffix.lower() not in (".png", ".jpg", ".gif"):
            raise BundleError(
                f"the card picture is called {name!r}. Expected a plain .png, .jpg or .gif name "
                "without folders; rename it."
            )
    with _building(path, overwrite=overwrite) as folder:
        for name, content in files.items():
            _put(folder / name, content)
        (folder / "golden.npz").write_bytes(golden.to_bytes())
        (folder / "pictures").mkdir()
        _sheet(golden.images).save(folder / "pictures" / "golden.png")
        for name, source in pictures.items():
            _put(folder / "pictures" / name, source)
        hashed = sorted([*files, "golden.npz"])
        spec = dataclasses.replace(spec, files={name: sha256(folder / name) for name in hashed})
        if model_name(spec) is None:
            raise ConfigError("the bundle has no model. Expected model.onnx.")
        text = model_card(spec, ["golden.png", *sorted(pictures)]) if card is None else card
        (folder / "README.md").write_text(text, encoding="utf-8")
        write_json(folder / SPEC_FILE, spec.to_dict())
        (folder / SPEC_HASH_FILE).write_text(sha256(folder / SPEC_FILE) + "\n", encoding="ascii")
    return path.absolute()


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
        golden_logits_int8: ``(G, K)`` outputs of the INT8 network for the bundle's golden frames.
        int8_band: see :class:`~vinoreward.bundles.schema.Decision`.
        card: new text of ``README.md``. Otherwise a card generated from the spec is generated
            again, and one written by hand is kept.
    """
    golden = bundle.golden
    files, pictures = _own_files(bundle)
    files["model.int8.onnx"] = Path(int8_path)
    existing = card_of(bundle.path)
    generated = model_card(bundle.spec, ["golden.png", *pictures])
    # Cards had no front matter once.
    if card is None and existing not in (generated, generated.partition("---\n\n")[2]):
        card = existing
    return save_bundle(
        bundle.path,
        dataclasses.replace(
            bundle.spec,
            quantization=quantization,
            decision=dataclasses.replace(bundle.spec.decision, int8_band=int8_band),
        ),
        files,
        golden.images,
        golden.logits,
        card,
        pictures,
        golden_logits_int8=golden_logits_int8,
        overwrite=True,
    )


def with_guard(bundle: Bundle, guard: bytes, metrics: Mapping[str, Any], sentence: str) -> Path:
    """Add or replace a saved bundle's guard; return the folder.

    ``guard`` is the content of ``guard.npz``, ``metrics`` what is known of it, ``sentence`` the
    same in words, for a card with a line on the guard. Decisions, networks and the rest of the
    card stay. Errors are those of :func:`save_bundle`.
    """
    golden, card = bundle.golden, card_of(bundle.path)
    files, pictures = _own_files(bundle)
    files |= {name: bundle.path / name for name in bundle.spec.files if "int8" in name}
    files["guard.npz"] = guard
    if card == model_card(bundle.spec, ["golden.png", *pictures]):
        card = None
    elif card is not None:
        card = re.sub(r"(?m)^- guard: .*$", lambda _: f"- guard: {sentence}", card, count=1)
    return save_bundle(
        bundle.path,
        dataclasses.replace(bundle.spec, metrics={**bundle.spec.metrics, "guard": dict(metrics)}),
        files,
        golden.images,
        golden.logits,
        card,
        pictures,
        golden_logits_int8=golden.logits_int8,
        overwrite=True,
    )


def replace_fp32(
    bundle: Bundle,
    spec: BundleSpec,
    golden_images: NDArray[Any],
    golden_logits: NDArray[Any],
    card: str,
    card_pictures: Mapping[str, Path],
    others: Mapping[str, bytes],
) -> Path:
    """Give a saved bundle another description, golden frames and card; return the folder.

    Its INT8 network goes, as its gate compared decisions at the old threshold, and its guard, which
    knew other pictures. ``others`` are files that it gets. The other arguments and errors are those
    of :func:`save_bundle`.
    """
    files, pictures = _own_files(bundle)
    files.pop("guard.npz", None)  # it knew other pictures
    files |= others
    return save_bundle(
        bundle.path,
        dataclasses.replace(
            spec, quantization=None, decision=dataclasses.replace(spec.decision, int8_band=None)
        ),
        files,
        golden_images,
        golden_logits,
        card,
        {**pictures, **card_pictures},
        overwrite=True,
    )


def _own_files(bundle: Bundle) -> tuple[dict[str, Path | bytes], dict[str, Path]]:
    """Return a bundle's FP32 files and its card's pictures, to save it again; refuse links."""
    readme, folder = bundle.path / "README.md", bundle.path / "pictures"
    _refuse_links(bundle.path, [*(bundle.path / name for name in bundle.spec.files), readme])
    _refuse_links(bundle.path, [folder, *folder.glob("*")])
    files: dict[str, Path | bytes] = {
        name: bundle.path / name
        for name in bundle.spec.files
        if name != "golden.npz" and not name.startswith("model.int8.")
    }
    pictures = {
        item.name: item
        for item in sorted(folder.glob("*"))
        if item.is_file() and item.name != "golden.png"
    }
    return files, pictures


def card_of(folder: Path) -> str | None:
    """Return a bundle's model card, None without one; BundleError if it cannot be read."""
    path = folder / "README.md"
    if not path.exists():
        return None
    expected = f"a model card of at most {MAX_CARD_BYTES} bytes; remove it to have one written"
    with readable(path, expected):
        return read_plain(path, MAX_CARD_BYTES).decode("utf-8", "replace")


def _refuse_links(bundle: Path, copied: Iterable[Path]) -> None:
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
    """Yield an empty folder beside ``path``; rename it to ``path`` when the block succeeds."""
    previous = previous_of(path)
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if previous.is_dir() and not path.exists():
            previous.rename(path)  # an earlier save ended between its two renames
        _check_target(path, overwrite=overwrite)
        part = Path(tempfile.mkdtemp(prefix=f".{path.name}-", suffix=".part", dir=path.parent))
        yield part
        _settle(part)
        _swap(part, path, previous)
    except OSError as error:
        if isinstance(error, (RunFolderError, ModelNotFoundError)):
            raise
        raise RunFolderError(
            f"cannot write the bundle {path}: {error.strerror or error}. Expected a writable folder"
            " with free space; choose another folder or free some space, nothing was changed."
        ) from error
    finally:
        if part is not None:
            shutil.rmtree(part, ignore_errors=True)


def _check_target(path: Path, *, overwrite: bool) -> None:
    if not (path.exists() or path.is_symlink()):
        return
    if path.is_symlink() or not path.is_dir():
        raise ConfigError(f"{path} is not a folder. Expected a new name; choose another one.")
    if not any(path.iterdir()):
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


def _settle(folder: Path) -> None:
    """Give the folder its usual permissions and write it to the disk."""
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)
    for item in folder.rglob("*"):
        if item.is_file():
            item.chmod(0o666 & ~umask)
            with item.open("rb") as written:
                os.fsync(written.fileno())


def _swap(part: Path, path: Path, previous: Path) -> None:
    """Rename ``part`` to ``path``; on failure the folder that was at ``path`` is restored."""
    if previous.exists():
        shutil.rmtree(previous)
    aside = path.exists()
    if aside:
        path.rename(previous)
    try:
        part.rename(path)
    except OSError:
        if aside:
            previous.rename(path)
        raise
    shutil.rmtree(previous, ignore_errors=True)


def _check_names(files: Mapping[str, Path | bytes]) -> None:
    unknown = sorted(set(files) - set(MODEL_FILES))
    if unknown:
        raise ConfigError(
            f"the bundle was given the files {', '.join(unknown)}. Expected names from "
            f"{', '.join(MODEL_FILES)}; rename them, or use card_pictures for pictures."
        )


def _put(target: Path, content: Path | bytes) -> None:
    if isinstance(content, bytes):
        target.write_bytes(content)
        return
    if not Path(content).is_file():
        raise ModelNotFoundError(
            f"there is no file {content}, which should become {target.name} of the bundle. Expected"
            " an existing file; check the path."
        )
    shutil.copyfile(content, target)


def _sheet(images: NDArray[np.uint8]) -> Image.Image:
    """Return the first golden frames side by side, for the card."""
    return Image.fromarray(np.ascontiguousarray(np.concatenate(list(images[:_SHEET]), axis=1)))


def front_matter(spec: BundleSpec) -> str:
    """Return what the Hugging Face Hub reads at the beginning of a model card: a block of YAML."""
    task = "image-classification" if spec.kind == "classifier" else "image-feature-extraction"
    facts: dict[str, Any] = {
        "license": "unknown",  # its maker's choice
        "library_name": "vinoreward",
        "pipeline_tag": task,
        "tags": [
            "reward-model" if spec.kind == "classifier" else "state-encoder",
            "reinforcement-learning",
            "robotics",
            "gymnasium",
            "openvino",
        ],
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


def model_card(spec: BundleSpec, pictures: Sequence[str] = ()) -> str:
    """Return the text of ``README.md`` for a bundle, with these files of ``pictures/``."""
    sections = [
        f"{front_matter(spec)}# {spec.name}\n\n{_summary(spec)}",
        "## Use it\n\n```python\nimport vinoreward\n\n"
        'classifier = vinoreward.Classifier("path/to/this/folder")\n'
        "probabilities = classifier.probability(pictures)  # (N, height, width, 3) uint8 RGB\n```"
        if spec.kind == "classifier"
        else "## Use it\n\n```python\nimport vinoreward\n\n"
        'encoder = vinoreward.Encoder("path/to/this/folder")\n'
        "latents = encoder.encode(pictures)  # (N, height, width, 3) uint8 RGB\n\n"
        "# or around an environment whose observation is or contains the picture\n"
        'env = vinoreward.EncodedObservation(env, "path/to/this/folder")\n```',
        "## Picture\n\n" + _table(_picture(spec)),
    ]
    if spec.encoding is None:
        sections.append("## Decision\n\n" + _table(_decision(spec)))
    else:
        sections.append("## Latent vector\n\n" + _table(_encoding(spec.encoding)))
    sections.append("## INT8\n\n" + _quantization(spec))
    files = {name: f"`{digest}`" for name, digest in spec.files.items()}
    tables = {"Measured": spec.metrics, "Data": spec.dataset, "Made with": spec.versions}
    for title, values in (tables | {"Files": files}).items():
        if values:
            sections.append(f"## {title}\n\n" + _table(_flat(values)))
    if pictures:
        shown = "\n\n".join(f"![{name}](pictures/{name})" for name in pictures)
        sections.append(
            "## Pictures\n\n`golden.png` shows the frames with recorded outputs, which are run "
            f"whenever the bundle is loaded.\n\n{shown}"
        )
    return "\n\n".join(sections) + "\n"


def _summary(spec: BundleSpec) -> str:
    if spec.kind == "encoder":
        return f"An encoder: pictures to {spec.latent_size} numbers."
    others = ", ".join(f"`{_plain(label)}`" for label in spec.labels)
    order = "in the order of its outputs"
    if spec.output in ONE_COLUMN:
        order = "its one output is for the second"
    built = f" Architecture: {spec.architecture}." if spec.architecture else ""
    return (
        f"A success classifier with the labels {others} ({order}); "
        f"`{_plain(spec.success_label)}` means success.{built}"
    )


def _picture(spec: BundleSpec) -> dict[str, Any]:
    picture = spec.picture
    rows: dict[str, Any] = {
        "size (height x width)": f"{picture.height} x {picture.width}",
        "colour order given": "RGB",
        "colour order of the network": picture.color_order,
        "crop (top, left, height, width)": list(picture.crop) if picture.crop else "none",
        "resize": picture.resize,
        "mean": list(picture.mean),
        "std": list(picture.std),
    }
    if picture.views:
        rows["views below each other"] = [str(view) for view in picture.views]
    return rows | {f"scene: {key}": value for key, value in picture.scene.items()}


def _decision(spec: BundleSpec) -> dict[str, Any]:
    decision = spec.decision
    rows: dict[str, Any] = {
        "success when the probability is at least": decision.threshold,
        "logits are divided by (temperature)": decision.temperature,
    }
    if decision.int8_band is not None:
        rows["with INT8, FP32 looks again within (log-odds of the threshold)"] = decision.int8_band
    if decision.shift_band is not None:
        rows["scores are means over shifts within (log-odds of the threshold)"] = (
            decision.shift_band
        )
    return rows | {f"chosen for: {key}": item for key, item in _flat(decision.chosen_for).items()}


def _encoding(encoding: Encoding) -> dict[str, Any]:
    rows: dict[str, Any] = {
        "dimensions": len(encoding.low),
        "posterior": "mean and log variance" if encoding.posterior else "none: a plain autoencoder",
        "clipped to at least": list(encoding.low),
        "clipped to at most": list(encoding.high),
    }
    if encoding.std is not None:
        rows["posterior's standard deviation"] = list(encoding.std)
    return rows


def _quantization(spec: BundleSpec) -> str:
    gate = spec.quantization
    if gate is None:
        return "No INT8 network. Make one with `vinoreward quantize`."
    look = ""
    if band := spec.decision.int8_band:
        look = (
            "The INT8 network decides where it is sure. A picture whose log-odds lie within "
            f"{band:.3g} of the threshold's is looked at again by the FP32 network, whose answer "
            "counts; the flips below are those that remain.\n\n"
        )
    counted = "decisions flipped"
    if spec.kind == "encoder":
        counted = "frames whose vector moves by more than one unit"
    return look + _table(
        {
            "gate": "passed" if gate.passed else "not passed: INT8 is never chosen",
            counted: f"{gate.flips} of {gate.frames} ({gate.flip_rate:.3%})",
            "allowed": f"{gate.max_flip_rate:.3%}",
            "method": gate.method,
        }
        | _flat(gate.detail)
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested objects as one level with dotted names."""
    rows: dict[str, Any] = {}
    for key, item in values.items():
        if isinstance(item, Mapping):
            rows |= _flat(item, f"{prefix}{key}.")
        else:
            rows[f"{prefix}{key}"] = item
    return rows


def _table(rows: Mapping[str, Any]) -> str:
    lines = [f"| {_plain(key)} | {_shown(item)} |" for key, item in rows.items()]
    return "\n".join(["| what | value |", "| --- | --- |", *lines])


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return ", ".join(_shown(item) for item in value) or "none"
    return _plain(str(value))


def _plain(text: str) -> str:
    """Escape a text for a table cell."""
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")
