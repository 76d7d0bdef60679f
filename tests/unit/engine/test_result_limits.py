"""Large results and the status that each result has for code, on the engine."""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

import pytest

from phronomy_ray.definition.options import RuntimeDefaults
from phronomy_ray.definition.tool import tool
from phronomy_ray.events import EventType
from phronomy_ray.kernel.inputs import Decide
from phronomy_ray.models.scripted import call, calls, final


@tool(replay="safe")
def bulk(n: int, mark: str = "x") -> str:
    return mark * n


@tool(replay="safe", max_result_chars=50)
async def small(n: int) -> str:
    return "s" * n


def reference(text: str) -> str:
    """The hash that a marker names."""
    found = re.search(r"full result (sha256:[0-9a-f]{64}) ", text)
    assert found is not None, text[:300]
    return found[1]


def told(lab: Any) -> list[str]:
    return [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"]


async def test_T14_a_batch_of_large_results_fits_its_cap_and_is_kept_whole(lab: Any) -> None:
    size = 2 * 1024 * 1024
    step = calls(*[call("bulk", {"n": size, "mark": str(n)}) for n in range(7)], call("bulk", {"n": 5}))
    engine = lab.engine(lab.define([step, final("done")], bulk, max_batch_result_chars=8_000))
    assert (await lab.run(engine)).output == "done"
    shown = told(lab)
    assert sum(map(len, shown)) <= 8_000
    assert shown[7] == "xxxxx"
    lengths = [len(text) for text in shown[:7]]
    assert max(lengths) - min(lengths) <= 2
    for number, text in enumerate(shown[:7]):
        assert text.startswith(str(number))
        assert json.loads(lab.store.read_content(reference(text))) == str(number) * size
    rows = lab.store.tool_calls("ex1")
    assert [len(row.result) for row in rows] == [size] * 7 + [5], "the ledger has them whole"
    assert [row.attempt for row in rows] == [1] * 8
    records = [r for r in lab.store.journal_of_execution("ex1") if r.kind.value == "tool_result"]
    assert [r.metadata["result_status"] for r in records] == ["truncated"] * 7 + ["ok"]


@pytest.mark.parametrize("by", ["tool", "batch"])
async def test_T14_what_was_cut_can_be_read_back_by_the_hash_in_its_place(lab: Any, by: str) -> None:
    results: list[Any] = ["s" * 3_000, "t" * 300_000, {"k": ["v" * 500] * 4}, {"k": ["w" * 500] * 400}]

    @tool(name="give", replay="safe", max_result_chars=400 if by == "tool" else None)
    async def give(n: int) -> Any:
        return results[n]

    step = calls(*[call("give", {"n": n}) for n in range(len(results))])
    cap = {} if by == "tool" else {"max_batch_result_chars": 1_600}
    await lab.run(lab.engine(lab.define([step, final("done")], give, **cap)))
    for text, result in zip(told(lab), results, strict=True):
        assert len(text) < 600
        assert json.loads(lab.store.read_content(reference(text))) == result


async def test_T14_more_than_the_hard_limit_is_an_error_and_nothing_is_repeated(lab: Any) -> None:
    ran: list[int] = []

    @tool(replay="safe", on_error="suppress")
    def huge() -> str:
        ran.append(1)
        return "h" * (50 * 1024 * 1024)

    engine = lab.engine(lab.define([calls(call("huge")), final("done")], huge))
    assert (await lab.run(engine)).output == "done"
    assert ran == [1]
    assert told(lab)[0].startswith("Error (result_too_large)")


async def test_the_runtime_sets_the_limit_of_tools_that_have_none(lab: Any) -> None:
    step = calls(call("bulk", {"n": 1_000}), call("small", {"n": 1_000}))
    engine = lab.engine(
        lab.define([step, final("done")], bulk, small), defaults=RuntimeDefaults(max_result_chars=200)
    )
    await lab.run(engine)
    assert [len(text.partition("\n[...")[0]) for text in told(lab)] == [150, 37]
    records = [r for r in lab.store.journal_of_execution("ex1") if r.kind.value == "tool_result"]
    assert [r.metadata["result_status"] for r in records] == ["truncated", "truncated"]


async def test_T19_code_reads_a_status_and_no_prose(lab: Any) -> None:
    @tool(replay="safe", on_error="suppress")
    async def fails() -> str:
        raise ValueError("boom")

    @tool(replay="safe", on_error="suppress", timeout_s=0.05)
    async def hangs() -> str:
        await asyncio.sleep(60)
        return "never"

    @tool(replay="safe")
    async def fine() -> str:
        return "Error: this is only a text"

    step = calls(call("fine"), call("fails"), call("hangs"), call("small", {"n": 99}), call("nobody"))
    engine = lab.engine(lab.define([step, final("done")], fine, fails, hangs, small))
    await lab.run(engine)
    expected = ["ok", "error", "timeout", "truncated", "error"]
    records = [r for r in lab.store.journal_of_execution("ex1") if r.kind.value == "tool_result"]
    assert [r.metadata["result_status"] for r in records] == expected
    events = [e for e in await lab.read_events(engine) if e.type is EventType.TOOL_RESULT]
    by_call = {e.payload["tool_call_id"]: e.payload["result_status"] for e in events}
    assert [by_call[row.tool_call_id] for row in lab.store.tool_calls("ex1")] == expected


async def test_T19_a_refused_call_is_denied(lab: Any) -> None:
    @tool(requires_approval=True)
    async def gated() -> str:
        return "done"

    engine = lab.engine(lab.define([calls(call("gated")), final("x")], gated))
    await engine.start("ex1", "go")
    request = (await lab.suspension(engine)).approvals[0]
    await engine.decide(Decide("ex1", request.approval_request_id, False))
    await lab.end(engine)
    records = [r for r in lab.store.journal_of_execution("ex1") if r.kind.value == "tool_result"]
    assert [r.metadata["result_status"] for r in records] == ["denied"]
