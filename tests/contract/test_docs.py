"""What the documents say is true: links lead somewhere, code compiles, names exist."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
each_document = pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
DOTTED = re.compile(r"`(phronomy_ray(?:\.[A-Za-z_]\w*)+)(?:\([^`]*\))?`")
FILE = re.compile(r"`((?:phronomy_ray|tests|benchmarks|examples|docs)/[\w./-]*)`")
TARGET = re.compile(r"\bmake ((?:[a-z]+-)*[a-z]+)\b(?=[`\s])")


def _prose(document: Path) -> str:
    return FENCE.sub("", document.read_text(encoding="utf-8"))


def _code(document: Path, *languages: str) -> Iterator[str]:
    for language, block in FENCE.findall(document.read_text(encoding="utf-8")):
        if language in languages:
            yield block


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.strip().lower().replace("`", "")).replace(" ", "-")


def _resolve(path: str) -> Any:
    """The object behind a dotted path; attributes of instances count where their class annotates them."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as missing:
            if not path.startswith(f"{missing.name}") and missing.name != ".".join(parts[:length]):
                raise
            continue
        for part in parts[length:]:
            if not hasattr(found, part) and part in getattr(found, "__annotations__", {}):
                return found
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(path)


@each_document
def test_relative_links_lead_somewhere(document: Path) -> None:
    broken = []
    for link in LINK.findall(_prose(document)):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name) if name else document
        if not target.exists():
            broken.append(link)
        elif anchor:
            headings = re.findall(r"^#+ (.*)$", _prose(target), re.MULTILINE)
            if anchor not in map(_anchor, headings):
                broken.append(link)
    assert broken == []


@each_document
def test_python_blocks_compile_and_import_what_exists(document: Path) -> None:
    for block in _code(document, "python", "py"):
        tree = compile(block, str(document), "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "phronomy_ray":
                for alias in node.names:
                    _resolve(f"{node.module}.{alias.name}")


@each_document
def test_names_and_files_exist(document: Path) -> None:
    prose = _prose(document)
    missing = [name for name in FILE.findall(prose) if not (ROOT / name).exists()]
    for name in sorted(set(DOTTED.findall(prose))):
        try:
            _resolve(name)
        except (ModuleNotFoundError, AttributeError):
            missing.append(name)
    assert missing == []


@each_document
def test_make_targets_exist(document: Path) -> None:
    targets = set(
        re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    text = "\n".join(
        [*re.findall(r"`(make [^`]*`)", _prose(document)), *_code(document, "console", "bash", "sh")]
    )
    assert set(TARGET.findall(text)) <= targets


def test_no_document_names_a_folder_of_somebodys_machine() -> None:
    for document in DOCUMENTS:
        assert not re.search(r"(?<![\w.])(/work/|/root/|/home/\w+)", document.read_text(encoding="utf-8")), (
            document
        )
