"""Everything under the new key, in small steps, while agents go on and whenever it is stopped."""

from __future__ import annotations

import base64
import contextlib
from typing import Any

import pytest

from phronomy_ray.approvals import RuleEffect, StandingRule
from phronomy_ray.canonical_json import content_hash
from phronomy_ray.errors import ConfigurationError, ContentIntegrityError, InvalidInputError
from phronomy_ray.retrieval import Document, SqlVectorStore
from phronomy_ray.store import reencryption
from phronomy_ray.store.codec import RowDecoder
from phronomy_ray.store.reencryption import SEALED, Reencrypted, Reencryption
from phronomy_ray.store.tables import metadata
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, owned

_OLD, _NEW, _LOST = (
    base64.urlsafe_b64encode(bytes(range(start, start + 32))).decode() for start in (0, 32, 64)
)
OLD, NEW, LOST = f"20_6:{_OLD}", f"2027:{_NEW}", f"1999:{_LOST}"
RING = f"{NEW},{OLD}"
#: The ring of a process that was not told yet to write with the new key.
BEFORE = f"{OLD},{NEW}"
LONG = "x" * 5000


def reencrypt(database: Any, key: str = RING, **arguments: Any) -> Reencrypted:
    run = Reencryption(database.url, content_key=key)
    try:
        return run.run(**arguments)
    finally:
        run.close()


def old_values(database: Any) -> int:
    """Values and ids under the old key, wherever they stand."""
    count = 0
    for table in metadata.tables.values():
        for column in table.columns:
            query = (
                f'SELECT count(*) FROM "{table.name}" WHERE '
                f"CAST(\"{column.name}\" AS TEXT) LIKE 'pc1.20\\_6.%' ESCAPE '\\' OR "
                f"CAST(\"{column.name}\" AS TEXT) LIKE 'hmac:20\\_6:%' ESCAPE '\\'"
            )
            count += database.sql(query)[0][0]
    return int(count)


def seen(store: Any, agent_id: str, *executions: str) -> list[Any]:
    """All that a reader is given of an agent."""
    return [
        store.load_root(agent_id),
        store.read_journal(agent_id, limit=10_000),
        *(
            (
                store.load_execution(execution),
                store.model_calls(execution),
                store.tool_calls(execution),
                store.approvals(execution_id=execution),
                store.events(execution),
            )
            for execution in executions
        ),
    ]


def written(database: Any, key: str, agent_id: str = "alice", prefix: str = "e") -> Owner:
    store = database.open(content_key=key)
    store.create_agent(samples.new_agent(agent_id, LONG, metadata={"who": "me"}))
    owner = Owner(store, agent_id)
    owner.claim()
    samples.write_everything(owner, "a word", prefix=prefix)
    return owner


@pytest.mark.parametrize("batch_rows", [1, 3, 200])
async def test_nothing_is_left_under_the_old_key_and_all_reads_as_before(
    database: Any, batch_rows: int
) -> None:
    store = written(database, OLD).store
    rule = StandingRule("r1", RuleEffect.ALLOW, "search", "bob", START, reason="why not")
    store.add_rule(rule)
    vectors = SqlVectorStore(database.url, "docs", content_key=OLD)
    await vectors.add([Document("d1", LONG, {"page": 1})], [[1.0, 0.0]])
    vectors.close()
    before = seen(store, "alice", "e1", "e2")
    assert old_values(database) > 40
    reports: list[int] = []
    done = reencrypt(database, batch_rows=batch_rows, on_progress=lambda found: reports.append(found.total))
    assert done.left == 0
    assert done.key_id == "2027"
    assert set(done.rows) == {sealed.table.name for sealed in SEALED} | {"contents"}
    assert reports == sorted(reports)
    assert reports[-1] == done.total
    assert old_values(database) == 0
    alone = database.open(content_key=NEW)
    assert seen(alone, "alice", "e1", "e2") == before
    assert alone.read_content(content_hash("a word")) == "a word"
    assert alone.list_rules() == [rule]
    vectors = SqlVectorStore(database.url, "docs", content_key=NEW)
    found = await vectors.search([1.0, 0.0], k=1)
    vectors.close()
    assert [(hit.document.text, hit.document.metadata) for hit in found] == [(LONG, {"page": 1})]
    with pytest.raises(ContentIntegrityError, match="another key"):
        database.open(content_key=OLD).load_root("alice")
    assert reencrypt(database).total == 0, "once is enough"


def test_every_column_that_is_sealed_is_known() -> None:
    """A column that no test fills would keep its old key: each text column is either listed or plain on purpose."""
    plain = {
        "agents": {"definition_version", "class_path", "lifecycle", "owner", "parked"},
        "executions": {"status", "phase", "terminal_reason"},
        "queued_requests": set(),
        "journal": {"kind", "channel", "role"},
        "model_calls": {"status", "usage"},
        "tool_calls": {"tool_name", "status", "replay", "schema_hash"},
        "approvals": {"tool_name", "status", "asked_by", "tool_origin"},
        "standing_rules": {"effect", "tool_name", "scope"},
        "events": {"type"},
        "vector_documents": set(),
    }
    for sealed in SEALED:
        keys = {column.name for column in sealed.table.primary_key}
        texts = {
            column.name
            for column in sealed.table.columns
            if str(column.type).startswith("TEXT") and not column.name.endswith(("_at", "_id"))
        }
        assert texts - keys == {*sealed.values, *sealed.references} | plain[sealed.table.name]


def test_agents_go_on_meanwhile(database: Any) -> None:
    """Each batch is followed by a commit, a claim and a read of the agent that is being written anew."""
    owner = written(database, OLD)
    live = Owner(database.open(content_key=RING), "alice")
    live.number = 1000
    live.claim()
    open_row = live.start("open", input=LONG, durable_context={"long": LONG})
    call = samples.tool_call("open", "alice", arguments={"q": LONG})
    live.append(new_model_calls=(samples.model_call("open"),), new_tool_calls=(call,))
    steps: list[int] = []

    def go_on(done: Reencrypted) -> None:
        steps.append(done.total)
        live.append(f"step {len(steps)}", LONG, contents=((content_hash("named"), "named"),))
        hydration = live.claim()
        assert hydration.execution == open_row
        assert hydration.tool_calls == (call,)
        assert live.store.read_journal("alice", limit=1)[0].content == LONG

    done = reencrypt(database, batch_rows=1, on_progress=go_on)
    assert done.left == 0
    assert len(steps) > 20
    assert old_values(database) == 0
    contents = [
        record.content for record in database.open(content_key=NEW).read_journal("alice", limit=10_000)
    ]
    assert [text for text in contents if str(text).startswith("step")] == [
        f"step {number}" for number in range(1, len(steps) + 1)
    ]
    assert owner.store.identity == live.store.identity


def test_a_stopped_run_is_gone_on_with(database: Any) -> None:
    before = seen(written(database, OLD).store, "alice", "e1", "e2")
    left = old_values(database)
    assert left > 0

    def stop(done: Reencrypted) -> None:
        raise KeyboardInterrupt

    while left:
        assert seen(database.open(content_key=RING), "alice", "e1", "e2") == before
        with contextlib.suppress(KeyboardInterrupt):
            reencrypt(database, batch_rows=15, on_progress=stop)
        now = old_values(database)
        assert now < left, "every run makes progress"
        left = now
    assert reencrypt(database).left == 0
    assert seen(database.open(content_key=NEW), "alice", "e1", "e2") == before


def test_two_runs_at_once_share_the_work(database: Any) -> None:
    before = seen(written(database, OLD).store, "alice", "e1", "e2")
    runs = samples.race(*(lambda: reencrypt(database, batch_rows=2),) * 2)
    assert [run.left for run in runs] == [0, 0]
    assert old_values(database) == 0
    assert seen(database.open(content_key=NEW), "alice", "e1", "e2") == before


def test_what_changes_while_it_is_written_anew_stays_changed(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compare and set: between the read of a row and its update somebody else has changed it."""
    owner = written(database, BEFORE)
    live = Owner(database.open(content_key=RING), "alice")
    live.number = 1000
    live.claim()
    row = live.start("open", state={"n": 0}, input="before")
    rewrite = Reencryption._rewrite
    changed: list[Any] = []

    def late(self: Any, sealed: Any, rows: Any) -> int:
        if sealed.table.name == "executions" and not changed:
            # with the old key, which a process may still hold, so that the row is not up to date afterwards either
            owner.claim()
            changed.append(owner.change(row, state={"n": 1}, output=LONG))
        return rewrite(self, sealed, rows)

    monkeypatch.setattr(Reencryption, "_rewrite", late)
    assert reencrypt(database).left == 0
    assert old_values(database) == 0
    assert database.open(content_key=NEW).load_execution("open") == changed[0]


def test_a_writer_with_the_old_key_loses_nothing(database: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It refers to a content that it finds in place, and the content goes away behind it."""
    owner = written(database, BEFORE)
    keep = Reencryption._keep
    written_late: list[int] = []

    def late(self: Any, rows: Any, *, and_delete: bool) -> None:
        if and_delete and not written_late:
            written_late.append(owner.append(LONG).expected_position + 1)
        keep(self, rows, and_delete=and_delete)

    monkeypatch.setattr(Reencryption, "_keep", late)
    assert reencrypt(database).left == 0
    assert old_values(database) == 0
    records = database.open(content_key=NEW).read_journal("alice", after=written_late[0] - 1)
    assert [record.content for record in records] == [LONG]


def test_whoever_goes_on_writing_with_the_old_key_is_reported(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = written(database, BEFORE)
    monkeypatch.setattr(reencryption, "_PAUSE_S", 0.0)
    move = Reencryption._move_contents

    def late(self: Any) -> int:
        owner.append("again")
        return move(self)

    monkeypatch.setattr(Reencryption, "_move_contents", late)
    done = reencrypt(database)
    assert done.left > 0
    monkeypatch.undo()
    with pytest.raises(ContentIntegrityError):
        database.open(content_key=NEW).load_root("alice")
    assert reencrypt(database).left == 0


def test_a_row_that_somebody_holds_is_not_waited_for(postgres_database: Any) -> None:
    """And it is not forgotten: it is written anew when it is free."""
    written(postgres_database, OLD)
    holder = postgres_database.engine().connect()
    transaction = holder.begin()
    holder.exec_driver_sql("SELECT * FROM executions WHERE execution_id = 'e1' FOR UPDATE")
    rounds: list[str] = []

    def release(done: Reencrypted) -> None:
        rounds.append(" ".join(done.rows))
        if "events" in rounds[-1] and transaction.is_active:  # the last table of the first round
            transaction.commit()
            holder.close()

    assert reencrypt(postgres_database, on_progress=release).left == 0
    assert not transaction.is_active
    assert old_values(postgres_database) == 0


def test_a_reader_between_the_two_statements_of_a_read_reads_again(
    database: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its row names a content that has another id since: only PostgreSQL's readers see both."""
    written(database, OLD)
    reader = database.open(content_key=RING)
    decoder = type(reader)._decoder
    interrupted: list[bool] = []

    def late(self: Any, connection: Any, wanted: Any) -> RowDecoder:
        if not interrupted and self is reader:
            interrupted.append(True)
            if database.url.startswith("postgresql"):
                reencrypt(database)
        return decoder(self, connection, wanted)

    monkeypatch.setattr(type(reader), "_decoder", late)
    assert reader.load_execution("e2").output == "a word" * 1000
    assert interrupted


def test_a_key_that_is_not_in_the_ring_stops_it_and_says_so(database: Any) -> None:
    written(database, OLD)
    written(database, f"{LOST},{OLD}", "carol", "c")
    with pytest.raises(ContentIntegrityError, match="'1999', which is not among"):
        reencrypt(database)
    assert reencrypt(database, f"{RING},{LOST}").left == 0


def test_a_store_without_a_key_and_a_bad_batch_are_refused(database: Any) -> None:
    owned(database.open())
    run = Reencryption(database.url)
    with pytest.raises(ConfigurationError, match="no content key"):
        run.run()
    with pytest.raises(InvalidInputError, match="one row or more"):
        reencrypt(database, batch_rows=0)
