"""CSV tables: anybody's are read in bounds, ours are written atomically."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from vinoreward.errors import DatasetError
from vinoreward.files import open_to_read, shown, write_text

MAX_TABLE_BYTES = 128 * 2**20
"""A million images need less."""
MAX_CELL = 1000
"""Characters of a cell, which may be a path."""

Row = dict[str, str]
_Parsed = TypeVar("_Parsed")


def read_table(
    path: Path, columns: Sequence[str], parse: Callable[[Row], _Parsed], expected: str
) -> Iterator[_Parsed]:
    """Yield what ``parse`` returns for each row of a CSV file in UTF-8.

    Args:
        path: of the file, with a header.
        columns: that it must have; it may have others.
        parse: gets a row's cells by column; raises ValueError for a row that is wrong.
        expected: of the file, for errors.

    Raises:
        DatasetError: with the line, for anything that is wrong.
    """
    line = 1
    try:
        with (
            open_to_read(path, MAX_TABLE_BYTES) as content,
            io.TextIOWrapper(content, encoding="utf-8-sig", newline="") as stream,
        ):
            for row in (reader := csv.DictReader(stream, restkey="", restval="")):
                line = reader.line_num
                if "" in row or not set(columns) <= set(row):
                    raise ValueError(f"its columns are {', '.join(filter(None, row))}")
                if any(len(cell) > MAX_CELL or not cell.isprintable() for cell in row.values()):
                    raise ValueError("a cell has too many or unprintable characters")
                parsed = parse(row)
                yield parsed
    except (csv.Error, ValueError, OSError) as error:
        if isinstance(error, DatasetError):
            raise
        raise DatasetError(
            f"{path}, line {line}: {shown(error)}. Expected {expected}; correct the line."
        ) from error


def write_table(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows as CSV (atomically); what is not known (None) is an empty cell."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
