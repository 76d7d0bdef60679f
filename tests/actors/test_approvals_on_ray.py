"""Approvals across processes: edits, mixed answers and standing rules, with the agent killed in between."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S, recorded
from ray_testbed.fixtures import kill_actor

from phronomy_ray import Runtime
from phronomy_ray.errors import InvalidInputError, StateConflictError

Names = Callable[[str], str]


def test_edits_mixed_answers_and_rules_survive_the_loss_of_the_process(
    runtime: Runtime, new_id: Names
) -> None:
    agent = runtime.create(Puppet, new_id("alice"))
    batch = [("send", {"text": "one"}), ("note", {"text": "free"}), ("send", {"text": "two"})]
    handle = agent.start(turn(batch))
    first, second = handle.wait("suspended", PATIENCE_S).approvals
    assert first.batch_id == second.batch_id
    with pytest.raises(InvalidInputError, match="edited arguments do not fit"):
        handle.approve(first.approval_request_id, edited_arguments={"text": 7})
    answered = handle.approve(
        first.approval_request_id, edited_arguments={"text": "edited"}, decided_by="ann", reason="safer"
    )
    assert answered.suspended
    assert answered.decision is not None
    assert answered.decision.edited_arguments == {"text": "edited"}
    kill_actor(agent.agent_id)
    again = runtime.approve(
        handle.execution_id, first.approval_request_id, edited_arguments={"text": "edited"}, decided_by="eve"
    )
    assert again.decision is not None
    assert again.decision.decided_by == "ann", "the decision survived its process"
    with pytest.raises(StateConflictError, match="already approved by ann"):
        agent.approve(handle.execution_id, first.approval_request_id, approved=False)
    agent.approve(handle.execution_id, second.approval_request_id, approved=False, reason="once is enough")
    result = handle.result(PATIENCE_S)
    told = [message.content or "" for message in result.messages if message.role == "tool"]
    assert told[0].endswith("sent edited")
    assert told[1] == "noted free"
    assert told[2].endswith("Reason: once is enough")
    assert [item["text"] for item in recorded(agent.agent_id, "send")] == ["edited"]

    rule = runtime.rules.allow("send", agent_id=agent.agent_id, created_by="ann")
    assert agent.invoke(turn([("send", {"text": "ruled"})]), timeout=PATIENCE_S).output == "done"
    runtime.rules.revoke(rule.rule_id, revoked_by="ann")
    runtime.rules.refuse("note", agent_id=agent.agent_id, created_by="ann", reason="no notes")
    refused = agent.invoke(turn([("note", {"text": "never"})]), timeout=PATIENCE_S)
    assert refused.rejected
    assert [item["text"] for item in recorded(agent.agent_id, "send")] == ["edited", "ruled"]
    assert [item["text"] for item in recorded(agent.agent_id, "note")] == ["free"]
    assert agent.invoke(turn([("send", {"text": "asked"})]), timeout=PATIENCE_S).suspended
