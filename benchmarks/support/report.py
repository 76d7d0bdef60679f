"""The one document that every benchmark prints."""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

PACKAGES = ("ray", "sqlalchemy", "psycopg", "litellm", "pydantic")
#: Measured beside ours where they are installed.
PEER_PACKAGES = (
    "dbos",
    "langgraph",
    "langgraph-checkpoint-postgres",
    "langgraph-checkpoint-sqlite",
    "openai-agents",
    "pydantic-ai-slim",
)


def arguments(description: str) -> argparse.ArgumentParser:
    """The options that every benchmark has."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else on stdout"
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer repetitions; shows that it works, not how fast"
    )
    return parser


@dataclass
class Report:
    """Results as they are collected."""

    benchmark: str
    as_json: bool
    quick: bool
    results: list[dict[str, Any]] = field(default_factory=list)
    ratios: dict[str, float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    #: Why a ratio is null, by its key.
    reasons: dict[str, str] = field(default_factory=dict)
    _stdout: TextIO = field(init=False, repr=False)

    def __post_init__(self) -> None:
        """With ``--json`` only the document may stand on stdout: Ray prints there about every lost worker and node."""
        self._stdout = sys.stdout
        if self.as_json:
            self._stdout = os.fdopen(os.dup(1), "w")
            os.dup2(2, 1)

    def progress(self, text: str) -> None:
        """Say what is being measured, on stderr."""
        print(text, file=sys.stderr, flush=True)

    def row(self, **values: Any) -> None:
        """Add a result row."""
        self.results.append(values)
        self.progress("  " + ", ".join(f"{name}={_short(value)}" for name, value in values.items()))

    def missing(self, key: str, reason: str) -> None:
        """A ratio that this run cannot give: null, and why."""
        self.ratios[key] = None
        self.reasons[key] = reason

    def print(self) -> None:
        """Print the document, or a short text."""
        document = {
            "benchmark": self.benchmark,
            "quick": self.quick,
            "machine": {
                "cpus": os.cpu_count(),
                "platform": platform.platform(),
                "python": platform.python_version(),
            },
            "versions": {name: _version(name) for name in PACKAGES}
            | {name: found for name in PEER_PACKAGES if (found := _version(name)) is not None},
            "results": self.results,
            "ratios": self.ratios,
            "null_ratios": self.reasons,
            "notes": self.notes,
        }
        if self.as_json:
            print(json.dumps(document, indent=2), file=self._stdout, flush=True)
            return
        print(f"\n{self.benchmark}")
        for name, value in self.ratios.items():
            print(
                f"  {name}: {_short(value) if value is not None else self.reasons.get(name, 'not measured')}"
            )


def median(values: Sequence[float]) -> float:
    """The middle value."""
    return statistics.median(values)


def ratio(value: float, base: float) -> float:
    """`value` / `base`, to three digits."""
    return round(value / base, 3)


def _short(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
