"""Loaders: text, Markdown and CSV to documents. Each is a pure function of the text; `load_file` reads a file for it."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from phronomy_ray.errors import InvalidInputError
from phronomy_ray.retrieval.port import Document

_HEADING = re.compile(r"(#{1,6})[ \t]+(.*?)(?:[ \t]+#+)?[ \t]*")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


def load_text(text: str, *, source: str) -> list[Document]:
    """The whole text as one document with id `source`; none when it is blank."""
    return [Document(source, text, {"source": source})] if text.strip() else []


def load_markdown(text: str, *, source: str) -> list[Document]:
    """A document per section: its heading and the text below it, up to the next heading of any level.

    Ids are ``<source>#<number from 1>``; the metadata has ``source`` and ``headings``, the titles from the top down to the
    section's own. A ``#`` within a fenced block is no heading. Sections without text are left out.
    """
    documents: list[Document] = []
    path: list[tuple[int, str]] = []
    lines: list[str] = []
    fence = ""

    def close_section() -> None:
        body = "".join(lines).strip()
        headings = [title for _, title in path]
        if body and not _HEADING.fullmatch(body):
            number = len(documents) + 1
            documents.append(Document(f"{source}#{number}", body, {"source": source, "headings": headings}))

    for line in text.splitlines(keepends=True):
        mark = _FENCE.match(line)
        if mark is not None:
            if not fence:
                fence = mark[1]
            elif mark[1].startswith(fence) and not line[mark.end() :].strip():
                fence = ""
        heading = None if fence else _HEADING.fullmatch(line.rstrip("\r\n"))
        if heading is not None:
            close_section()
            lines = []
            level = len(heading[1])
            path = [entry for entry in path if entry[0] < level] + [(level, heading[2].strip())]
        lines.append(line)
    close_section()
    return documents


def load_csv(
    text: str, *, source: str, text_columns: Sequence[str] | None = None, id_column: str | None = None
) -> list[Document]:
    """A document per row of a CSV text with a header.

    Args:
        text: the file's text.
        source: where it is from; stands in the metadata and, without `id_column`, in the ids ``<source>#<row from 1>``.
        text_columns: what becomes the document's text, one ``column: value`` line each; all columns unless given. The
            others become metadata.
        id_column: the column that holds each row's id.

    Raises:
        InvalidInputError: no header, an unknown or repeated column, or a row that does not fit the header.
    """
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(rows, [])
        if not header or len(set(header)) != len(header):
            raise InvalidInputError(f"{source}: the first row must name the columns, each once")
        wanted = list(header if text_columns is None else text_columns)
        for column in [*wanted, *([id_column] if id_column is not None else [])]:
            if column not in header:
                raise InvalidInputError(f"{source}: there is no column {column!r}")
        return [
            _row_document(dict(zip(header, row, strict=True)), number, source, wanted, id_column)
            for number, row in enumerate(_fitting(rows, len(header), source), start=1)
        ]
    except csv.Error as error:
        raise InvalidInputError(f"{source}: line {rows.line_num}: {error}") from error


def load_file(
    path: str | Path, *, text_columns: Sequence[str] | None = None, id_column: str | None = None
) -> list[Document]:
    """Load a UTF-8 file by its ending: ``.md`` and ``.markdown``, ``.csv`` (with the options of `load_csv`), else text.

    The source is the path as given.

    Raises:
        OSError: it cannot be read.
        InvalidInputError: it is not UTF-8, or not what its ending says.
    """
    file = Path(path)
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInputError(f"{path} is not UTF-8 text: {error}") from error
    source = str(path)
    ending = file.suffix.lower()
    if ending == ".csv":
        return load_csv(text, source=source, text_columns=text_columns, id_column=id_column)
    if text_columns is not None or id_column is not None:
        raise InvalidInputError(f"{source}: text_columns and id_column are for CSV files")
    return (load_markdown if ending in (".md", ".markdown") else load_text)(text, source=source)


def _fitting(rows: Any, width: int, source: str) -> list[list[str]]:
    found = []
    for row in rows:
        if not row:
            continue  # an empty line
        if len(row) != width:
            raise InvalidInputError(
                f"{source}: line {rows.line_num} has {len(row)} fields, the header {width}"
            )
        found.append(row)
    return found


def _row_document(
    row: dict[str, str], number: int, source: str, text_columns: Sequence[str], id_column: str | None
) -> Document:
    text = "\n".join(f"{column}: {row[column]}" for column in text_columns)
    others = {column: value for column, value in row.items() if column not in text_columns}
    key = row[id_column] if id_column is not None else f"{source}#{number}"
    return Document(key, text, {**others, "source": source, "row": number})
