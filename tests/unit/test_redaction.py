"""O01 (the pure half): secrets are found by shape, by name and by value."""

from __future__ import annotations

import json
from typing import Any

import pytest

from phronomy_ray.canonical_json import dumps
from phronomy_ray.redaction import (
    REDACTED,
    environment_secrets,
    redact_fields,
    redact_json,
    redact_text,
    restore_fields,
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


def test_masked_fields_are_restored_where_it_is_certain_what_they_hid() -> None:
    original = {"to": "a", "card": {"pin": "1", "n": 2}, "list": [{"pin": "3", "n": 4}], "pin": None}
    shown = redact_fields(original, ["pin"])
    assert restore_fields(shown, original, ["pin"]) == original
    edited = shown | {"to": "b", "card": shown["card"] | {"n": 5}}
    assert restore_fields(edited, original, ["pin"]) == original | {"to": "b", "card": {"pin": "1", "n": 5}}
    assert restore_fields({"pin": "9", "text": REDACTED}, original, ["pin"]) == {"pin": "9", "text": REDACTED}
    for wrong, place in (
        ({"pin": REDACTED}, r"\$\.pin"),
        ({"other": {"pin": REDACTED}}, r"\$\.other\.pin"),
        ({"list": [{"pin": REDACTED, "n": 5}]}, r"\$\.list\[0\]\.pin"),
    ):
        with pytest.raises(ValueError, match=place):
            restore_fields(wrong, original, ["pin"])


@pytest.mark.parametrize("wrap", [lambda item: item, lambda item: [item], lambda item: {"in": [item]}])
@pytest.mark.parametrize(("was", "edited"), [(1, True), (0, False), (True, 1), (1, 1.0)])
def test_an_edit_that_changes_only_the_type_is_an_edit(wrap: Any, was: object, edited: object) -> None:
    restored = restore_fields({"pin": REDACTED, "x": wrap(edited)}, {"pin": "1", "x": wrap(was)}, ["pin"])
    assert dumps(restored) == dumps({"pin": "1", "x": wrap(edited)})


def test_long_hostile_text_is_linear() -> None:
    assert redact_text("eyJ" + "a" * 200_000)
    assert redact_text("-----BEGIN " * 2_000)
    assert redact_text("authorization" * 20_000)


@pytest.mark.parametrize("secret", ['pa"ss', "pa'ss", "pa\"s's", "back\\slash", "two\nlines", "Größe-9"])
def test_O01_known_values_are_found_as_json_and_python_write_them(secret: str) -> None:
    value = {"said": f"it is {secret}!", "quotes": "\"'"}
    for text in (
        json.dumps(value),
        json.dumps(value, ensure_ascii=False),
        repr(value),
        str(KeyError(f"\"'{secret}")),
        json.dumps(json.dumps(value)),
        repr(json.dumps(value)),
    ):
        assert f"it is {REDACTED}!" in redact_text(text, {secret}) or text.startswith("'"), text
        assert redact_text(text, {secret}).count(REDACTED) == 1, text


@pytest.mark.parametrize("mark", ["", "…"])
@pytest.mark.parametrize("kept", [4, 5, 100, 999])
def test_O01_known_values_are_found_where_a_text_was_cut(kept: int, mark: str) -> None:
    secret = "cutcurb" + "0123456789" * 99
    assert redact_text(f"cut cut {secret[:kept]}{mark}", {secret}) == f"cut cut {REDACTED}{mark}"
    assert redact_text(f"cut cut {secret[:3]}{mark}", {secret}) == f"cut cut cut{mark}", (
        "it might be any word"
    )


def test_O01_known_numbers_are_found() -> None:
    secrets = secret_values({"pin": {"is": 87654321, "was": [1.25, True, None, 12]}}, {"pin"})
    assert secrets == {"87654321", "1.25", "12"}
    assert redact_text("87654321, 1.25, 12", secrets) == f"{REDACTED}, {REDACTED}, 12", "12 is too short"
    shown = redact_json({"87654321": [87654321, 12, 1.25, True, "at 87654321"]}, secrets)
    assert shown == {REDACTED: [REDACTED, 12, REDACTED, True, f"at {REDACTED}"]}
