"""The demo's model: a script behind the loopback server. It knows nothing but the conversation it is sent.

Every number of the report comes out of tool results that stand in the request: wrong results give a wrong report.
"""

from __future__ import annotations

import json
from typing import Any

from phronomy_ray.models.script import Reply, ScriptRequest, call, calls, final

_COLUMNS = ("files", "lines", "words", "bytes")


def answer(request: ScriptRequest) -> Reply:
    """The next step of the survey, by what the last tool results say."""
    results = [json_or_none(text) for text in request.tool_results.values()]
    match request.sequence:
        case 1:
            return calls(call("list_packages"), text="I look at what there is to count.", chunk_delay_s=0.01)
        case 2:
            listed = results[0] if results else None
            if not isinstance(listed, list) or not listed:
                return final("I cannot survey the folder: its packages could not be listed.")
            asked = [call("count_package", {"package": entry["package"]}) for entry in listed]
            return calls(*asked, text=f"I count all {len(asked)} packages side by side.")
        case 3:
            wrong = sum(not isinstance(result, dict) or "groups" not in result for result in results)
            if wrong or not results:
                return final(
                    f"I cannot write the report: {wrong} of {len(results)} packages were not counted."
                )
            return calls(call("write_report", {"markdown": report(results)}), text="I have all numbers.")
        case _:
            text = next(iter(request.tool_results.values()), "")
            return (
                final(f"The report is written: {text}.")
                if text.startswith("REPORT.md")
                else final(text or "Done.")
            )


def report(results: list[Any]) -> str:
    """The report about all packages."""
    groups: dict[str, dict[str, int]] = {}
    for result in results:
        for name, counted in result["groups"].items():
            sums = groups.setdefault(name, dict.fromkeys(_COLUMNS, 0))
            for column in _COLUMNS:
                sums[column] += counted[column]
    total = {column: sum(sums[column] for sums in groups.values()) for column in _COLUMNS}
    lines = [
        "# Survey",
        "",
        f"{total['files']} files in {len(groups)} groups, counted in {len(results)} packages.",
        "",
        f"| group | {' | '.join(_COLUMNS)} |",
        "|---|---:|---:|---:|---:|",
        *(_row(name, groups[name]) for name in sorted(groups)),
        _row("total", total),
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, numbers: dict[str, int]) -> str:
    return f"| {name} | {' | '.join(str(numbers[column]) for column in _COLUMNS)} |"


def json_or_none(text: str) -> Any:
    """The JSON value in a tool result, ``None`` for an error text."""
    try:
        return json.loads(text)
    except ValueError:
        return None


__all__ = ["answer", "report"]
