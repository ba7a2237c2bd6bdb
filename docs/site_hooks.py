"""What the site needs beyond mkdocs.yml: pages outside of docs/, and Sphinx roles in docstrings."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")
"""Pages outside of docs/, by their paths in the repository."""
LINK = re.compile(r"(\]\()(?![a-z]+:|#)([^)#\s]+)")


def outside() -> list[str]:
    """Return the files outside of docs/ that the site shows or links to."""
    found = set(PAGES)
    for page in (*(ROOT / "docs").rglob("*.md"), *(ROOT / name for name in PAGES)):
        here = posixpath.dirname(page.relative_to(ROOT).as_posix())
        for _, link in LINK.findall(page.read_text(encoding="utf-8")):
            path = posixpath.normpath(posixpath.join(here, link))
            if not path.startswith("docs/") and (ROOT / path).is_file():
                found.add(path)
    return sorted(found)


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside of docs/ to the site."""
    for path in outside():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links between files of the repository into links between pages of the site."""
    place = page.file.src_uri
    here = posixpath.dirname(place if (ROOT / place).is_file() else f"docs/{place}")

    def moved(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(here, found[2])).removeprefix("docs/")
        return found[1] + posixpath.relpath(path, posixpath.dirname(place) or ".")

    # Not inside of code.
    parts = re.split(r"(```.*?```|`[^`\n]*`)", markdown, flags=re.DOTALL)
    return "".join(part if at % 2 else LINK.sub(moved, part) for at, part in enumerate(parts))


class SphinxRoles(griffe.Extension):
    """Show ``:class:`~package.Name``` as ``Name`` and ``text::`` before code as ``text:``."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring of one module, class, function or attribute."""
        if obj.docstring is None:
            return
        text = re.sub(r":[a-z]+:`~(?:\s*\w+\.\s*)*\s*(\w+)`", r"`\1`", obj.docstring.value)
        text = re.sub(r":[a-z]+:`([^`]+)`", r"`\1`", text)
        text = re.sub(r"^ *::\n", "", text, flags=re.MULTILINE)
        obj.docstring.value = re.sub(r"::$", ":", text, flags=re.MULTILINE)
