"""The demo's parts without a cluster: tools and judge agree on any folder, and the judge is hard to deceive."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from phronomy_ray.cli.demo import agent, checker, script
from phronomy_ray.cli.demo.checker import Effect, Evidence, Place
from phronomy_ray.cli.demo.random_tree import make_tree
from phronomy_ray.journal import (
    Channel,
    ExecutionRow,
    ExecutionStatus,
    JournalRecord,
    Phase,
    RecordKind,
    ToolCallRow,
    ToolCallStatus,
)
from phronomy_ray.models.script import ScriptRequest, calls_since_user
from phronomy_ray.tool_calls import ToolContext

Cli = Callable[..., Result]


def _context(folder: Path, work: Path, attempt: int = 2) -> ToolContext:
    gate = work / "gate"
    gate.write_text("2")
    settings = {
        "folder": str(folder),
        "output": str(folder / "demo-output"),
        "effects": str(work / "effects.jsonl"),
        "gate": str(gate),
    }
    return ToolContext("a", "ex", "tc", "tc", attempt, settings)


def _survey(folder: Path, work: Path) -> str:
    """What the tools and the model make of a folder, in one process."""
    context = _context(folder, work)
    counted = [agent.count_package(number, context) for number in range(1, agent.PACKAGES + 1)]
    return script.report(json.loads(json.dumps(counted)))


@pytest.mark.parametrize("seed", range(12))
def test_tools_and_plain_count_agree_on_random_folders(tmp_path: Path, seed: int) -> None:
    folder = tmp_path / "tree"
    files = make_tree(folder, seed)
    counted = checker.count_folder(folder, output=folder / "demo-output")
    assert checker.total(counted)[0] == files
    assert checker.read_report(_survey(folder, tmp_path)) == (counted, checker.total(counted))


def test_the_same_seed_gives_the_same_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        make_tree(tmp_path / name, 7)
    one, other = (
        {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*.txt")}
        for root in (tmp_path / "a", tmp_path / "b")
    )
    assert one == other


@pytest.mark.parametrize(
    "content", [b"", b"one", b"a b\nc\n", b" \n" * 50, b"x" * 5_000, b"\xff\xfe word\r\n" * 999]
)
def test_one_file_is_cut_without_losing_a_word(tmp_path: Path, content: bytes) -> None:
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "only.txt").write_bytes(content)
    expected = (1, content.count(b"\n"), len(content.split()), len(content))
    assert checker.read_report(_survey(folder, tmp_path)) == ({"(top)": expected}, expected)


def test_an_empty_folder_and_the_own_output(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    (folder / "demo-output").mkdir(parents=True)
    (folder / "demo-output" / "REPORT.md").write_text("old")
    assert checker.count_folder(folder, output=folder / "demo-output") == {}
    assert checker.read_report(_survey(folder, tmp_path)) == ({}, (0, 0, 0, 0))


def test_packages_are_of_about_equal_size(tmp_path: Path) -> None:
    folder = tmp_path / "tree"
    make_tree(folder, 3)
    listed = agent.list_packages(_context(folder, tmp_path))
    assert [entry["package"] for entry in listed] == list(range(1, 17))
    sizes = [entry["bytes"] for entry in listed]
    assert max(sizes) - min(sizes[:-1]) <= 1


def test_a_report_is_read_strictly() -> None:
    text = "| group | files | lines | words | bytes |\n|---|---|---|---|---|\n| a | 1 | 2 | 3 | 4 |\n| a | 1 | 1 | 1 | 1 |\n"
    groups, total = checker.read_report(text)
    assert groups == {"a": (1, 2, 3, 4), "a (again)": (1, 1, 1, 1)}
    assert total is None
    assert checker.read_report("| **total** | 1,000 | 2 | 3 | 4 |") == ({}, (1000, 2, 3, 4))


# --- the model -------------------------------------------------------------------------------------------------


def _request(*messages: dict[str, Any]) -> ScriptRequest:
    return ScriptRequest("demo", messages, sequence=calls_since_user(messages) + 1)


def test_the_model_stops_when_a_tool_failed() -> None:
    messages = [
        {"role": "user", "content": "go"},
        {"role": "assistant"},
        {"role": "tool", "tool_call_id": "1", "content": "[]"},
        {"role": "assistant"},
        {"role": "tool", "tool_call_id": "2", "content": "Error (OSError): no"},
    ]
    assert "were not counted" in str(script.answer(_request(*messages)).text)
    broken = {"role": "tool", "tool_call_id": "1", "content": "Error (OSError): no"}
    assert "cannot survey" in str(script.answer(_request(*messages[:2], broken)).text)


# --- the judge -------------------------------------------------------------------------------------------------

T = 1_700_000_000.0


def _iso(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).isoformat()


def _call(number: int, *, attempt: int, start: float, end: float) -> ToolCallRow:
    record = {
        "number": attempt,
        "status": "succeeded",
        "started_at": _iso(start),
        "ended_at": _iso(end),
        "pid": 1,
    }
    attempts = [record] if attempt == 1 else [{"number": 1, "status": "lost"}, record]
    return ToolCallRow(
        f"tc{number}",
        "ex",
        "a",
        "ex:m2",
        number,
        f"p{number}",
        "count_package",
        {},
        ToolCallStatus.SUCCEEDED,
        "safe",
        False,
        "",
        datetime.fromtimestamp(T, UTC),
        attempt=attempt,
        attempts=attempts,
    )


def _good() -> Evidence:
    """A run in which everything held: 2 of 12 calls done at T+5, 10 lost and run again at T+10."""
    rows, effects = [], []
    for number in range(12):
        quick = number < 2
        rows.append(
            _call(
                number,
                attempt=1 if quick else 2,
                start=T + (1 if quick else 10),
                end=T + (2 if quick else 11),
            )
        )
        effects.append(Effect("start", T + 1, 50, f"tc{number}", 1, number + 1))
        if quick:
            effects.append(Effect("end", T + 2, 50, f"tc{number}", 1, number + 1))
        else:
            effects += [
                Effect("start", T + 10, 60, f"tc{number}", 2, number + 1),
                Effect("end", T + 11, 60, f"tc{number}", 2, number + 1),
            ]
    effects += [Effect("start", T + 20, 70, "tcr", 1, 0), Effect("end", T + 20, 70, "tcr", 1, 0)]
    now = datetime.fromtimestamp(T, UTC)
    counts = {"src": (1, 2, 3, 4)}
    execution = ExecutionRow(
        "ex", "a", ExecutionStatus.COMPLETED, Phase.ENDED, 1, "", "go", None, 0, {}, now, now, output="done"
    )
    journal = tuple(
        JournalRecord(
            position, RecordKind.TOOL_RESULT, Channel.TOOL, now, "ex", causation_id=row.tool_call_id
        )
        for position, row in enumerate(rows, start=1)
    )
    return Evidence(
        counted_before=counts,
        counted_after=counts,
        report="| src | 1 | 2 | 3 | 4 |\n| total | 1 | 2 | 3 | 4 |\n",
        effects=tuple(effects),
        execution=execution,
        tool_calls=tuple(rows),
        journal=journal,
        killed_at=T + 5,
        killed_node="node1xyz",
        killed_pids=(40, 50, 51),
        dead_pids=(40, 50, 51),
        before=Place(51, "node1"),
        after=Place(61, "node2"),
        approved_in=Place(71, "node2"),
        gone_while_waiting=True,
        approver_pid=99,
        driver_pid=1,
        decided_by="second",
        wanted_decider="second",
    )


def _failed(evidence: Evidence) -> list[str]:
    return [check.name for check in checker.judge(evidence) if not check.ok]


def test_a_good_run_is_believed() -> None:
    assert _failed(_good()) == []


def _without_end_before_kill(evidence: Evidence) -> Evidence:
    late = tuple(replace(effect, at=T + 6) if effect.at == T + 2 else effect for effect in evidence.effects)
    return replace(evidence, effects=late)


def _done_twice(evidence: Evidence) -> Evidence:
    return replace(evidence, effects=(*evidence.effects, Effect("start", T + 9, 60, "tc0", 2, 1)))


def _one_after_another(evidence: Evidence) -> Evidence:
    rows = tuple(
        _call(number, attempt=row.attempt, start=T + number * 0.1, end=T + number * 0.1 + 0.05)
        for number, row in enumerate(evidence.tool_calls)
    )
    return replace(evidence, tool_calls=rows)


@pytest.mark.parametrize(
    ("spoil", "wrong"),
    [
        (lambda e: replace(e, dead_pids=(40, 50)), "the whole node under the agent died"),
        (lambda e: replace(e, killed_node="node9"), "the whole node under the agent died"),
        (lambda e: replace(e, tool_calls=e.tool_calls[:11]), "one batch of at least 12 calls"),
        (_without_end_before_kill, "at the kill at least 1 was done"),
        (lambda e: replace(e, killed_at=T + 30), "at the kill at least 2 were running on the node"),
        (_one_after_another, "at least 4 calls overlapped"),
        (lambda e: replace(e, after=Place(61, "node1")), "it went on on another node"),
        (lambda e: replace(e, journal=e.journal[:-1]), "every call has exactly one outcome"),
        (_done_twice, "what was done was not done again"),
        (
            lambda e: replace(e, tool_calls=tuple(replace(row, replay="never") for row in e.tool_calls)),
            "only repeatable calls were run again",
        ),
        (
            lambda e: replace(e, effects=(*e.effects, Effect("start", T + 30, 1, "tcr", 2, 0))),
            "the report was written once",
        ),
        (lambda e: replace(e, gone_while_waiting=False), "it waited for approval without a process"),
        (lambda e: replace(e, decided_by=None), "a second process approved and woke it"),
        (lambda e: replace(e, approver_pid=1), "a second process approved and woke it"),
        (
            lambda e: replace(e, execution=replace(e.execution, status=ExecutionStatus.FAILED)),
            "the execution completed",
        ),
        (lambda e: replace(e, journal=e.journal[1:]), "the journal has no gaps"),
        (lambda e: replace(e, counted_before={}), "the folder did not change meanwhile"),
        (lambda e: replace(e, report=""), "the report equals a plain count"),
        (
            lambda e: replace(e, report=e.report.replace("| src | 1", "| src | 2")),
            "the report equals a plain count",
        ),
        (
            lambda e: replace(e, report=e.report.replace("| total | 1", "| total | 2")),
            "the report equals a plain count",
        ),
        (
            lambda e: replace(e, report="| more | 0 | 0 | 0 | 0 |\n" + e.report),
            "the report equals a plain count",
        ),
    ],
)
def test_the_judge_sees_each_fault(spoil: Callable[[Evidence], Evidence], wrong: str) -> None:
    assert wrong in _failed(spoil(_good()))


def test_most_at_once() -> None:
    assert checker.most_at_once([]) == 0
    assert checker.most_at_once([(0, 1), (1, 2), (2, 3)]) == 1
    assert checker.most_at_once([(0, 3), (1, 2), (1.5, 4)]) == 3


def test_a_half_written_line_of_the_log_is_left(tmp_path: Path) -> None:
    line = json.dumps({"event": "start", "at": 1.0, "pid": 2, "call": "c", "attempt": 1, "package": 3})
    (tmp_path / "log").write_text(line + "\n" + line[:10])
    assert checker.read_effects(tmp_path / "log") == [Effect("start", 1.0, 2, "c", 1, 3)]
    assert checker.read_effects(tmp_path / "missing") == []


def test_the_judge_shares_no_code_with_what_it_judges() -> None:
    source = Path(checker.__file__).read_text()
    assert "demo.agent" not in source
    assert "demo.script" not in source
    assert "demo import" not in source


def test_a_folder_that_is_too_large_is_refused(
    run_cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from phronomy_ray.cli.demo import command

    monkeypatch.setattr(command, "MAX_FILES", 3)
    for number in range(5):
        (tmp_path / f"{number}.txt").write_text("x")
    with pytest.raises(command.InvalidInputError, match="smaller folder"):
        command.refuse_large(tmp_path)


def test_random_and_path_exclude_each_other(run_cli: Cli, tmp_path: Path) -> None:
    result = run_cli("demo", "--random", "--path", str(tmp_path))
    assert result.exit_code == 2
    assert "--path" in result.stderr
