"""The report is one file, it shows what it was given, and it runs nothing it was given."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from vinoreward.errors import ConfigError, ModelNotFoundError
from vinoreward_training.runs.report import (
    Section,
    markdown,
    shown,
    write_report,
)


class Reader(HTMLParser):
    """Collects cells and checks that elements are closed in order."""

    VOID = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data)


def test_report_is_one_file_without_outside_references(tmp_path: Path) -> None:
    image = tmp_path / "curve.png"
    Image.new("RGB", (4, 3)).save(image)
    film = tmp_path / "film.gif"
    Image.new("RGB", (4, 3)).save(film)
    section = Section("S", images=[image, film], captions={"film.gif": "What it <shows>"})
    path = write_report(tmp_path / "report.html", "A run", [section])
    text = path.read_text(encoding="utf-8")
    sources = re.findall(r'(?:src|href)="([^"]{0,30})', text)
    assert [s.split(";")[0] for s in sources] == ["data:image/png", "data:image/gif"]
    assert "<figcaption>curve.png" in text and "<figcaption>What it &lt;shows&gt;" in text


def test_table_has_all_columns_and_the_document_is_well_formed(tmp_path: Path) -> None:
    rows = [{"a": 1, "b": 0.123456}, {"a": True, "c": None}]
    path = write_report(tmp_path / "r.html", "T", [Section("S", "text", rows)])
    reader = Reader()
    reader.feed(path.read_text(encoding="utf-8"))
    assert reader.open == []
    assert reader.cells == ["a", "b", "c", "1", "0.1235", "yes", "-"]


def test_text_is_escaped_everywhere(tmp_path: Path) -> None:
    evil = "<script>alert('&')</script>"
    path = write_report(tmp_path / "r.html", evil, [Section(evil, evil, [{evil: evil}])])
    text = path.read_text(encoding="utf-8")
    assert "<script" not in text
    assert text.count("&lt;script&gt;") == 6


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "-"),
        (float("nan"), "-"),
        (12345.6, "12346"),
        ({"noise": 0.25, "blue": False}, "noise 0.25, blue no"),
    ],
)
def test_shown(value: object, text: str) -> None:
    assert shown(value) == text


def test_names_from_data_stay_text_in_a_model_card() -> None:
    """A category of a stranger's table may look like a border, or like HTML."""
    name = "<img src='http://there/x.png'> | 0 |"
    card = markdown("mine", "Words.", [Section("Counts", facts={name: 1}, rows=[{"kind": name}])])
    assert "<img" not in card
    assert card.count("&lt;img src='http://there/x.png'> \\| 0 \\|") == 2
    assert "<0.5 %" in markdown("mine", "", [Section("Bound", facts={"rate": "<0.5 %"})])


def test_a_missing_image_and_one_no_browser_shows_are_refused(tmp_path: Path) -> None:
    for name, error in (("gone.png", ModelNotFoundError), ("a.tiff", ConfigError)):
        with pytest.raises(error, match=name):
            write_report(tmp_path / "r.html", "T", [Section("S", images=[tmp_path / name])])
    assert not (tmp_path / "r.html").exists()
