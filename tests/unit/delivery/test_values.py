"""Targets, event ids and signatures."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from phronomy_ray import Callback, EventType, Webhook, verify_webhook
from phronomy_ray.delivery.signing import signature
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.subscriptions import DeliveredEvent, Delivery, event_id, target_from_wire
from phronomy_ray.testing.store_samples import START, event

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "example.org"},
        {"url": "ftp://example.org/x"},
        {"url": "https://"},
        {"url": "https://example.org:99999/"},
        {"url": "https://example.org/a b"},
        {"url": "https://user:password@example.org/"},
        {"url": 7},
        {"url": "https://example.org", "secret_env": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw=="},
        {"url": "https://example.org", "events": "completed"},
        {"url": "https://example.org", "events": ["compleeted"]},
        {"url": "https://example.org", "events": ["token"]},
        {"url": "https://example.org", "timeout_s": 0},
        {"url": "https://example.org", "max_age_s": True},
        {"url": "https://example.org", "max_attempts": 0},
        {"url": "https://example.org", "max_attempts": 1.5},
    ],
)
def test_what_cannot_be_a_webhook(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidInputError) as found:
        Webhook(**wrong)
    assert "password" not in str(found.value).replace("a user or password", "")
    assert "MfKQ9" not in str(found.value)


@pytest.mark.parametrize("path", ["", "module", ":f", "module:", None])
def test_what_cannot_be_a_callback(path: Any) -> None:
    with pytest.raises(InvalidInputError):
        Callback(function=path)


@pytest.mark.parametrize(
    "target",
    [
        Webhook(url="http://127.0.0.1:8080/in?x=1", secret_env="S", events=[EventType.FAILED, "failed"]),
        Callback(function="audit:write", timeout_s=3, max_age_s=4.5, max_attempts=6),
    ],
)
def test_targets_travel_as_json(target: Any) -> None:
    wire = json.loads(json.dumps(target.to_wire()))
    assert target_from_wire(wire) == target
    assert len(target.events) <= 1


def test_an_event_has_one_id_for_ever_and_no_other_one_has_it() -> None:
    row = event("ex1", "alice", 1)
    assert event_id(row) == event_id(replace(row, payload={"other": 1}))
    others = [
        event("ex2", "alice", 1),
        event("ex1", "bob", 1),
        event("ex1", "alice", 2),
        replace(row, created_at=START + timedelta(microseconds=1)),
    ]
    assert len({event_id(item) for item in [row, *others]}) == 5


def test_every_attempt_posts_the_same_characters() -> None:
    row = event("ex1", "alice", 3, {"ü": [1, None]})
    bodies = {DeliveredEvent.of(Delivery(1, "s", row, attempts, START)).body() for attempts in (0, 7)}
    [body] = bodies
    assert json.loads(body) == {
        "type": "tool_result",
        "timestamp": START.isoformat(),
        "data": {
            "event_id": event_id(row),
            "agent_id": "alice",
            "execution_id": "ex1",
            "seq": 3,
            "payload": {"ü": [1, None]},
        },
    }


def test_a_type_that_only_a_newer_release_knows_is_delivered_as_it_is() -> None:
    told = DeliveredEvent.of(
        Delivery(1, "s", replace(event("ex1", "alice", 3), type="of_tomorrow"), 0, START)
    )
    assert told.type == "of_tomorrow"
    assert json.loads(told.body())["type"] == "of_tomorrow"


def test_the_signature_is_the_one_of_the_specification() -> None:
    """The example of Standard Webhooks."""
    secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
    body = b'{"test": 2432232314}'
    made = signature(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert made == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def signed(secret: str, **changes: str) -> dict[str, str]:
    seconds = int(NOW.timestamp())
    headers = {
        "Webhook-Id": "evt_1",
        "Webhook-Timestamp": str(seconds),
        "Webhook-Signature": signature(secret, "evt_1", seconds, b"body"),
    }
    return headers | changes


@pytest.mark.parametrize(("sender", "receiver"), [("a", "a"), ("new old", "old"), ("old", "new old")])
def test_a_receiver_knows_its_sender_also_while_a_secret_is_replaced(sender: str, receiver: str) -> None:
    assert verify_webhook(signed(sender), b"body", secret=receiver, now=NOW) == "evt_1"


@pytest.mark.parametrize(
    ("headers", "body", "now"),
    [
        (signed("other"), b"body", NOW),
        (signed("secret"), b"body!", NOW),
        (signed("secret", **{"Webhook-Id": "evt_2"}), b"body", NOW),
        (signed("secret"), b"body", NOW + timedelta(minutes=6)),
        (signed("secret"), b"body", NOW - timedelta(minutes=6)),
        (signed("secret", **{"Webhook-Signature": ""}), b"body", NOW),
        (signed("secret", **{"Webhook-Signature": "v1,ü"}), b"body", NOW),
        (signed("secret", **{"Webhook-Timestamp": "soon"}), b"body", NOW),
        ({}, b"body", NOW),
    ],
)
def test_what_comes_from_somebody_else_is_refused(
    headers: dict[str, str], body: bytes, now: datetime
) -> None:
    with pytest.raises(InvalidInputError) as found:
        verify_webhook(headers, body, secret="secret", now=now)
    assert found.value.code == "webhook_signature"


def test_a_secret_that_is_no_base64_is_refused() -> None:
    with pytest.raises(InvalidInputError):
        signature("whsec_???", "evt_1", 1, b"")
