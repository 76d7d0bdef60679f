"""Secrets out of text and values, before they reach an error, a log, an event or the store.

Two ways that complement each other: by *shape* (`redact_text` knows what keys, tokens and authorisation headers look like, and
takes exact values known to be secret) and by *name* (`redact_fields` replaces the values of fields named like secrets).
Neither is a proof that a text holds no secret. Pure functions; linear in the length of the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from phronomy_ray.canonical_json import clean_text, dumps, to_json_value
from phronomy_ray.errors import ErrorRecord, SerializationError

REDACTED = "[REDACTED]"
#: Exact secrets shorter than this are not searched for: they would blank ordinary words.
MIN_SECRET_CHARS = 4
#: A text that was cut is shorter than this, and so is what it holds of a secret.
MAX_TORN_CHARS = 10_000
MAX_DEPTH = 100

#: Field names (lower case, ``_`` for ``-``) whose values are secrets wherever they stand.
SECRET_FIELD_NAMES = frozenset(
    {
        "access_token",
        "api_key",
        "apikey",
        "auth_token",
        "authorization",
        "aws_access_key_id",
        "aws_secret_access_key",
        "aws_session_token",
        "azure_ad_token",
        "client_secret",
        "cookie",
        "openai_api_key",
        "password",
        "private_key",
        "proxy_authorization",
        "refresh_token",
        "secret",
        "secret_key",
        "set_cookie",
        "token",
        "vertex_credentials",
        "x_api_key",
    }
)

#: Provider settings that hold secrets: the names above, and headers as a whole.
SECRET_SETTINGS = SECRET_FIELD_NAMES | {"default_headers", "extra_headers", "headers"}

_NAMED = (
    r"(?:api[_-]?key|access[_-]?token|auth[_-]?token|refresh[_-]?token|id[_-]?token|session[_-]?token|client[_-]?secret"
    r"|secret(?:[_-]?access)?[_-]?key|private[_-]?key|secret|password|passwd|token)"
)
#: What is written the same way everywhere.
_PLAIN = re.compile(r"[ -!#-&(-\[\]-~]*")
_PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = (
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.*?(?:-----END [A-Z ]{0,30}PRIVATE KEY-----|\Z)", re.S
        ),
        REDACTED,
    ),
    # "Authorization: Basic dXNlcjpw", also inside JSON or a Python dict.
    (
        re.compile(r"(?i)(authorization[\"']?\s{0,3}[:=]\s{0,3}[\"']?)((?:[a-z]+ )?[^\s\"',;}]+)"),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"(?i)\b(bearer\s{1,3})[a-z0-9._~+/=*-]{4,}"), rf"\1{REDACTED}"),
    # name=value, name: value, "name": "value"; the name may have a prefix such as OPENAI_.
    (
        re.compile(rf"(?i)({_NAMED}[\"']?\s{{0,3}}[:=]\s{{0,3}}[\"']?)(?!\[REDACTED)[^\s\"',;&}}\])]+"),
        rf"\1{REDACTED}",
    ),
    (re.compile(r"\b(?:sk|pk|rk)-[A-Za-z0-9_*-]{6,}"), REDACTED),
    (re.compile(r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"), REDACTED),
    (re.compile(r"\bAIza[0-9A-Za-z_-]{30,}"), REDACTED),
    (re.compile(r"\b(?:gh[opsur]_|github_pat_|hf_|xox[abprs]-)[A-Za-z0-9_-]{10,}"), REDACTED),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{4,}\.[A-Za-z0-9_-]*"), REDACTED),
    # user:password@ in a URL
    (re.compile(r"(://)[^\s/:@]{1,200}:[^\s/@]{1,200}@"), rf"\1{REDACTED}@"),
)


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` with everything that looks like a secret, and every exact value of `secrets`, replaced by ``[REDACTED]``.

    A value is also found as JSON or Python would write it, and at the end of a text that was cut in the middle of it.
    """
    spelt = {form for secret in secrets if len(secret) >= MIN_SECRET_CHARS for form in _spellings(secret)}
    for secret in sorted(spelt, key=len, reverse=True):
        text = text.replace(secret, REDACTED)
    for secret in spelt:
        text = _without_torn(text, secret)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    return text


def _spellings(secret: str) -> set[str]:
    """`secret`, and how it looks inside a JSON text or a ``repr``, also when such a text was written so once more."""
    forms = {secret}
    if _PLAIN.fullmatch(secret):
        return forms
    for _ in range(2):
        forms |= {
            spelt
            for form in forms
            for spelt in (
                json.dumps(form)[1:-1],
                json.dumps(form, ensure_ascii=False)[1:-1],
                repr(form)[1:-1],
                repr(f"\"'{form}")[4:-1],  # as it is where both quotes occur
            )
        }
    return forms


def _without_torn(text: str, secret: str) -> str:
    """`text` without the beginning of `secret` at its end, where something was cut (and perhaps marked with ``…``)."""
    end = len(text.removesuffix("…"))
    start = text.find(secret[:MIN_SECRET_CHARS], max(0, end - min(len(secret), MAX_TORN_CHARS)), end)
    while start >= 0:
        if secret.startswith(text[start:end]):
            return text[:start] + REDACTED + text[end:]
        start = text.find(secret[:MIN_SECRET_CHARS], start + 1, end)
    return text


def redact_fields(value: Any, names: Collection[str] = SECRET_FIELD_NAMES) -> Any:
    """A copy of a JSON-like value in which each field named in `names` holds ``[REDACTED]``, at any depth.

    Names are compared without regard to case and to ``-`` against ``_``. ``None`` stays ``None``: an absent secret is
    no secret. What is not a mapping, list or tuple is returned as it is.
    """
    return _redact(value, _normal_set(frozenset(names)), 0)


def restore_fields(shown: Any, original: Any, names: Collection[str]) -> Any:
    """`shown`, an edited copy of ``redact_fields(original, names)``, with the values behind its masks put back.

    Raises:
        ValueError: a mask stands where it hides nothing of `original`, or in a changed list, where nobody can tell which value
            was meant; the text is its place.
    """
    return _restore(shown, original, _normal_set(frozenset(names)), "$")


def _restore(shown: Any, original: Any, names: frozenset[str], place: str) -> Any:
    if isinstance(shown, Mapping):
        known = original if isinstance(original, Mapping) else {}
        restored = {}
        for key, item in shown.items():
            inner = f"{place}.{key}"
            if item == REDACTED and isinstance(key, str) and _normal(key) in names:
                if known.get(key) is None:
                    raise ValueError(inner)
                restored[key] = known[key]
            else:
                restored[key] = _restore(item, known.get(key), names, inner)
        return restored
    if isinstance(shown, list | tuple):
        # compared as JSON: in Python 1, 1.0 and True are equal, and such an edit would be lost
        if isinstance(original, list | tuple) and dumps(shown) == dumps(_redact(original, names, 0)):
            return original
        return [_restore(item, None, names, f"{place}[{index}]") for index, item in enumerate(shown)]
    return shown


def redact_json(value: Any, secrets: Iterable[str] = ()) -> Any:
    """A copy of a JSON-like value whose texts have gone through `redact_text`; of its numbers those are hidden that are
    among `secrets`.
    """
    secrets = frozenset(secrets)

    def inner(item: Any, depth: int) -> Any:
        if depth > MAX_DEPTH:
            return REDACTED
        if isinstance(item, Mapping):
            return {
                redact_text(key, secrets) if isinstance(key, str) else key: inner(part, depth + 1)
                for key, part in item.items()
            }
        if isinstance(item, list | tuple):
            return [inner(part, depth + 1) for part in item]
        if isinstance(item, str):
            return redact_text(item, secrets)
        return REDACTED if is_secret_number(item, secrets) else item

    return inner(value, 0)


def is_secret_number(value: Any, secrets: Collection[str]) -> bool:
    """Whether `value` is a number whose text is among `secrets`, and long enough to be one."""
    text = number_text(value)
    return len(text) >= MIN_SECRET_CHARS and text in secrets


def number_text(value: Any) -> str:
    """A number as it stands in texts; empty for anything else."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else ""


def secret_values(value: Any, names: Collection[str] = SECRET_FIELD_NAMES) -> frozenset[str]:
    """The texts and numbers that stand in fields named in `names`, at any depth: what `redact_text` should search for.

    Of a header value such as ``Bearer abc`` the part after the scheme is included too.
    """
    found: set[str] = set()
    for text in _secrets(value, _normal_set(frozenset(names)), False, 0):
        found.add(text)
        _, _, rest = text.partition(" ")
        if rest.strip():
            found.add(rest.strip())
    return frozenset(found)


def environment_secrets(environment: Mapping[str, str]) -> frozenset[str]:
    """Values of environment variables that are named like keys (``OPENAI_API_KEY``, ``..._TOKEN``, ``..._SECRET``)."""
    endings = (
        "_API_KEY",
        "_TOKEN",
        "_SECRET",
        "_SECRET_KEY",
        "_SECRET_ACCESS_KEY",
        "_PASSWORD",
        "_ACCESS_KEY_ID",
    )
    return frozenset(
        value for name, value in environment.items() if name.upper().endswith(endings) and len(value) >= 8
    )


@lru_cache(maxsize=256)
def _normal_set(names: frozenset[str]) -> frozenset[str]:
    """The names of a tool's or a setting's secrets, which are few and asked for several times in every turn."""
    return frozenset(_normal(name) for name in names)


def _normal(name: str) -> str:
    return name.lower().replace("-", "_")


def redact_error(record: ErrorRecord, secrets: Iterable[str] = ()) -> ErrorRecord:
    """`record` as it can be stored and shown: plain JSON, legal text, without the `secrets` and what looks like one."""
    secrets = tuple(secrets)

    def clean(text: str) -> str:
        return redact_text(clean_text(text), secrets)

    details = record.details
    if details is not None:
        try:
            details = redact_json(to_json_value(details), secrets)
        except SerializationError as error:
            details = {"details_lost": error.message}
    return ErrorRecord(
        clean(record.type),
        clean(record.code),
        clean(record.message),
        tuple(redact_error(cause, secrets) for cause in record.causes),
        clean(record.traceback),
        details,
    )


def _redact(value: Any, names: frozenset[str], depth: int) -> Any:
    if depth > MAX_DEPTH:
        return REDACTED
    if isinstance(value, Mapping):
        return {
            key: REDACTED
            if isinstance(key, str) and _normal(key) in names and item is not None
            else _redact(item, names, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_redact(item, names, depth + 1) for item in value]
    return value


def _secrets(value: Any, names: frozenset[str], inside: bool, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, str):
        if inside:
            yield value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            secret = inside or (isinstance(key, str) and _normal(key) in names)
            yield from _secrets(item, names, secret, depth + 1)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _secrets(item, names, inside, depth + 1)
    elif inside and (text := number_text(value)):
        yield text
