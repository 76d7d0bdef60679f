"""Messages and usage: what goes out on the wire comes back the same, and nothing malformed comes in."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_ray.canonical_json import dumps, loads
from phronomy_ray.errors import InvalidConversationError
from phronomy_ray.messages import Message, Role, ToolCallRequest, Usage

CALLS = st.builds(ToolCallRequest, id=st.text(min_size=1), name=st.text(), arguments=st.text())
MESSAGES = st.one_of(
    st.builds(Message.system, st.text()),
    st.builds(Message.user, st.text()),
    st.builds(Message.assistant, st.none() | st.text(), st.lists(CALLS, max_size=4).map(tuple)),
    st.builds(Message.tool, st.text(min_size=1), st.text()),
)
TOKENS = st.integers(0, 10**9)
USAGES = st.builds(Usage, TOKENS, TOKENS, TOKENS, TOKENS, TOKENS)


@given(MESSAGES)
def test_a_message_survives_the_wire_and_the_store(message: Message) -> None:
    assert Message.from_wire(message.to_wire()) == message
    assert Message.from_wire(loads(dumps(message.to_wire()))) == message


@given(MESSAGES)
def test_the_wire_form_has_calls_and_answers_only_where_they_belong(message: Message) -> None:
    wire = message.to_wire()
    assert wire["role"] == message.role.value
    assert ("tool_calls" in wire) == bool(message.tool_calls)
    assert ("tool_call_id" in wire) == (message.role is Role.TOOL)


@given(st.lists(CALLS, min_size=1, max_size=8))
def test_calls_keep_their_order_and_their_argument_text(calls: list[ToolCallRequest]) -> None:
    back = Message.from_wire(Message.assistant(None, tuple(calls)).to_wire())
    assert [call.id for call in back.tool_calls] == [call.id for call in calls]
    assert [call.arguments for call in back.tool_calls] == [call.arguments for call in calls]


def test_a_message_is_taken_as_it_is() -> None:
    message = Message.user("hello")
    assert Message.from_wire(message) is message


def test_a_message_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Message.user("hello").content = "other"  # type: ignore[misc]


@pytest.mark.parametrize(
    "wire",
    [
        None,
        "hello",
        ["user", "hello"],
        {},
        {"role": "robot", "content": "x"},
        {"role": 1, "content": "x"},
        {"role": "user", "content": 1},
        {"role": "user", "content": [{"type": "text", "text": "x"}]},
        {"role": "tool", "content": "x", "tool_call_id": 7},
        {"role": "assistant", "tool_calls": ["call"]},
        {"role": "assistant", "tool_calls": [{"id": "a"}]},
        {"role": "assistant", "tool_calls": [{"id": "", "function": {"name": "t", "arguments": ""}}]},
        {"role": "assistant", "tool_calls": [{"function": {"name": "t", "arguments": ""}}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"arguments": ""}}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "t", "arguments": {"x": 1}}}]},
    ],
)
def test_a_malformed_message_is_refused(wire: Any) -> None:
    with pytest.raises(InvalidConversationError) as refused:
        Message.from_wire(wire)
    assert isinstance(refused.value, ValueError)


@given(USAGES, USAGES, USAGES)
def test_usage_adds_up_in_any_order(one: Usage, two: Usage, three: Usage) -> None:
    assert (one + two) + three == one + (two + three) == three + one + two
    assert one + Usage() == one


@given(USAGES)
def test_usage_survives_the_wire(usage: Usage) -> None:
    assert Usage.from_wire(usage.to_wire()) == usage
    assert set(usage.to_wire()) == {field.name for field in dataclasses.fields(Usage)}


def test_missing_usage_is_zero() -> None:
    assert Usage.from_wire(None) == Usage.from_wire({}) == Usage()
