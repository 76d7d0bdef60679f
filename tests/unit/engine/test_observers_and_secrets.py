"""Readers come and go without touching the execution, and what is secret is nowhere to be found afterwards."""

from __future__ import annotations

import asyncio
import json
import logging
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from phronomy_ray.definition.tool import tool
from phronomy_ray.errors import AuthenticationError, ModelError, RateLimitError
from phronomy_ray.events import EventType
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.models.scripted import Reply, ScriptedModel, attempts, call, calls, error, final
from phronomy_ray.runtime.traces import read_traces
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.faulty_store import FaultyStore
from phronomy_ray.tool_calls import ToolContext


@tool(replay="safe")
async def look(x: int = 0) -> str:
    return f"seen {x}"


# --- Y05 -------------------------------------------------------------------------------------------------------


async def test_Y05_a_reader_comes_back_by_cursor_and_misses_nothing(lab: Any) -> None:
    """One event is read at a time, the reader dropped after each; together they saw what one reader sees."""
    engine = lab.engine(lab.define([calls(call("look", {"x": 1}), text="I look"), final("x y z")], look))
    await engine.start("ex1", "go", stream=True)
    seen: list[Any] = []
    after, cursor = 0, None
    while not (seen and seen[-1].is_terminal):
        reader = asyncio.ensure_future(engine.events("ex1", after=after, cursor=cursor, timeout_s=20))
        found, cursor = await reader
        seen += found
        after = seen[-1].seq
        lost = asyncio.ensure_future(engine.events("ex1", after=after, cursor=cursor, timeout_s=20))
        await asyncio.sleep(0)
        lost.cancel()  # a reader that dies while it waits
    durable = [event for event in seen if event.durable]
    assert [event.seq for event in durable] == list(range(1, len(durable) + 1))
    assert durable[-1].type is EventType.COMPLETED
    assert "".join(event.payload["text"] for event in seen if event.type is EventType.TOKEN) == "I lookx y z"


async def test_Y05_a_reader_comes_back_by_seq_while_the_run_goes_on(lab: Any) -> None:
    gate = asyncio.Event()

    @tool(replay="safe")
    async def gated() -> str:
        await gate.wait()
        return "g"

    engine = lab.engine(lab.define([calls(call("gated", {})), final("x")], gated))
    await engine.start("ex1", "go", stream=True)
    first: list[Any] = []
    cursor = None
    while not any(event.type is EventType.TOOL_CALL for event in first):
        found, cursor = await engine.events("ex1", after=0, cursor=cursor, timeout_s=20)
        first += found
    gate.set()
    rest = await lab.read_events(engine, after=first[-1].seq)
    durable = [event for event in (*first, *rest) if event.durable]
    assert [event.seq for event in durable] == list(range(1, len(durable) + 1))
    assert (await lab.end(engine)).output == "x"


@pytest.mark.parametrize("after", [0, 1, 2, 3])
async def test_Y05_a_new_process_replays_what_was_missed(lab: Any, after: int) -> None:
    engine = lab.engine(lab.define([calls(call("look", {"x": 1})), final("x")], look))
    await lab.run(engine)
    _, cursor = await engine.events("ex1", after=0, cursor=None, timeout_s=1)
    second = lab.engine(engine.definition)
    events, _ = await second.events("ex1", after=after, cursor=cursor, timeout_s=20)
    assert [event.seq for event in events] == list(range(after + 1, 5))
    assert events[-1].type is EventType.COMPLETED
    assert all(event.durable for event in events)


async def test_Y05_a_restarted_run_is_replayed_and_then_followed(lab: Any) -> None:
    @tool(requires_approval=True)
    async def write() -> str:
        return "w"

    definition = lab.define([calls(call("write", {})), final("x")], write)
    engine = lab.engine(definition)
    await engine.start("ex1", "go")
    await lab.suspension(engine)
    _, cursor = await engine.events("ex1", after=0, cursor=None, timeout_s=1)
    second = lab.engine(definition)
    reading = asyncio.ensure_future(lab.read_events(second))
    await lab.decide_all(second)
    events = await asyncio.wait_for(reading, 20)
    durable = [event for event in events if event.durable]
    assert [event.seq for event in durable] == list(range(1, len(durable) + 1))
    assert [event.type.value for event in durable][:4] == [
        "started",
        "tool_call",
        "approval_required",
        "approval_decided",
    ]
    assert cursor


async def test_Y05_more_events_than_one_page_of_the_store(lab: Any) -> None:
    many = calls(*(call("look", {"x": n}) for n in range(260)))
    engine = lab.engine(lab.define([many, many, many, final("x")], look, max_tool_repeats=0))
    result = await lab.run(engine)
    assert result.output == "x"
    second = lab.engine(engine.definition)
    events = await lab.read_events(second)
    assert [event.seq for event in events] == list(range(1, 1 + 2 * 780 + 2))
    assert events[-1].type is EventType.COMPLETED


async def test_Y05_a_reader_that_was_too_slow_is_told_what_it_lost(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phronomy_ray.engine.event_hub.BUFFER_EVENTS", 8)
    engine = lab.engine(lab.define([calls(*(call("look", {"x": n}) for n in range(20))), final("x")], look))
    await engine.start("ex1", "go")
    found, cursor = await engine.events("ex1", after=0, cursor=None, timeout_s=20)
    await lab.end(engine)
    late, _ = await engine.events("ex1", after=found[-1].seq, cursor=cursor, timeout_s=20)
    assert late[0].type is EventType.LOST
    assert late[0].payload["events"] > 0
    assert late[-1].type is EventType.COMPLETED
    complete = await lab.read_events(engine)
    durable = [event.seq for event in complete if event.durable]
    assert durable == list(range(1, len(durable) + 1)), "by seq everything durable can still be had"


async def test_Y05_no_event_in_time_is_an_empty_answer_that_can_be_continued(lab: Any) -> None:
    gate = asyncio.Event()

    @tool(replay="safe")
    async def gated() -> str:
        await gate.wait()
        return "g"

    engine = lab.engine(lab.define([calls(call("gated", {})), final("x")], gated))
    await engine.start("ex1", "go")
    found: list[Any] = []
    cursor = None
    while not any(event.type is EventType.TOOL_STARTED for event in found):
        found, cursor = await engine.events("ex1", after=0, cursor=cursor, timeout_s=20)
    after = found[-1].seq
    nothing, cursor = await engine.events("ex1", after=after, cursor=cursor, timeout_s=0.01)
    assert nothing == []
    gate.set()
    more, _ = await engine.events("ex1", after=after, cursor=cursor, timeout_s=20)
    assert more[0].seq == after + 1


# --- Y07 -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("raised", [RuntimeError("observer"), asyncio.CancelledError()])
async def test_Y07_an_observer_that_raises_stops_nothing(lab: Any, raised: BaseException) -> None:
    engine = lab.engine(lab.define([calls(call("look", {"x": 1})), final("x")], look))
    ended: list[str] = []

    async def observer(fails_at: EventType | None) -> None:
        for event in await lab.read_events(engine):
            if event.type is fails_at:
                raise raised
        ended.append("read to the end")

    await engine.start("ex1", "go", stream=True)
    observers = [
        asyncio.ensure_future(observer(kind)) for kind in (EventType.STARTED, EventType.COMPLETED, None)
    ]
    result = await lab.end(engine)
    await asyncio.wait(observers, timeout=20)
    assert result.output == "x"
    assert ended == ["read to the end"]
    assert all(task.done() for task in observers)
    for task in observers:
        if not task.cancelled():
            task.exception()
    assert (await lab.run(engine, "again", id="ex2")).output == "x"


async def test_Y07_an_observer_that_never_reads_on_costs_a_bounded_buffer(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phronomy_ray.engine.event_hub.BUFFER_EVENTS", 50)
    words = " ".join(f"w{number}" for number in range(3_000))
    engine = lab.engine(lab.define([Reply(words, chunk_chars=4)]))
    await engine.start("ex1", "go", stream=True)
    first, cursor = await engine.events("ex1", after=0, cursor=None, timeout_s=20)
    assert first
    assert (await lab.end(engine)).output == words
    late, _ = await engine.events("ex1", after=first[-1].seq, cursor=cursor, timeout_s=20)
    assert len(late) <= 52
    assert late[-1].type is EventType.COMPLETED


async def test_Y07_an_observer_that_changes_what_it_was_given_changes_nobody_elses(lab: Any) -> None:
    engine = lab.engine(lab.define([calls(call("look", {"x": 1})), final("x")], look))
    await lab.run(engine)
    mine, _ = await engine.events("ex1", after=0, cursor=None, timeout_s=1)
    for event in mine:
        event.payload.clear()
    again, _ = await engine.events("ex1", after=0, cursor=None, timeout_s=1)
    assert again[-1].payload == {"output": "x"}


async def test_Y07_a_listener_for_lost_ownership_that_raises_stops_nothing(lab: Any) -> None:
    def broken() -> None:
        raise RuntimeError("listener")

    definition = lab.define([final("x")])
    older, newer = lab.engine(definition, on_ownership_lost=broken), lab.engine(definition)
    await older.activate()
    await newer.activate()
    with pytest.raises(Exception, match="owned by epoch"):
        await older.start("ex1", "go")
    assert (await lab.run(newer, id="ex2")).output == "x"


# --- O01 -------------------------------------------------------------------------------------------------------

KEY = "sk-CANARY-0123456789"
PLAIN_KEY = "CANARY.plain.gateway.key"
HEADER = "CANARY-header-9876"
ARGUMENT = "CANARY argument 4711"
RESULT = "CANARY result 0815"
SETTINGS = {
    "api_key": PLAIN_KEY,
    "temperature": 0.5,
    "max_tokens": 77,
    "extra_headers": {"X-Auth": f"Bearer {HEADER}"},
    "api_base": "https://user:CANARY-url-password@gateway.example/v1",
}


@tool(replay="safe", redact_params=("password",), on_error="suppress")
async def login(user: str, password: str, fail: bool = False) -> str:
    if fail:
        raise ValueError(f"cannot log in with {password}")
    return f"logged in with {password}"


@tool(replay="safe", redact_result=True)
async def fetch_secret() -> str:
    return RESULT


@tool(requires_approval=True, redact_params=("password",))
async def change(password: str) -> str:
    return "changed"


def everything_shown(lab: Any, events: list[Any], result: Any, caplog: Any, *, id: str) -> str:
    """Events, logs, error records, approvals, ledger columns that people look at, manifests and attempts."""
    execution = lab.store.load_execution(id)
    model_calls = lab.store.model_calls(id)
    parts: list[Any] = [
        [event.to_wire() for event in events],
        [row.payload for row in lab.store.events(id)],
        [record.getMessage() for record in caplog.records],
        [str(record.exc_info) for record in caplog.records],
        execution.error,
        execution.state,
        [row.error for row in lab.store.tool_calls(id)],
        [row.attempts for row in lab.store.tool_calls(id)],
        [row.arguments for row in lab.store.approvals(execution_id=id)],
        [(row.manifest, row.attempts, row.error) for row in model_calls],
        result.error.to_wire() if result.error else None,
        [r.metadata for r in lab.store.journal_of_execution(id)],
        [r.content for r in lab.store.journal_of_execution(id) if r.channel.value in ("approval", "audit")],
    ]
    return json.dumps(parts, default=str)


async def test_O01_secrets_of_settings_and_errors_are_nowhere(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    failure = AuthenticationError(
        f"Incorrect API key provided: {PLAIN_KEY} ({KEY}), header {HEADER}",
        details={"body": {"error": f"bad key {PLAIN_KEY}"}},
    )
    engine = lab.engine(lab.define([error(failure)], model_settings=SETTINGS))
    result = await lab.run(engine)
    events = await lab.read_events(engine)
    assert result.status is ExecutionStatus.FAILED
    with pytest.raises(AuthenticationError, match="Incorrect API key provided"):
        result.raise_for_status()
    shown = everything_shown(lab, events, result, caplog, id="ex1")
    assert "CANARY" not in shown
    manifest = lab.store.model_calls("ex1")[0].manifest
    assert manifest["settings"]["temperature"] == 0.5
    assert manifest["settings"]["max_tokens"] == 77
    assert manifest["settings"]["api_key"] == "[REDACTED]"
    assert b"CANARY" not in whole_database(lab.directory)


async def test_O01_attempts_of_a_call_that_succeeded_in_the_end_keep_no_secret(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    limited = RateLimitError(f"key {PLAIN_KEY} is over its limit", details={"key": PLAIN_KEY})
    engine = lab.engine(lab.define([attempts(error(limited), final("x"))], model_settings=SETTINGS))
    result = await lab.run(engine, stream=True)
    assert result.output == "x"
    first, _ = lab.store.model_calls("ex1")[0].attempts
    assert "is over its limit" in first["error"]["message"]
    assert "CANARY" not in everything_shown(lab, await lab.read_events(engine), result, caplog, id="ex1")
    assert b"CANARY" not in whole_database(lab.directory)


async def test_O01_the_model_is_still_called_with_its_key(lab: Any) -> None:
    got: list[Any] = []

    class Spy(ScriptedModel):
        async def complete(self, request: Any) -> Any:
            got.append(dict(request.settings))
            return await super().complete(request)

    await lab.run(lab.engine(lab.define(Spy([final("x")]), model_settings=SETTINGS)))
    assert got == [SETTINGS]


async def test_O01_sensitive_arguments_and_results_are_not_shown(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    script = [
        calls(
            call("login", {"user": "ann", "password": ARGUMENT}),
            call("login", {"user": "ann", "password": ARGUMENT, "fail": True}),
            call("login", {"user": "ann", "password": ["CANARY wrong type"]}),
            call("login", raw='{"password": "CANARY broken'),
            call("fetch_secret", {}),
        ),
        calls(call("change", {"password": ARGUMENT})),
        error(ModelError("the provider broke")),
    ]
    engine = lab.engine(lab.define(script, login, fetch_secret, change))
    await engine.start("ex1", "go", stream=True)
    waiting = await lab.suspension(engine)
    assert waiting.approvals[0].arguments == {"password": "[REDACTED]"}
    await lab.decide_all(engine)
    result = await lab.end(engine)
    shown = everything_shown(lab, await lab.read_events(engine), result, caplog, id="ex1")
    assert "CANARY" not in shown
    assert "logged in with [REDACTED]" in shown
    assert "ann" in shown, "what is not secret is shown"
    model_saw = [m["content"] for m in lab.prompts()[-1] if m["role"] == "tool"]
    assert model_saw[0] == f"logged in with {ARGUMENT}"
    assert model_saw[4] == RESULT, "the model needs it"


@pytest.mark.parametrize(
    "secret", [48151623, 'CANARY "quoted" \\ value', "CANARY-long-" + "0123456789" * 400, {"pin": 48151623}]
)
@pytest.mark.parametrize("shown_chars", [50, None])
async def test_O01_hidden_arguments_are_found_in_results_however_they_are_written(
    lab: Any, caplog: pytest.LogCaptureFixture, secret: Any, shown_chars: int | None
) -> None:
    caplog.set_level(logging.DEBUG)

    @tool(redact_params=("secret",), on_error="suppress", max_result_chars=shown_chars)
    async def echo(secret: Any, context: ToolContext, fail: bool = False) -> dict[str, Any]:
        context.report_progress({"at": secret, "said": f"at {secret}"})
        if fail:
            raise KeyError(f"no '{secret}' here")
        return {"got": [secret], "said": f"it is {secret}"}

    batch = calls(call("echo", {"secret": secret}), call("echo", {"secret": secret, "fail": True}))
    result = await lab.run(lab.engine(lab.define([batch, final("done")], echo)))
    shown = everything_shown(lab, await lab.read_events(lab.engines[0]), result, caplog, id="ex1")
    shown += json.dumps([trace.to_wire() for trace in read_traces(lab.store)], default=str)
    assert "[REDACTED]" in shown
    assert "CANARY" not in shown
    assert "0123456789" not in shown
    assert "48151623" not in shown


async def test_O01_a_tool_failure_that_quotes_a_hidden_argument_ends_the_execution_without_it(
    lab: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)

    @tool(redact_params=("password",))
    def strict(password: str) -> str:
        raise ConnectionError(f"refused: {password}") from ValueError(f"inner {password}")

    engine = lab.engine(lab.define([calls(call("strict", {"password": ARGUMENT}))], strict))
    result = await lab.run(engine)
    assert result.error is not None
    assert "refused: [REDACTED]" in result.error.message
    shown = everything_shown(lab, await lab.read_events(engine), result, caplog, id="ex1")
    assert "CANARY" not in shown


async def test_O01_an_encrypted_store_holds_no_secret_in_any_file(lab: Any, tmp_path: Path) -> None:
    from phronomy_ray.store.content_keys import generate_content_key

    key = generate_content_key()
    directory = tmp_path / "encrypted"
    directory.mkdir()
    store = open_store(f"sqlite:///{directory}/agents.db", create=True, content_key=key)
    lab.store, lab.directory = store, directory
    script = [
        calls(
            call("login", {"user": "ann", "password": ARGUMENT}), call("fetch_secret", {}), text="CANARY text"
        ),
        calls(call("change", {"password": ARGUMENT})),
        final("CANARY output"),
    ]
    engine = lab.engine(
        lab.define(
            script, login, fetch_secret, change, instructions="CANARY instructions", model_settings=SETTINGS
        )
    )
    await engine.start("ex1", {"message": "CANARY input"}, durable_context={"secret": "CANARY context"})
    await lab.decide_all(engine)
    result = await lab.end(engine)
    assert result.output == "CANARY output"
    second = lab.engine(engine.definition)
    assert (await second.view("ex1")).output == "CANARY output"
    stored = whole_database(directory)
    assert len(stored) > 10_000
    assert b"CANARY" not in stored
    assert b"ex1" in stored, "ids stay readable"


async def test_O01_a_store_failure_shows_no_secret(lab: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    store = FaultyStore(lab.store)
    engine = lab.engine(lab.define([final("x")]), store=store)
    from phronomy_ray.errors import StoreUnavailableError

    broken = StoreUnavailableError("cannot reach postgresql://bob:CANARY-db-password@db/agents")
    store.always_fail("terminal", error=broken)
    await engine.start("ex1", "go", stream=True)
    events = await lab.read_events(engine)
    assert events[-1].type is EventType.ERROR
    shown = json.dumps([event.to_wire() for event in events]) + json.dumps(engine.status())
    shown += " ".join(record.getMessage() for record in caplog.records)
    assert "CANARY" not in shown


def whole_database(directory: Path) -> bytes:
    """Every byte of the database's files, and every value in it (SQLite may break a long one into pages)."""
    parts = [file.read_bytes() for file in directory.glob("agents.db*")]
    connection = sqlite3.connect(directory / "agents.db")
    try:
        names = [row[0] for row in connection.execute("select name from sqlite_master where type = 'table'")]
        for name in names:
            for row in connection.execute(f'select * from "{name}"'):
                parts.append(repr(row).encode())
    finally:
        connection.close()
    return b"\n".join(parts)
