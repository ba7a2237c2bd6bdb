"""Writing bundles: whole or not at all."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from vinoreward.bundles.card import model_card
from vinoreward.bundles.golden import Golden
from vinoreward.bundles.locate import SPEC_FILE, SPEC_HASH_FILE, model_name, previous_of, readable
from vinoreward.bundles.schema import BundleSpec, Quantization, check_file_name
from vinoreward.errors import BundleError, ConfigError, ModelNotFoundError, RunFolderError
from vinoreward.files import read_plain, sha256, write_json

if TYPE_CHECKING:
    from vinoreward.bundles.bundle import Bundle

MODEL_FILES = (
    "model.onnx",
    "model.xml",
    "model.bin",
    "model.safetensors",
    "model.int8.onnx",
    "model.int8.xml",
    "model.int8.bin",
    "decoder.onnx",
    "decoder.safetensors",
)
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
    """Write a bundle as a folder. It is built beside ``path`` and renamed when complete.

    Args:
        path: the new folder.
        spec: the description; its ``files`` are filled in here.
        files: name in the bundle to the file or its content: ``model.onnx`` (or ``model.xml`` and
            ``model.bin``), optionally ``model.safetensors``, ``model.int8.onnx`` and an encoder's
            ``decoder.onnx`` and ``decoder.safetensors``, which are for looking only.
        golden_images: ``(G, H, W, 3)`` uint8 RGB as :func:`prepare` returns them; choose frames of
            every label, in colour, some of them close to the threshold.
        golden_logits: ``(G, K)`` what the FP32 network gives for them.
        card: text of ``README.md``; written from the spec where ``None``.
        card_pictures: name to picture file, copied to ``pictures/``.
        golden_logits_int8: ``(G, K)`` the same of the INT8 network.
        overwrite: replace a bundle that is there already. Anything else is never replaced.

    Returns:
        The folder, absolute.

    Raises:
        ConfigError: ``path`` exists and may not be replaced, or a file name is not allowed.
        BundleError: golden frames or a picture's name do not fit.
        ModelNotFoundError: one of the files to copy is missing.
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
            raise ConfigError("the bundle has no model. Expected model.onnx or model.xml.")
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
    """Put an INT8 network and the result of its gate into a saved bundle.

    An INT8 network that is there already is replaced. A failed gate may be recorded too: the
    network is then kept for study and never chosen.

    Args:
        bundle: a saved bundle.
        int8_path: ``.onnx``, or ``.xml`` with its ``.bin`` beside it.
        quantization: what the gate found.
        golden_logits_int8: ``(G, K)`` what the INT8 network gives for the bundle's golden frames.
        int8_band: see :class:`~vinoreward.bundles.schema.Decision`.
        card: new text of ``README.md``. Without it a card that was written from the spec is
            written again; one written by hand is kept.

    Returns:
        The folder, absolute. On errors, those of :func:`save_bundle`, the old bundle is unchanged.
    """
    golden = bundle.golden
    source = Path(int8_path)
    if source.suffix not in (".onnx", ".xml"):
        raise ConfigError(
            f"the INT8 network is {source}. Expected an .onnx or .xml file; export it as one."
        )
    files: dict[str, Path | bytes] = {
        name: bundle.path / name
        for name in bundle.spec.files
        if name != "golden.npz" and not name.startswith("model.int8.")
    }
    files[f"model.int8{source.suffix}"] = source
    if source.suffix == ".xml":
        files["model.int8.bin"] = source.with_suffix(".bin")
    readme, folder = bundle.path / "README.md", bundle.path / "pictures"
    _refuse_links(bundle.path, [*(bundle.path / name for name in bundle.spec.files), readme])
    _refuse_links(bundle.path, [folder, *folder.glob("*")])
    shown = sorted(
        item for item in folder.glob("*") if item.is_file() and item.name != "golden.png"
    )
    written = card_of(bundle.path)
    if card is None and written is not None:
        ours = model_card(bundle.spec, ["golden.png", *(item.name for item in shown)])
        card = None if written == ours else written
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
        {item.name: item for item in shown},
        golden_logits_int8=golden_logits_int8,
        overwrite=True,
    )


def card_of(folder: Path) -> str | None:
    """Return the model card of a bundle, None without one.

    Raises:
        BundleError: it cannot be read, or is too large for one.
    """
    path = folder / "README.md"
    if not path.exists():
        return None
    expected = f"a model card of at most {MAX_CARD_BYTES} bytes; remove it to have one written"
    with readable(path, expected):
        return read_plain(path, MAX_CARD_BYTES).decode("utf-8", "replace")


def _refuse_links(bundle: Path, copied: Iterable[Path]) -> None:
    """Refuse a bundle from which a link would be copied: what it points to is none of ours."""
    for path in copied:
        if path.is_symlink():
            raise BundleError(
                f"{path} is a link to {path.resolve()}, whose content would become part of the "
                "bundle. Expected files of the bundle's own; copy it without links, cp -rL "
                f"{bundle} my-bundle, if you know what they point to, and give the copy."
            )


@contextlib.contextmanager
def _building(path: Path, *, overwrite: bool) -> Iterator[Path]:
    """Yield an empty folder beside ``path``; rename it to ``path`` when the block succeeds."""
    previous = previous_of(path)
    part: Path | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if previous.is_dir() and not path.exists():
            previous.rename(path)  # an earlier save was killed between its two renames
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
    """Make the folder readable as an ordinary one, and make sure that it is on the disk."""
    umask = os.umask(0)
    os.umask(umask)
    folder.chmod(0o777 & ~umask)
    for item in folder.rglob("*"):
        if item.is_file():
            item.chmod(0o666 & ~umask)
            with item.open("rb") as written:
                os.fsync(written.fileno())


def _swap(part: Path, path: Path, previous: Path) -> None:
    """Rename ``part`` to ``path``. What is at ``path`` stands aside and comes back on failure."""
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
            f"the bundle was given the files {', '.join(unknown)}. Expected names out of "
            f"{', '.join(MODEL_FILES)}; rename them, or use card_pictures for pictures."
        )
    for stem in ("model", "model.int8"):
        if f"{stem}.xml" in files and f"{stem}.bin" not in files:
            raise ConfigError(f"{stem}.xml was given without {stem}.bin. Expected both files.")


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
