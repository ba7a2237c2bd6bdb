"""Reports: one self-contained HTML file that opens anywhere, offline; and bundles with a report."""

from __future__ import annotations

import base64
import dataclasses
import html
import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import ConfigError, ModelNotFoundError
from vinoreward.files import write_text
from vinoreward_training.runs.machine import package_versions
from vinoreward_training.runs.run_folder import NEVER_FROM_A_FILE, plain

MEDIA_TYPES = {
    ".png": "image/png",
    ".gif": "image/gif",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".mp4": "video/mp4",
}
"""What can be shown, by the file's suffix in lower case."""

STYLE = """
:root { color-scheme: light dark; --line: #d0d4da; --soft: #f4f5f7; --text: #1b1f24; --back: #fff }
@media (prefers-color-scheme: dark) {
  :root { --line: #3a3f47; --soft: #22262c; --text: #e6e8eb; --back: #16181c }
}
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem } h2 { font-size: 1.2rem; margin-top: 2.2rem }
p { white-space: pre-wrap }
.table { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top }
th { background: var(--soft); vertical-align: bottom } .number { text-align: right }
td.short { white-space: nowrap }
.pictures { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start }
figure { margin: .5rem 0; max-width: 100% }
.pictures .half { flex: 1 1 18rem; max-width: calc(50% - .5rem) }
figcaption { font-size: .85rem; opacity: .75 }
@media (max-width: 40rem) { .pictures .half { flex: none; max-width: 100% }
  body { margin: 1rem auto } th, td { padding: .3rem .45rem }
  table { font-size: .9rem } }
img, video { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line) }
"""


HALF_WIDTH = 600
"""Of several pictures in a section, those of so many pixels or fewer stand two in a row."""
SHORT = 24
"""Cells of so many characters or fewer are kept on one line."""


@dataclass(frozen=True)
class Section:
    """One part of a report: a heading, then text, a table and pictures, each optional."""

    title: str
    text: str = ""
    """Plain text; it is escaped, line breaks are kept."""
    rows: Sequence[Mapping[str, object]] = ()
    """A table: the columns are all keys in order of first appearance."""
    pictures: Sequence[Path] = ()
    """PNG, JPEG, GIF or MP4 files, embedded whole."""
    captions: Mapping[str, str] = field(default_factory=dict)
    """File name to caption; without one the name is the caption."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Names and values, above the table."""


def configuration(config: Any) -> Section:
    """Return the section with a command's settings."""
    rows = [
        {"name": name, "value": str(value)}
        for name, value in plain(config).items()
        if name not in NEVER_FROM_A_FILE
    ]
    return Section("Configuration", rows=rows)


def write_report(path: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write a self-contained HTML report to ``path`` (atomically) and return the path.

    Raises:
        ConfigError: a picture is of a kind that a browser does not show.
        ModelNotFoundError: a picture is not there.
        RunFolderError: the file cannot be written.
    """
    escaped = html.escape(title)
    body = "\n".join(_section(section) for section in sections)
    write_text(
        Path(path),
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        f"<h1>{escaped}</h1>\n{body}\n</body>\n</html>\n",
    )
    return Path(path)


def markdown(title: str, intro: str, sections: Sequence[Section]) -> str:
    """Return sections as Markdown; their pictures lie in ``pictures/``."""
    parts = [f"# {title}", intro]
    for section in sections:
        names = [Path(path).name for path in section.pictures]
        parts += [
            f"## {section.title}",
            section.text,
            bullets(section.facts),
            _markdown_table(section.rows),
            "\n\n".join(f"![{name}](pictures/{name})" for name in names),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def bullets(facts: Mapping[str, object]) -> str:
    """Return names and values as a Markdown list."""
    return "\n".join(f"- {name}: {value}" for name, value in facts.items())


def _markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    if not rows:
        return ""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines)


def _section(section: Section) -> str:
    parts = [f"<section>\n<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{html.escape(section.text)}</p>")
    if section.facts:
        parts.append(_table([{"": name, " ": value} for name, value in section.facts.items()]))
    if section.rows:
        parts.append(_table(section.rows))
    if section.pictures:
        beside = len(section.pictures) > 1
        shown_pictures = "\n".join(
            _picture(path, section.captions.get(path.name, path.name), beside=beside)
            for path in map(Path, section.pictures)
        )
        parts.append(f'<div class="pictures">\n{shown_pictures}\n</div>')
    parts.append("</section>")
    return "\n".join(parts)


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(
        f"<th{_class(_is_number(rows[0].get(column)) and 'number')}>{html.escape(str(column))}</th>"
        for column in columns
    )
    # A table of names and values has nothing to head its columns with.
    headed = any(str(column).strip() for column in columns)
    head = f"<thead><tr>{head}</tr></thead>\n" if headed else ""
    body = "\n".join(
        "<tr>" + "".join(_cell(row.get(column, "")) for column in columns) + "</tr>" for row in rows
    )
    return f'<div class="table"><table>\n{head}<tbody>\n{body}\n</tbody></table></div>'


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _class(name: str | bool) -> str:
    return f' class="{name}"' if name else ""


def _cell(value: object) -> str:
    text = shown(value)
    # A figure with its unit is not broken; sentences are.
    kind = "number" if _is_number(value) else "short" if len(text) <= SHORT else ""
    return f"<td{_class(kind)}>{html.escape(text)}</td>"


def shown(value: object) -> str:
    """Return a table cell's text: floats to four significant digits, booleans as yes or no."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        if not math.isfinite(value):
            return "-"
        return f"{value:.0f}" if abs(value) >= 10_000 else f"{value:.4g}"
    return str(value)


def _picture(path: Path, caption: str, *, beside: bool) -> str:
    kind = MEDIA_TYPES.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(
            f"a report cannot show {path.name}. Expected one of {', '.join(MEDIA_TYPES)}; convert "
            "the picture first."
        )
    if not path.is_file():
        raise ModelNotFoundError(
            f"the report's picture {path} is not there. Expected a file; make the picture before "
            "the report."
        )
    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
    name = html.escape(caption)
    half = beside and kind.startswith("image") and _width(path) <= HALF_WIDTH
    media = (
        f'<video src="{source}" controls loop muted></video>'
        if kind.startswith("video")
        else f'<img src="{source}" alt="{name}">'
    )
    figure = f"<figure{_class('half' if half else '')}>"
    return f"{figure}{media}<figcaption>{name}</figcaption></figure>"


def _width(path: Path) -> int:
    """Return a picture's width in pixels, 0 where it cannot be read: the browser then says so."""
    from PIL import Image

    try:
        with Image.open(path, formats=("PNG", "GIF", "JPEG", "WEBP")) as picture:
            return picture.width
    except OSError:
        return 0


def publish(
    folder: Path,
    title: str,
    intro: str,
    sections: Sequence[Section],
    spec: BundleSpec,
    files: Mapping[str, Path | bytes],
    golden: tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]],
) -> Path:
    """Write FOLDER/bundle, with the sections as its card, and FOLDER/report.html.

    Args:
        folder: the run folder.
        title: of the report; the bundle's name follows it.
        intro: what the bundle is, for the card.
        sections: of both; their pictures go into the bundle.
        spec: of the bundle; versions are added.
        files: of the bundle; those in ``folder`` are removed there.
        golden: pictures and what the network gives for them.

    Returns:
        The bundle's path.

    Raises:
        RunFolderError: a file cannot be written.
    """
    made_by = package_versions(("vinoreward", "torch", "torchvision", "onnx", "openvino", "numpy"))
    present = {name: version for name, version in made_by.items() if version is not None}
    spec = dataclasses.replace(spec, versions={"python": platform.python_version(), **present})
    drawn = {Path(path).name: Path(path) for section in sections for path in section.pictures}
    card = markdown(spec.name, intro, sections)
    saved = save_bundle(folder / "bundle", spec, files, *golden, card, drawn, overwrite=True)
    write_report(folder / "report.html", f"{title} {spec.name}", sections)
    for file in files.values():
        if isinstance(file, Path):
            file.unlink()
    print(f"bundle {saved}, report {folder / 'report.html'}")
    return saved
