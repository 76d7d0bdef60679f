"""Why an agent does not go on: every reason, with a command that helps, and what a repair may do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from phronomy_ray.errors import (
    CommitOutcomeUnknownError,
    ContentIntegrityError,
    ErrorRecord,
    NotFoundError,
    SchemaVersionError,
)
from phronomy_ray.journal import ExecutionStatus, Lifecycle, Phase, ToolCallStatus
from phronomy_ray.parking import ParkReason
from phronomy_ray.runtime.explaining import (
    Reason,
    Why,
    definition_reason,
    explain,
    may_wake,
    read_facts,
    store_reason,
)
from phronomy_ray.store.sql_store import SqlStore, open_store
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, Owner, owned


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqlStore]:
    opened = open_store(f"sqlite:///{tmp_path}/agents.db", create=True)
    yield opened
    opened.close()


@pytest.fixture
def owner(store: SqlStore) -> Owner:
    return owned(store)


def whys(owner: Owner, subject: str = "alice", **asked: Any) -> list[Why]:
    return [reason.why for reason in explain(read_facts(owner.store, subject), **asked)]


def test_nothing_to_do(owner: Owner) -> None:
    assert whys(owner) == [Why.IDLE]
    with pytest.raises(NotFoundError, match="neither an agent nor an execution"):
        read_facts(owner.store, "nobody")


def test_an_owner_that_is_gone_is_told_from_one_that_works(owner: Owner) -> None:
    owner.start("ex1")
    facts = read_facts(owner.store, "ex1")
    (gone,) = explain(facts, asked_live=True)
    assert gone.why is Why.OWNER_GONE
    assert "watch ex1" in gone.commands
    assert may_wake([gone])
    for quiet in (explain(facts), explain(facts, live={"epoch": 1}, asked_live=True)):
        assert [reason.why for reason in quiet] == [Why.RUNNING]
        assert not may_wake(quiet)


def test_what_waits_for_a_human_names_the_answers(owner: Owner) -> None:
    row = owner.start("ex1")
    asked, lost = samples.tool_call("ex1", "alice"), samples.tool_call("ex1", "alice", 1)
    request = samples.approval(asked)
    owner.append(
        new_model_calls=(samples.model_call("ex1"),),
        new_tool_calls=(asked, replace(lost, status=ToolCallStatus.UNKNOWN)),
        new_approvals=(request,),
    )
    owner.change(row, status=ExecutionStatus.SUSPENDED, phase=Phase.APPROVAL)
    owner.append(new_requests=(samples.queued_request("ex2"),))
    reasons = explain(read_facts(owner.store, "alice"), asked_live=True)
    assert [reason.why for reason in reasons] == [Why.APPROVAL, Why.RESOLUTION, Why.QUEUED]
    assert reasons[0].commands[0] == f"approve {request.approval_request_id}"
    assert reasons[1].commands == tuple(
        f"resolve ex1 {lost.tool_call_id} {outcome}" for outcome in ("succeeded", "failed", "not_performed")
    )
    assert "behind execution ex1" in reasons[2].text
    assert not may_wake(reasons)


def test_queued_requests_without_an_owner_and_with_a_taken_id(owner: Owner) -> None:
    bob = owned(owner.store, "bob")
    owner.append(new_requests=(samples.queued_request("ex1"), samples.queued_request("ex2", position=2)))
    bob.start("ex1")
    reasons = explain(read_facts(owner.store, "ex2"), asked_live=True)
    assert [reason.why for reason in reasons] == [Why.TAKEN, Why.QUEUED]
    assert may_wake(reasons)


def test_ends_and_lifecycles(owner: Owner) -> None:
    row = owner.start("ex1")
    owner.change(row, status=ExecutionStatus.FAILED, phase=Phase.ENDED, terminal_reason="failed")
    assert whys(owner, "ex1") == [Why.ENDED]
    owner.append(lifecycle=Lifecycle.CLOSED)
    assert whys(owner) == [Why.CLOSED]


def test_a_parked_agent_is_not_woken(owner: Owner) -> None:
    owner.start("ex1")
    owner.store.park_agent("alice", epoch=owner.epoch, reason=ParkReason("no_progress", "it crashes", START))
    reasons = explain(read_facts(owner.store, "alice"), asked_live=True)
    assert [reason.why for reason in reasons] == [Why.PARKED, Why.OWNER_GONE]
    assert (reasons[0].commands, "it crashes" in reasons[0].text) == (("unpark alice",), True)
    assert not may_wake(reasons)


def test_a_process_that_stopped(owner: Owner) -> None:
    facts = read_facts(owner.store, "alice")
    lost = ErrorRecord.from_exception(
        CommitOutcomeUnknownError("lost", details={"commit_id": "alice:1:1", "epoch": 1})
    )
    reasons = explain(facts, live={"error": lost.to_wire()}, asked_live=True)
    assert [reason.why for reason in reasons] == [Why.COMMIT_UNKNOWN]
    assert may_wake(reasons)
    other = explain(facts, live={"error": ErrorRecord("X", "x", "broken").to_wire()}, asked_live=True)
    assert [reason.why for reason in other] == [Why.STOPPED]


def test_a_class_of_another_version_and_one_that_is_not_here(owner: Owner) -> None:
    root = owner.store.load_root("alice")
    gone = definition_reason(replace(root, class_path="no_such_module:Clerk"))
    assert gone is not None
    assert gone.why is Why.CLASS_UNAVAILABLE
    script = definition_reason(replace(root, class_path=""))
    assert script is not None
    assert "script" in script.text
    wrong = definition_reason(replace(root, class_path="phronomy_ray.cli.demo.agent:Surveyor"))
    assert wrong is not None
    assert wrong.why is Why.WRONG_DEFINITION
    assert "stored as 'sample' version '1'" in wrong.text
    owner.start("ex1")
    reasons = explain(
        read_facts(owner.store, "alice"), definition=Reason(Why.WRONG_DEFINITION, "v1"), asked_live=True
    )
    assert [reason.why for reason in reasons] == [Why.WRONG_DEFINITION, Why.OWNER_GONE]
    assert not may_wake(reasons)


def test_an_execution_with_instance_options_is_left_to_who_has_them(owner: Owner) -> None:
    owner.start("ex1", state={"options": {"input_filters": ["f"]}})
    reasons = explain(read_facts(owner.store, "alice"), asked_live=True)
    assert [reason.why for reason in reasons] == [Why.INSTANCE_OPTIONS, Why.OWNER_GONE]
    assert not may_wake(reasons)


def test_a_store_that_cannot_be_read() -> None:
    assert store_reason(SchemaVersionError("old")).commands == ("db upgrade",)
    assert store_reason(ContentIntegrityError("key")).why is Why.CONTENT_KEY
    assert store_reason(CommitOutcomeUnknownError("x")).why is Why.STORE
