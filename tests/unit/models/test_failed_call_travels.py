"""A model call that failed for good reaches another process, and the store, as plain JSON."""

from __future__ import annotations

import json
import pickle

import pytest

from phronomy_ray.errors import ErrorRecord, TransportError
from phronomy_ray.messages import Message
from phronomy_ray.models.port import ModelRequest
from phronomy_ray.models.script import http_error
from phronomy_ray.models.scripted import ScriptedModel


async def test_its_attempts_do_not_contain_themselves() -> None:
    model = ScriptedModel([http_error(503)])
    request = ModelRequest("c", 1, "m", [Message.user("hi").to_wire()], max_retries=1)
    with pytest.raises(TransportError) as caught:
        await model.complete(request)
    arrived = pickle.loads(pickle.dumps(caught.value))
    attempts = arrived.details.pop("attempts")
    assert [attempt["number"] for attempt in attempts] == [1, 2]
    json.dumps([attempts, ErrorRecord.from_exception(arrived).to_wire()])
    assert all("attempts" not in (attempt["error"].get("details") or {}) for attempt in attempts)
