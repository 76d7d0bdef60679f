"""O01 (the pure half): secrets are found by shape, by name and by value."""

from __future__ import annotations

import pytest

from phronomy_ray.redaction import (
    REDACTED,
    environment_secrets,
    redact_fields,
    redact_text,
    secret_values,
)


@pytest.mark.parametrize(
    "text",
    [
        "Incorrect API key provided: sk-CANARY.",
        "Incorrect API key provided: sk-proj-CANARY_12-3",
        "Incorrect key: sk-CANA****ARY1",
        "headers={'Authorization': 'Bearer CANARY.x-y'}",
        '{"authorization": "Basic CANARY=="}',
        "Authorization: CANARY",
        "GET http://x/?api_key=CANARY&y=1",
        "OPENAI_API_KEY=CANARY",
        "x-api-key: CANARY",
        '{"password": "CANARY"}',
        "bearer CANARYCANARY",
        "AKIAIOSFODNNCANARYXX",
        "aws_secret_access_key = CANARY/abc",
        "eyJhbGciOiJIUzI1.eyJzdWIiOiJDQU5BUlki.CANARY",
        "ghp_CANARYCANARY123",
        "postgres://user:CANARY@host/db",
        "-----BEGIN RSA PRIVATE KEY-----\nCANARY\n-----END RSA PRIVATE KEY-----",
    ],
)
def test_O01_secrets_are_found_by_shape(text: str) -> None:
    redacted = redact_text(text)
    assert "CANARY" not in redacted
    assert "CANA" not in redacted
    assert REDACTED in redacted
    assert redact_text(redacted) == redacted


@pytest.mark.parametrize(
    "text",
    [
        "a risk-averse task-force on a desk-mounted mask",
        "max_tokens=4096 exceeds the limit of 2048 tokens",
        "connection refused: http://127.0.0.1:8080/v1",
        "the bear carried on",
        "",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert redact_text(text) == text


def test_O01_known_values_are_found_whatever_they_look_like() -> None:
    assert (
        redact_text("got hunter22 and hunter2", ["hunter2", "hunter22", "a"])
        == f"got {REDACTED} and {REDACTED}"
    )
    settings = {
        "api_key": "plain-value",
        "extra_headers": {"Authorization": "Custom tail-value"},
        "temperature": 1,
    }
    values = secret_values(settings)
    assert values == {"plain-value", "Custom tail-value", "tail-value"}
    assert environment_secrets(
        {"OPENAI_API_KEY": "longsecret", "PATH": "/usr/bin/long", "X_TOKEN": "short"}
    ) == {"longsecret"}


def test_O01_fields_are_redacted_by_name_at_any_depth() -> None:
    value = {"a": [{"X-Api-Key": "v", "b": ({"password": ["p", 1]},)}], "token": None, 3: "x", "api_key": ""}
    assert redact_fields(value) == {
        "a": [{"X-Api-Key": REDACTED, "b": [{"password": REDACTED}]}],
        "token": None,
        3: "x",
        "api_key": REDACTED,
    }
    assert redact_fields({"Card-Number": "4", "api_key": "k"}, ["card_number"]) == {
        "Card-Number": REDACTED,
        "api_key": "k",
    }
    circle: dict[str, object] = {}
    circle["self"] = circle
    assert redact_fields(circle)


def test_long_hostile_text_is_linear() -> None:
    assert redact_text("eyJ" + "a" * 200_000)
    assert redact_text("-----BEGIN " * 2_000)
    assert redact_text("authorization" * 20_000)
