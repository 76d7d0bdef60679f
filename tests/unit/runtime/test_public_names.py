"""What ``dir()`` shows of the objects that a driver holds is what the guide describes."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from phronomy_ray import Agent
from phronomy_ray.runtime.agent_handle import AgentHandle

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guide"


@pytest.fixture
def handle() -> AgentHandle:
    runtime: Any = SimpleNamespace(store=None, directory=None, _bridge=None, _open_scopes=None)
    return AgentHandle(runtime, "a1")


def public(thing: Any) -> set[str]:
    return {name.removesuffix("_async") for name in dir(thing) if not name.startswith("_")}


def test_an_agents_handle(handle: AgentHandle) -> None:
    assert public(handle) == {
        "actor", "add_knowledge", "agent_id", "approval_wait", "approve", "approve_hosted", "cancel", "clear_knowledge",
        "clear_transcript", "close", "execution", "hosted", "invoke", "pending_approvals", "purge", "queued_requests", "release", "reserve",
        "reset_context", "resolve", "resume", "retain", "retentions", "start", "start_hosted", "start_reserved", "status", "transcript", "transcript_messages", "unload", "unpark",
    }  # fmt: skip


def test_an_executions_handle(handle: AgentHandle) -> None:
    assert public(handle.execution("ex1")) == {
        "agent", "approve", "cancel", "events", "execution_id", "result", "status", "view", "wait"
    }  # fmt: skip


def test_every_attribute_of_an_agent_class_is_described() -> None:
    page = (GUIDE / "agents.md").read_text(encoding="utf-8")
    missing = [
        name for name in public(Agent) - {"definition", "as_tool"} if not re.search(rf"`{name}\b", page)
    ]
    assert missing == []
