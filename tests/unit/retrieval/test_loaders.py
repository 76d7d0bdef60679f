"""Loaders: what becomes a document, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from phronomy_ray.errors import InvalidInputError
from phronomy_ray.retrieval import Document, load_csv, load_file, load_markdown, load_text


def test_a_text_is_one_document() -> None:
    assert load_text("hello\n", source="a.txt") == [Document("a.txt", "hello\n", {"source": "a.txt"})]
    assert load_text(" \n", source="a.txt") == []


MARKDOWN = """intro

# Top
about
## Inner ##
# not a heading in text? yes it is
```sh
# a comment
## another
```
~~~
```
# still fenced
~~~
### Deep
#nothing
    # indented code
## Last

"""


def test_markdown_has_a_document_per_section_with_its_headings() -> None:
    found = load_markdown(MARKDOWN, source="m.md")
    assert [(item.id, item.metadata["headings"]) for item in found] == [
        ("m.md#1", []),
        ("m.md#2", ["Top"]),
        ("m.md#3", ["not a heading in text? yes it is"]),
        ("m.md#4", ["not a heading in text? yes it is", "Deep"]),
    ]
    assert found[1].text == "# Top\nabout"
    assert found[2].text.endswith("# still fenced\n~~~")
    assert found[3].text == "### Deep\n#nothing\n    # indented code"
    assert all(item.metadata["source"] == "m.md" for item in found)


CSV = 'sku,name,note\n1,Lamp,"bright,\nwarm"\n\n2,Chair,\n'


def test_csv_has_a_document_per_row() -> None:
    found = load_csv(CSV, source="p.csv")
    assert found[0] == Document(
        "p.csv#1", "sku: 1\nname: Lamp\nnote: bright,\nwarm", {"source": "p.csv", "row": 1}
    )
    assert [item.id for item in found] == ["p.csv#1", "p.csv#2"]


def test_csv_columns_become_text_metadata_and_id() -> None:
    found = load_csv(CSV, source="p.csv", text_columns=["name"], id_column="sku")
    assert found[1] == Document("2", "name: Chair", {"sku": "2", "note": "", "source": "p.csv", "row": 2})


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "first row"),
        ("a,a\n1,2\n", {}, "each once"),
        ("a,b\n1\n", {}, "line 2 has 1 fields, the header 2"),
        ('a,b\n"1,2\n', {}, "line 2"),
        ("a,b\n1,2\n", {"text_columns": ["c"]}, "no column 'c'"),
        ("a,b\n1,2\n", {"id_column": "c"}, "no column 'c'"),
    ],
)
def test_a_csv_that_does_not_fit_is_refused(text: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        load_csv(text, source="x.csv", **options)  # type: ignore[arg-type]


def test_files_are_loaded_by_their_ending(tmp_path: Path) -> None:
    (tmp_path / "a.MD").write_text("# T\nx", encoding="utf-8")
    (tmp_path / "b.csv").write_bytes(b"\xef\xbb\xbfa,b\r\n1,2\r\n")
    (tmp_path / "c.log").write_text("line", encoding="utf-8")
    (tmp_path / "d.txt").write_bytes(b"\xff\xfe")
    assert load_file(tmp_path / "a.MD")[0].metadata["headings"] == ["T"]
    [row] = load_file(tmp_path / "b.csv", text_columns=["a"])
    assert (row.text, row.metadata["b"]) == ("a: 1", "2")
    assert load_file(tmp_path / "c.log")[0].text == "line"
    with pytest.raises(InvalidInputError, match="not UTF-8"):
        load_file(tmp_path / "d.txt")
    with pytest.raises(InvalidInputError, match="CSV"):
        load_file(tmp_path / "c.log", id_column="a")
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "absent.txt")
