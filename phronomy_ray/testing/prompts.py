"""The rule that every provider has for a prompt."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any


def check_paired(messages: Sequence[dict[str, Any]]) -> None:
    """Every call is answered once, directly behind its message and in its order; nothing else is answered.

    Also: ids of one message differ, arguments are a JSON object, system messages come first, a user speaks first, and no
    message of the model is empty.

    Raises:
        AssertionError: a provider would refuse the prompt; says which message.
    """
    open_ids: list[str] = []
    for index, message in enumerate(messages):
        role = message["role"]
        if role == "tool":
            assert open_ids, f"message {index} answers {message['tool_call_id']!r}, nothing is open"
            assert message["tool_call_id"] == open_ids.pop(0), f"message {index} answers out of order"
            assert isinstance(message["content"], str), f"message {index} answers with no text"
            continue
        assert not open_ids, f"message {index} ({role}) stands before the answers to {open_ids}"
        calls = message.get("tool_calls", ())
        if role == "assistant":
            assert message.get("content") or calls, f"message {index} of the model is empty"
        else:
            assert not calls, f"message {index} ({role}) makes calls"
        if role == "system":
            assert all(item["role"] == "system" for item in messages[:index]), (
                f"message {index}: a system message in the middle"
            )
        open_ids = [call["id"] for call in calls]
        assert all(open_ids), f"message {index} makes a call without an id"
        assert len(set(open_ids)) == len(open_ids), f"two calls of message {index} share an id"
        for call in calls:
            arguments = call["function"]["arguments"]
            assert isinstance(json.loads(arguments), dict), f"message {index}: arguments {arguments!r}"
    assert not open_ids, f"unanswered: {open_ids}"
    spoken = [message["role"] for message in messages if message["role"] != "system"]
    assert spoken, "a prompt without a word"
    assert spoken[0] == "user", f"the first word is the {spoken[0]}'s"
