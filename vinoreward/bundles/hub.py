"""Bundles from the Hugging Face Hub: downloaded once, by commit, and only when they are named.

Nothing that is read from a file gets here: neither :meth:`~vinoreward.Bundle.load` nor a recorded
run downloads. Of a repository only the files that ``bundle.json`` lists are fetched, after their
sizes were asked for; they are then checked like those of any stranger's bundle.
"""

from __future__ import annotations

import io
import re
import tempfile
from pathlib import Path
from typing import Any

from vinoreward.bundles.locate import (
    GOLDEN_FILE,
    MODEL_FILES,
    SPEC_FILE,
    SPEC_HASH_FILE,
    check_files,
    check_sizes,
    read_spec,
)
from vinoreward.errors import (
    BundleError,
    ConfigError,
    ModelNotFoundError,
    VinorewardError,
    needed_for,
)
from vinoreward.files import reason_of, shown

_PART = r"[A-Za-z0-9](?:[\w-]|\.(?!\.)){0,95}"
_NAME = re.compile(rf"(?:hf:(?://)?)?({_PART}/{_PART})(?:@([\w][\w./-]{{0,99}}))?", re.ASCII)
_COMMIT = re.compile(r"[0-9a-f]{40}")


def download(name: str) -> Path:
    """Return the folder of a bundle on the Hub, in the cache of ``huggingface_hub``.

    A bundle that was downloaded before is not downloaded again; where the commit itself is named,
    nothing is asked either. ``name`` may begin with ``hf:`` or ``hf://``. Errors are those of
    :meth:`~vinoreward.Bundle.from_hub`.
    """
    found = _NAME.fullmatch(name)
    if found is None or ".." in (found[2] or ""):
        raise ConfigError(
            f"the bundle is called {shown(name)!r}. Expected hf:owner/name or "
            "hf:owner/name@revision, as on its page of the Hugging Face Hub; copy it from there."
        )
    with needed_for("a bundle on the Hugging Face Hub", "hub"):
        from huggingface_hub import constants
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError
    # Its HTTP library's own base class, which is another one in each of its versions.
    http_error: type[Exception] = HfHubHTTPError.__bases__[0]
    repository, revision = found[1], found[2] or "main"
    parent = Path(constants.HF_HOME) / "vinoreward" / repository.replace("/", "--")
    if _COMMIT.fullmatch(revision) and (parent / revision).is_dir():
        return parent / revision
    try:
        _, commit = _facts(repository, revision, SPEC_FILE)
        if not (parent / commit).is_dir():
            _download(name, repository, commit, parent)
    except VinorewardError:
        raise
    except (EntryNotFoundError, http_error, OSError, ValueError) as error:
        raise ModelNotFoundError(
            f"{name} cannot be had from the Hugging Face Hub: {reason_of(error)}. Expected a "
            "repository with a bundle's files that may be read; check the name, log in with hf "
            "auth login if it is private, or name a commit that was downloaded before."
        ) from error
    return parent / commit


class _Bounded(io.FileIO):
    """A new file for what a server sends: it may say less than it then sends."""

    def __init__(self, path: Path, size: int) -> None:
        super().__init__(path, "wb")
        self._file, self._size = path.name, size

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > self._size:
            raise OSError(f"{self._file} has more than the {self._size} bytes that were stated")
        return super().write(data)


def _download(name: str, repository: str, commit: str, parent: Path) -> None:
    """Download a commit's bundle; move it to its place when it is whole."""
    from huggingface_hub import hf_hub_url
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

    def fetch(*files: str) -> None:
        sizes = {file: _facts(repository, commit, file)[0] for file in files}
        check_sizes(name, sizes)
        for file, size in sizes.items():
            url, headers = hf_hub_url(repository, file, revision=commit), build_hf_headers()
            with _Bounded(part / file, size) as stream:
                http_get(url, stream, headers=headers, expected_size=size)

    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=parent) as folder:
        part = Path(folder) / commit
        part.mkdir()
        fetch(SPEC_FILE, SPEC_HASH_FILE)
        spec = read_spec(part, check_hash=True)
        if others := set(spec.files) - {*MODEL_FILES, GOLDEN_FILE}:
            raise BundleError(
                f"{SPEC_FILE} of {name} lists {shown(min(others))!r}. Expected a bundle's own "
                f"files, {', '.join(MODEL_FILES)} and {GOLDEN_FILE}; nothing was kept."
            )
        fetch(*spec.files)
        check_files(part, spec, hashes=True)
        try:
            part.rename(parent / commit)
        except OSError:
            if not (parent / commit / SPEC_FILE).is_file():
                raise  # else another process was faster


def _facts(repository: str, revision: str, file: str) -> tuple[int, str]:
    """Return a file's size and the commit that it is of, as the Hub says."""
    from huggingface_hub import get_hf_file_metadata, get_token, hf_hub_url

    url = hf_hub_url(repository, file, revision=revision)
    facts = get_hf_file_metadata(url, token=get_token())
    commit = facts.commit_hash or ""
    if facts.size is None or not _COMMIT.fullmatch(commit):
        raise ValueError(f"{url} has no size or no commit")
    return facts.size, commit
