"""Finding bundles, and checking that their files are the saved ones."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from vinoreward.bundles.schema import BundleSpec, check_file_name
from vinoreward.errors import BundleEditedError, BundleError, ModelNotFoundError
from vinoreward.files import is_inside, parse_json, read_plain, sha256, shown

GROUP = "vinoreward.bundles"
SPEC_FILE = "bundle.json"
SPEC_HASH_FILE = "bundle.sha256"
CARD_FILE = "README.md"
MODEL_FILE = "model.onnx"
INT8_FILE = "model.int8.onnx"
GOLDEN_FILE = "golden.npz"
GUARD_FILE = "guard.npz"
# The decoder is only for looking at an encoder's reconstructions.
MODEL_FILES = (
    MODEL_FILE, "model.safetensors", INT8_FILE, "decoder.onnx", "decoder.safetensors", GUARD_FILE,
)  # fmt: skip
MAX_SPEC_BYTES = 1 << 20
MAX_HASH_BYTES = 1024
MAX_FILE_BYTES = 512 << 20
_LIMITS = {SPEC_FILE: MAX_SPEC_BYTES, SPEC_HASH_FILE: MAX_HASH_BYTES, "all its files": 2 << 30}


def known_names() -> list[str]:
    """Return the names of the bundles that installed packages register."""
    return sorted(_entries())


def find(path_or_name: str | Path) -> Path:
    """Return a bundle's folder by its registered name, or else by its path.

    Raises:
        ModelNotFoundError: no such bundle.
        BundleError: the package that registers the name is broken, or the path is a file.
    """
    entries, folder = _entries(), Path(path_or_name)
    if isinstance(path_or_name, str) and path_or_name in entries:
        return _folder_of(entries[path_or_name])
    if os.path.isdir(folder):  # Path.is_dir raises for names that no file can have
        return folder
    if os.path.isfile(folder):
        raise BundleError(
            f"{folder} is a file. Expected a bundle's folder; give the folder, or load a bare "
            "model with Bundle.from_model."
        )
    name = str(path_or_name)
    remedy = "check the spelling, or make one with: vinoreward finetune"
    previous = previous_of(folder)
    if os.path.isdir(previous):
        remedy = f"a save was interrupted at its last step, rename {previous.name} to {folder.name}"
    elif not isinstance(path_or_name, str) and name in entries:
        # A Path always means a folder, so that a name never hides one.
        remedy = (
            f"give the name {name!r} as text instead of a Path to read the installed one, or a "
            f"copy of {_folder_of(entries[name])} to change it"
        )
    elif name.startswith("hf:"):
        remedy = (
            "the Hugging Face Hub is not asked here, as nothing that a file names is downloaded: "
            "use Bundle.from_hub, or give the name with --bundle or --encoder on the command line"
        )
    name = name if len(name) <= 70 else f"...{name[-67:]}"  # the end of a path says most
    raise ModelNotFoundError(
        f"there is no bundle {shown(name)!r}. Expected a folder or one of the installed bundles "
        f"({', '.join(sorted(entries)) or 'none'}); {remedy}."
    )


def previous_of(folder: Path) -> Path:
    """Return where the old bundle is kept for the moment in which a new one replaces it."""
    return folder.parent / f".{folder.name}.previous"


def read_spec(folder: Path, *, check_hash: bool = False, pinned: str | None = None) -> BundleSpec:
    """Read and check ``bundle.json``; errors as :meth:`~vinoreward.Bundle.load`.

    ``check_hash`` compares its SHA-256 with that in ``bundle.sha256``, ``pinned`` with a given one.
    """
    path, recorded = inside(folder, SPEC_FILE), inside(folder, SPEC_HASH_FILE)
    if not path.is_file():
        run = (folder / "bundle" / SPEC_FILE).is_file()  # of a training
        give = f"{folder / 'bundle'}" if run else "another folder"
        raise BundleError(
            f"{folder} has no {SPEC_FILE}. Expected a bundle's folder; give {give}, or load a bare "
            "model with Bundle.from_model."
        )
    expected = "no recorded hash"
    with readable(path, "a file of a few kilobytes; check its permissions"):
        data = read_plain(path, MAX_SPEC_BYTES)
        if recorded.is_file():
            expected = read_plain(recorded, MAX_HASH_BYTES).decode("ascii", "replace").strip()[:80]
    digest = hashlib.sha256(data).hexdigest()
    if pinned is not None and digest != pinned.lower():
        raise BundleEditedError(
            f"{folder} is not the bundle that was asked for: the SHA-256 of its {SPEC_FILE} is "
            f"{digest}. Expected {pinned.lower()!r:.70}; get the bundle from the source of that "
            "hash, or copy all 64 digits of it."
        )
    try:
        value = parse_json(data)
    except ValueError as error:
        raise BundleError(
            f"{path} is not valid JSON: {error}. Expected an unbroken file; restore it or save "
            "the bundle again."
        ) from error
    spec = BundleSpec.from_dict(value, str(path))
    if check_hash and digest != expected:
        raise BundleEditedError(
            f"{path} was changed after the bundle was saved: its SHA-256 is {digest}. Expected "
            f"{expected}, as recorded in {SPEC_HASH_FILE}; restore the file. To use another "
            "threshold pass success_threshold=… instead of editing the bundle."
        )
    if not {MODEL_FILE, GOLDEN_FILE} <= set(spec.files):
        raise BundleError(
            f"{path} lists the files {', '.join(spec.files) or 'none'}. Expected {MODEL_FILE} and "
            f"{GOLDEN_FILE} among them; save the bundle again, its network as ONNX."
        )
    return spec


@contextlib.contextmanager
def readable(path: Path, expected: str) -> Iterator[None]:
    """Turn an OSError in the block into a BundleError about the file."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or error
        raise BundleError(f"{path} cannot be read: {reason}. Expected {expected}.") from error


def inside(folder: Path, name: str) -> Path:
    """Return ``folder/name``; BundleError if a link leads out of the folder."""
    check_file_name(name)
    path = folder / name
    if not is_inside(folder, path):
        raise BundleError(
            f"{path} is a link to {os.path.realpath(path)}. Expected a file within the "
            "bundle's folder; copy the file itself into the bundle."
        )
    return path


def check_files(folder: Path, spec: BundleSpec, *, hashes: bool) -> None:
    """Check that the listed files exist, are not too large and, if ``hashes``, are unchanged.

    Errors are those of :meth:`~vinoreward.Bundle.load`.
    """
    sizes = {}
    for name in spec.files:
        path = inside(folder, name)
        if not path.is_file():
            raise ModelNotFoundError(
                f"the bundle {folder} has no {name}. Expected every file that {SPEC_FILE} lists; "
                "copy the complete folder."
            )
        sizes[name] = path.stat().st_size
    check_sizes(str(folder), sizes)
    for name, expected in spec.files.items() if hashes else ():
        with readable(path := folder / name, "a readable file; check its permissions"):
            digest = sha256(path)
        if digest != expected:
            raise BundleEditedError(
                f"{path} was changed after the bundle was saved: its SHA-256 is {digest}. Expected "
                f"{expected}, as recorded in {SPEC_FILE}; restore the file, or make a new bundle "
                "(vinoreward finetune, vinoreward calibrate) instead of editing one."
            )


def check_sizes(bundle: str, sizes: Mapping[str, int]) -> None:
    """Raise BundleError if files of these names, or all together, are larger than a bundle's."""
    for name, size in {**sizes, "all its files": sum(sizes.values())}.items():
        if size > (most := _LIMITS.get(name, MAX_FILE_BYTES)):
            raise BundleError(
                f"{name} of {bundle} would be {size} bytes. Expected at most {most}, as of any "
                "bundle; nothing was read."
            )


def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def _folder_of(entry: EntryPoint) -> Path:
    """Return the folder that a package's function returns."""
    where = f"the bundle {entry.name!r} is registered as {entry.value}, which"
    try:
        folder = entry.load()()
    except (ImportError, AttributeError, TypeError) as error:
        raise BundleError(
            f"{where} does not import: {error}. Expected a function that returns a path; reinstall "
            "that package."
        ) from error
    if not isinstance(folder, Path) or not folder.is_dir():
        raise BundleError(
            f"{where} gives {folder!r:.200}. Expected a function that returns the pathlib.Path of "
            "an installed folder; reinstall that package, or correct it."
        )
    return folder
