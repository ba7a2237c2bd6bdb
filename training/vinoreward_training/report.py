"""Reports: one self-contained HTML file that opens anywhere, offline."""

from __future__ import annotations

import base64
import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vinoreward.errors import ConfigError, ModelNotFoundError
from vinoreward.files import write_text

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
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: left }
th { background: var(--soft) } td.number { text-align: right }
figure { margin: 1rem 0 } figcaption { font-size: .85rem; opacity: .75 }
img, video { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line) }
"""


@dataclass(frozen=True)
class Section:
    """One part of a report: a heading, then text, a table and pictures, each optional."""

    title: str
    text: str = ""
    """Plain text; it is escaped, line breaks are kept."""
    rows: Sequence[Mapping[str, object]] = ()
    """A table: the columns are all keys in order of first appearance."""
    pictures: Sequence[Path] = ()
    """PNG, JPEG, GIF or MP4 files, embedded whole with their names as captions."""


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


def _section(section: Section) -> str:
    parts = [f"<section>\n<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{html.escape(section.text)}</p>")
    if section.rows:
        parts.append(_table(section.rows))
    parts += [_picture(Path(picture)) for picture in section.pictures]
    parts.append("</section>")
    return "\n".join(parts)


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{html.escape(str(column))}</th>" for column in columns)
    lines = [
        "<tr>" + "".join(_cell(row.get(column, "")) for column in columns) + "</tr>" for row in rows
    ]
    return (
        f'<div class="table"><table>\n<thead><tr>{head}</tr></thead>\n'
        f"<tbody>\n{chr(10).join(lines)}\n</tbody></table></div>"
    )


def _cell(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=number' if number else ''}>{html.escape(shown(value))}</td>"


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


def _picture(path: Path) -> str:
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
    name = html.escape(path.name)
    media = (
        f'<video src="{source}" controls loop muted></video>'
        if kind.startswith("video")
        else f'<img src="{source}" alt="{name}">'
    )
    return f"<figure>{media}<figcaption>{name}</figcaption></figure>"
