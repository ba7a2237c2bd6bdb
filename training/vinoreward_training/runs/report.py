"""Tables and figures of a run, and reports: each is one HTML file without external resources."""

from __future__ import annotations

import base64
import csv
import dataclasses
import html
import io
import math
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vinoreward.bundles.bundle import Bundle
from vinoreward.bundles.locate import find, known_names
from vinoreward.bundles.save import save_bundle
from vinoreward.bundles.schema import BundleSpec
from vinoreward.errors import ConfigError, ModelNotFoundError
from vinoreward.files import atomic_path, read_plain, write_text
from vinoreward_training.runs.bundles import front_matter
from vinoreward_training.runs.machine import package_versions
from vinoreward_training.runs.run_folder import NEVER_FROM_A_FILE, plain

MEDIA_TYPES = {".png": "image/png", ".gif": "image/gif", ".mp4": "video/mp4"}
"""File suffix to the media type, for what a report can show."""

STYLE = """
:root { color-scheme: light dark; --line: #d0d4da; --text: #1b1f24; --back: #fff }
@media (prefers-color-scheme: dark) { :root { --line: #3a3f47; --text: #e6e8eb; --back: #16181c } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--text); background: var(--back);
  max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
p { white-space: pre-wrap }
.table { overflow-x: auto }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .8rem; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top }
.number { text-align: right }
.images { display: flex; flex-wrap: wrap; gap: 1rem; align-items: flex-start }
figure { margin: .5rem 0; max-width: 100% }
img, video { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--line) }
"""

MAX_TABLE = 1 << 28
"""Bytes of a table: ten million episodes."""
EPISODE_COLUMNS = ("step", "reward", "length", "claimed", "true", "ood")
EVALUATION_COLUMNS = ("step", "episodes", "claimed", "true", "mean_return", "mean_length")
Row = Mapping[str, float | int | str | None]


@dataclass(frozen=True)
class Section:
    """One part of a report: a heading, then text, a table and images, each optional."""

    title: str
    text: str = ""
    """Plain text; it is escaped, and line breaks are preserved."""
    rows: Sequence[Mapping[str, object]] = ()
    """A table, whose columns are all keys in the order of their first appearance."""
    images: Sequence[Path] = ()
    """PNG, JPEG, GIF or MP4 files, which are embedded."""
    captions: Mapping[str, str] = field(default_factory=dict)
    """File name to caption; the default is the name."""
    facts: Mapping[str, object] = field(default_factory=dict)
    """Names and values, above the table."""


def configuration(config: Any) -> Section:
    """Return the section with a command's settings."""
    rows = [
        {"name": name, "value": value if isinstance(value, dict) else str(value)}
        for name, value in plain(config).items()
        if name not in NEVER_FROM_A_FILE
    ]
    return Section("Configuration", rows=rows)


def write_report(path: Path, title: str, sections: Sequence[Section]) -> Path:
    """Write a self-contained HTML report to ``path`` (atomically) and return the path."""
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
    """Return sections as Markdown, with links to their images in ``images/``."""
    parts = [f"# {title}", intro]
    for section in sections:
        names = [Path(path).name for path in section.images]
        parts += [
            f"## {section.title}",
            section.text,
            bullets(section.facts),
            markdown_table(section.rows),
            "\n\n".join(f"![{name}](images/{name})" for name in names),
        ]
    return "\n\n".join(part for part in parts if part) + "\n"


def bullets(facts: Mapping[str, object]) -> str:
    """Return names and values as a Markdown list."""
    return "\n".join(f"- {_plain(name)}: {_plain(value)}" for name, value in facts.items())


def markdown_table(rows: Sequence[Mapping[str, object]]) -> str:
    """Return rows as a Markdown table; the columns are the keys of the first row."""
    if not rows:
        return ""
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "|" + "---|" * len(names)]
    cells = ([_plain(row.get(name, "")) for name in names] for row in rows)
    lines += ["| " + " | ".join(row) + " |" for row in cells]
    return "\n".join(lines)


def _plain(value: object) -> str:
    """Escape table borders and HTML for Markdown, because names come from untrusted data."""
    return re.sub(r"<(?=[A-Za-z/!?])", "&lt;", str(value).replace("|", r"\|"))


def _section(section: Section) -> str:
    parts = [f"<section>\n<h2>{html.escape(section.title)}</h2>"]
    if section.text:
        parts.append(f"<p>{html.escape(section.text)}</p>")
    if section.facts:
        parts.append(_table([{"": name, " ": value} for name, value in section.facts.items()]))
    if section.rows:
        parts.append(_table(section.rows))
    if section.images:
        shown_images = "\n".join(
            _image(path, section.captions.get(path.name, path.name))
            for path in map(Path, section.images)
        )
        parts.append(f'<div class="images">\n{shown_images}\n</div>')
    parts.append("</section>")
    return "\n".join(parts)


def _table(rows: Sequence[Mapping[str, object]]) -> str:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    head = "".join(f"<th>{html.escape(str(column))}</th>" for column in columns)
    # A table of names and values has no column headings.
    headed = any(str(column).strip() for column in columns)
    head = f"<thead><tr>{head}</tr></thead>\n" if headed else ""
    body = "\n".join(
        "<tr>" + "".join(_cell(row.get(column, "")) for column in columns) + "</tr>" for row in rows
    )
    return f'<div class="table"><table>\n{head}<tbody>\n{body}\n</tbody></table></div>'


def _cell(value: object) -> str:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"<td{' class=number' * number}>{html.escape(shown(value))}</td>"


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
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value))
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {shown(one)}" for name, one in value.items()) or "-"
    return str(value)


def _image(path: Path, caption: str) -> str:
    kind = MEDIA_TYPES.get(path.suffix.lower())
    if kind is None:
        raise ConfigError(
            f"a report cannot show {path.name}. Expected one of {', '.join(MEDIA_TYPES)}; convert "
            "the image first."
        )
    if not path.is_file():
        raise ModelNotFoundError(
            f"the report's image {path} is missing. Expected a file; write the image before "
            "the report."
        )
    source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"
    name = html.escape(caption)
    media = f'<img src="{source}" alt="{name}">'
    if kind.startswith("video"):
        media = f'<video src="{source}" controls loop muted></video>'
    return f"<figure>{media}<figcaption>{name}</figcaption></figure>"


def publish(
    folder: Path,
    title: str,
    intro: str,
    sections: Sequence[Section],
    spec: BundleSpec,
    files: Mapping[str, Path | bytes],
    golden: tuple[npt.NDArray[np.uint8], npt.NDArray[np.float32]],
) -> Path:
    """Write FOLDER/bundle and FOLDER/report.html; return the bundle's path.

    The ``intro`` and the sections are also the bundle's card, and their images are copied into the
    bundle. ``files`` are moved there. ``golden`` are images and the network's outputs for them.
    """
    versions = package_versions(("vinoreward", "torch", "torchvision", "onnx", "openvino", "numpy"))
    present = {name: version for name, version in versions.items() if version is not None}
    spec = dataclasses.replace(spec, versions={"python": platform.python_version(), **present})
    drawn = {Path(path).name: Path(path) for section in sections for path in section.images}
    card = front_matter(spec) + markdown(spec.name, intro, sections)
    saved = save_bundle(folder / "bundle", spec, files, *golden, card, drawn, overwrite=True)
    write_report(folder / "report.html", f"{title} {spec.name}", sections)
    for file in files.values():
        if isinstance(file, Path):
            file.unlink()
    print(f"bundle {saved}, report {folder / 'report.html'}")
    return saved


def own_bundle(path: Path) -> Bundle:
    """Load the bundle that a command will write to; an installed one is refused."""
    if not path.exists() and str(path) in known_names():
        raise ConfigError(
            f"{path} is an installed bundle, which is only read. Expected a folder of your own to "
            f"write to; copy it, cp -r {find(str(path))} my-bundle, and give the copy with "
            "--bundle."
        )
    return Bundle.load(path)


def read_table(
    path: Path, columns: Sequence[str], *, until: int | None = None
) -> list[dict[str, float | int | None]]:
    """Read columns of a CSV table ``until`` a step; [] without a file, None for missing columns."""
    try:
        text = read_plain(path, MAX_TABLE).decode("utf-8")
        reader = csv.DictReader(io.StringIO(text, newline=""), restkey="", restval="none")
        if "step" not in (reader.fieldnames or ()):
            raise ValueError(f"it has the columns {reader.fieldnames!r:.80}")
        table = [{name: _number(row.get(name, "")) for name in columns} for row in reader]
        return [row for row in table if until is None or int(row["step"] or 0) <= until]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, OverflowError, csv.Error) as error:
        raise ConfigError(
            f"{path} cannot be read as a table: {error}. Expected numbers as training wrote them; "
            "restore the file or start a new run."
        ) from error


def _number(cell: str) -> float | int | None:
    if cell == "":
        return None
    try:
        return int(cell)
    except ValueError:
        return float(cell)


def rolling_mean(values: npt.NDArray[np.float64], window: int) -> npt.NDArray[np.float64]:
    """Return, for each of ``values (N,)``, the mean of the last ``window`` values up to it."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(0, ends - window)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts), dtype=np.float64)


def new_figure(width: float = 5.0, height: float = 4.0, dpi: int = 110) -> Any:
    """Return a matplotlib figure; ``width`` and ``height`` are in inches."""
    # Not pyplot: it has global state, which a user's own code may use, and may need a display.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure as PNG (atomically); return its path."""
    with atomic_path(path) as part:
        figure.savefig(part, format="png")
    return path


def draw_curve(
    path: Path, title: str, episodes: Sequence[Row], evaluations: Sequence[Row], *, window: int = 50
) -> Path:
    """Draw claimed and true success over training steps, to a PNG.

    Thin lines are means of the last ``window`` training episodes, thick ones with dots evaluations.
    """
    figure = new_figure(8, 4.5, dpi=120)
    axes = figure.add_subplot()
    # The dashed line is drawn last, so that both are visible where they coincide.
    for name, label, colour, mark, dashes in (
        ("true", "true, by the simulator", "#1b6ca8", "o", "-"),
        ("claimed", "claimed by the classifier", "#d95f02", "s", "--"),
    ):
        trained = [row for row in episodes if row[name] is not None]
        if trained:
            steps = [float(row["step"] or 0) for row in trained]
            values = np.array([float(row[name] or 0) for row in trained])
            means = rolling_mean(values, window)
            axes.plot(steps, means, color=colour, linewidth=1, alpha=0.5, linestyle=dashes)
        evaluated = [row for row in evaluations if row[name] is not None]
        if evaluated:
            axes.plot(
                [float(row["step"] or 0) for row in evaluated],
                [float(row[name] or 0) for row in evaluated],
                color=colour, marker=mark, markersize=9 if mark == "s" else 5,
                markerfacecolor="none" if mark == "s" else colour, linewidth=2, linestyle=dashes,
                label=label,
            )  # fmt: skip
    axes.set(title=title, xlabel="training steps", ylabel="success", ylim=(-0.04, 1.04))
    axes.grid(alpha=0.3)
    if axes.get_legend_handles_labels()[0]:
        # Outside the plot, because inside it may hide an evaluation.
        figure.legend(loc="outside lower center", ncols=2, frameon=False)
    return save_figure(figure, path)
