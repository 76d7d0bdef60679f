"""The demo's judge. It believes neither the agent nor the tools nor the runtime.

It counts the folder itself, reads the report, the effect log and the rows of the store, and looks at processes from
outside. It shares no code with the tools (`agent`) or the model (`script`): what both got wrong would look right.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from phronomy_ray.journal import ExecutionRow, JournalRecord, ToolCallRow

#: Smallest batch, calls done and calls running at the kill, calls at once.
MIN_BATCH, MIN_DONE, MIN_RUNNING, MIN_OVERLAP = 12, 1, 2, 4

#: Files, lines, words, bytes.
Counts = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Check:
    """One claim and whether it held."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Effect:
    """One line of the effect log."""

    event: str
    at: float
    pid: int
    call: str
    attempt: int
    #: 0 for the report.
    package: int


@dataclass(frozen=True, slots=True)
class Place:
    """A process and the node that it ran on."""

    pid: int
    #: Short node id, as the runtime reports it.
    node: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """Everything that is judged."""

    #: Own count of the folder before the run and after it.
    counted_before: dict[str, Counts]
    counted_after: dict[str, Counts]
    report: str
    effects: tuple[Effect, ...]
    execution: ExecutionRow
    #: All tool calls of the execution, as the store has them.
    tool_calls: tuple[ToolCallRow, ...]
    #: The agent's journal.
    journal: tuple[JournalRecord, ...]
    #: When SIGKILL was sent, what died of it, and who of that was seen dead from outside.
    killed_at: float
    killed_node: str
    killed_pids: tuple[int, ...]
    dead_pids: tuple[int, ...]
    #: The agent before the kill, after it, and after the approval.
    before: Place
    after: Place
    approved_in: Place
    #: Whether the agent's process was gone while it waited, seen from outside.
    gone_while_waiting: bool
    #: The process that approved, and who the store says did.
    approver_pid: int
    driver_pid: int
    decided_by: str | None
    wanted_decider: str


# --- the plain count -------------------------------------------------------------------------------------------


def count_folder(folder: Path, *, output: Path) -> dict[str, Counts]:
    """Files, lines, words and bytes by folder at the top, with Python's plainest means."""
    totals: dict[str, list[int]] = {}
    avoided = output.resolve()
    waiting = [folder]
    while waiting:
        for entry in waiting.pop().iterdir():
            if entry.name[0] == "." or entry.is_symlink():
                continue
            if entry.is_dir():
                if entry.name not in ("__pycache__", "node_modules") and entry.resolve() != avoided:
                    waiting.append(entry)
            elif entry.is_file():
                content = entry.read_bytes()
                parts = entry.relative_to(folder).parts
                group = _printable(parts[0]) if len(parts) > 1 else "(top)"
                row = totals.setdefault(group, [0, 0, 0, 0])
                row[0] += 1
                row[1] += len(content.split(b"\n")) - 1
                row[2] += len(content.split())
                row[3] += len(content)
    return {name: (row[0], row[1], row[2], row[3]) for name, row in totals.items()}


def _printable(name: str) -> str:
    known = name.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    return "".join(
        letter if letter.isprintable() and letter not in ("|", "`", "*") else "?" for letter in known
    )


def total(counts: dict[str, Counts]) -> Counts:
    """The sum of all groups."""
    columns = list(zip(*counts.values(), strict=True)) or [(0,)] * 4
    return (sum(columns[0]), sum(columns[1]), sum(columns[2]), sum(columns[3]))


def read_report(text: str) -> tuple[dict[str, Counts], Counts | None]:
    """The rows of the report's table, and its last row if that is the total.

    A row has five cells, four of them numbers. A group that stands twice is kept under a name that fits nothing.
    """
    rows: list[tuple[str, Counts]] = []
    for line in text.splitlines():
        cells = [cell.strip().strip("*").strip() for cell in line.strip().strip("|").split("|")]
        numbers = [cell.replace(",", "").replace("_", "") for cell in cells[1:]]
        if len(cells) == 5 and all(number.isdigit() for number in numbers):
            rows.append((cells[0], (int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3]))))
    claimed = rows.pop()[1] if rows and rows[-1][0] == "total" else None
    groups: dict[str, Counts] = {}
    for name, counts in rows:
        groups[name if name not in groups else f"{name} (again)"] = counts
    return groups, claimed


# --- the effect log --------------------------------------------------------------------------------------------


def read_effects(path: Path) -> list[Effect]:
    """The effect log as far as it is written; a half line at its end is left for the next time."""
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    return [Effect(**json.loads(line)) for line in lines]


def running_at(effects: Iterable[Effect], moment: float) -> list[Effect]:
    """Starts before `moment` without an end before it; a later attempt takes the place of an earlier one."""
    begun: dict[str, Effect] = {}
    for effect in effects:
        if effect.at > moment:
            continue
        current = begun.get(effect.call)
        if effect.event == "start" and (current is None or effect.attempt > current.attempt):
            begun[effect.call] = effect
        elif effect.event == "end" and current is not None and effect.attempt == current.attempt:
            del begun[effect.call]
    return list(begun.values())


def most_at_once(spans: Sequence[tuple[float, float]]) -> int:
    """The largest number of spans that share a moment."""
    steps = sorted([(start, 1) for start, _ in spans] + [(end, -1) for _, end in spans])
    running = most = 0
    for _, change in steps:
        running += change
        most = max(most, running)
    return most


# --- the judgement ---------------------------------------------------------------------------------------------


def judge(evidence: Evidence) -> list[Check]:
    """Every claim of the demo."""
    return [
        _node_died(evidence),
        *_middle_of_batch(evidence),
        _overlap(evidence),
        _moved(evidence),
        *_nothing_lost_or_doubled(evidence),
        _waited_without_process(evidence),
        _approved_elsewhere(evidence),
        _completed(evidence),
        _journal_whole(evidence),
        *_report_is_true(evidence),
    ]


def _batch(evidence: Evidence) -> list[ToolCallRow]:
    return [row for row in evidence.tool_calls if row.tool_name == "count_package"]


def _kept(evidence: Evidence) -> list[ToolCallRow]:
    """Calls of the batch that the ledger had as done when the node died."""
    return [
        row
        for row in _batch(evidence)
        if row.attempt == 1
        and row.status.value == "succeeded"
        and _time(row.attempts[-1]["ended_at"]) < evidence.killed_at
    ]


def _node_died(evidence: Evidence) -> Check:
    dead = set(evidence.dead_pids)
    alive = set(evidence.killed_pids) - dead
    held = evidence.before.pid in dead and evidence.killed_node.startswith(evidence.before.node)
    text = f"{len(dead)} processes, the agent's (pid {evidence.before.pid}) among them, are dead"
    return Check(
        "the whole node under the agent died", held and not alive, text if not alive else f"alive: {alive}"
    )


def _middle_of_batch(evidence: Evidence) -> list[Check]:
    batch = _batch(evidence)
    one_batch = len({row.model_call_id for row in batch}) == 1
    ends = {
        effect.call for effect in evidence.effects if effect.event == "end" and effect.at < evidence.killed_at
    }
    kept = [row for row in _kept(evidence) if row.tool_call_id in ends]
    known = {row.tool_call_id for row in batch}
    running = [effect for effect in running_at(evidence.effects, evidence.killed_at) if effect.call in known]
    with_node = [effect for effect in running if effect.pid in evidence.killed_pids]
    return [
        Check(
            f"one batch of at least {MIN_BATCH} calls",
            one_batch and len(batch) >= MIN_BATCH,
            f"{len(batch)} calls",
        ),
        Check(
            f"at the kill at least {MIN_DONE} was done",
            len(kept) >= MIN_DONE,
            f"{len(kept)} done in ledger and log",
        ),
        Check(
            f"at the kill at least {MIN_RUNNING} were running on the node",
            len(with_node) >= MIN_RUNNING,
            f"{len(running)} running, {len(with_node)} of them on the node",
        ),
    ]


def _overlap(evidence: Evidence) -> Check:
    spans = [
        (_time(attempt["started_at"]), _time(attempt["ended_at"]))
        for row in _batch(evidence)
        for attempt in row.attempts
        if attempt.get("status") == "succeeded"
    ]
    ledger = most_at_once(spans)
    starts = {
        (effect.call, effect.attempt): effect.at for effect in evidence.effects if effect.event == "start"
    }
    log = most_at_once(
        [
            (starts[effect.call, effect.attempt], effect.at)
            for effect in evidence.effects
            if effect.event == "end" and effect.package > 0
        ]
    )
    detail = f"{ledger} at once by the ledger, {log} by the log"
    return Check(f"at least {MIN_OVERLAP} calls overlapped", min(ledger, log) >= MIN_OVERLAP, detail)


def _moved(evidence: Evidence) -> Check:
    moved = evidence.after.node != evidence.before.node and evidence.after.pid != evidence.before.pid
    detail = f"pid {evidence.before.pid} on {evidence.before.node} -> pid {evidence.after.pid} on {evidence.after.node}"
    return Check("it went on on another node", moved, detail)


def _nothing_lost_or_doubled(evidence: Evidence) -> list[Check]:
    batch = _batch(evidence)
    open_calls = [row.tool_call_id for row in evidence.tool_calls if row.status.value != "succeeded"]
    results = Counter(
        record.causation_id for record in evidence.journal if record.kind.value == "tool_result"
    )
    wrong = [row.tool_call_id for row in evidence.tool_calls if results[row.tool_call_id] != 1]
    starts = Counter(effect.call for effect in evidence.effects if effect.event == "start")
    kept = _kept(evidence)
    twice = [row.tool_call_id for row in kept if starts[row.tool_call_id] != 1]
    again = [row for row in batch if row.attempt > 1]
    unsafe = [row.tool_call_id for row in again if row.replay == "never"]
    reports = [effect for effect in evidence.effects if effect.package == 0 and effect.event == "start"]
    return [
        Check(
            "every call has exactly one outcome",
            not open_calls and not wrong,
            f"{len(evidence.tool_calls)} calls"
            if not open_calls and not wrong
            else f"wrong: {open_calls or wrong}",
        ),
        Check(
            "what was done was not done again",
            not twice,
            f"{len(kept)} kept" if not twice else f"twice: {twice}",
        ),
        Check(
            "only repeatable calls were run again",
            not unsafe,
            f"{len(again)} run again" if not unsafe else str(unsafe),
        ),
        Check(
            "the report was written once",
            len(reports) == 1,
            "one start in the log" if len(reports) == 1 else f"{len(reports)} starts in the log",
        ),
    ]


def _waited_without_process(evidence: Evidence) -> Check:
    detail = (
        f"pid {evidence.after.pid} was {'gone' if evidence.gone_while_waiting else 'alive'} while it waited"
    )
    return Check("it waited for approval without a process", evidence.gone_while_waiting, detail)


def _approved_elsewhere(evidence: Evidence) -> Check:
    other = evidence.approver_pid not in (evidence.driver_pid, evidence.after.pid)
    known = evidence.decided_by == evidence.wanted_decider
    woken = evidence.approved_in.pid not in (evidence.before.pid, evidence.after.pid)
    detail = f"by process {evidence.approver_pid} ({evidence.decided_by}), which woke pid {evidence.approved_in.pid}"
    return Check("a second process approved and woke it", other and known and woken, detail)


def _completed(evidence: Evidence) -> Check:
    status = evidence.execution.status.value
    return Check("the execution completed", status == "completed", evidence.execution.output or status)


def _journal_whole(evidence: Evidence) -> Check:
    positions = [record.position for record in evidence.journal]
    whole = positions == list(range(1, len(positions) + 1))
    return Check("the journal has no gaps", whole, f"{len(positions)} records")


def _report_is_true(evidence: Evidence) -> list[Check]:
    expected = evidence.counted_after
    still = evidence.counted_before == expected
    found, claimed_total = read_report(evidence.report)
    differing = sorted(name for name in {*expected, *found} if expected.get(name) != found.get(name))
    equal = not differing and claimed_total == total(expected)
    if equal:
        files, lines, words, size = total(expected)
        detail = f"{len(expected)} groups: {files} files, {lines} lines, {words} words, {size} bytes"
    else:
        detail = (
            _differences(differing, expected, found)
            or f"total: report {claimed_total}, count {total(expected)}"
        )
    return [
        Check(
            "the folder did not change meanwhile",
            still,
            "same count before and after" if still else "it changed",
        ),
        Check("the report equals a plain count", equal, detail),
    ]


def _differences(names: Sequence[str], expected: dict[str, Counts], found: dict[str, Counts]) -> str:
    return "; ".join(f"{name}: report {found.get(name)}, count {expected.get(name)}" for name in names[:3])


def _time(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def check_wire(check: Check) -> dict[str, Any]:
    """JSON form."""
    return {"check": check.name, "ok": check.ok, "detail": check.detail}


__all__ = [
    "Check",
    "Counts",
    "Effect",
    "Evidence",
    "Place",
    "check_wire",
    "count_folder",
    "judge",
    "most_at_once",
    "read_effects",
    "read_report",
    "running_at",
    "total",
]
