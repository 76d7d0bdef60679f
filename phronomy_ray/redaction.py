"""Keeping secrets out of what people and logs see: by declared field name and by pattern."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

HIDDEN = "[REDACTED]"

_PATTERNS = re.compile(
    r"""
    \b(?:sk|pk|rk)-[A-Za-z0-9_\-]{6,}            # OpenAI, Anthropic, Stripe and the like
    | \b(?:ghp|gho|ghs|github_pat|xox[abps])[_-][A-Za-z0-9_\-]{8,}
    | \bAKIA[0-9A-Z]{16}\b
    | \beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]*   # JWT
    """,
    re.VERBOSE,
)
_NAMED = re.compile(
    r"""(?ix)
    ( (?: api[_-]?key | authorization | access[_-]?token | secret | password | bearer ) ["']? \s* [:=\s] \s* ["']?
      (?: bearer \s+ )? )
    ( [^\s"',;&]{4,} )
    """
)


def redact_text(text: str, secrets: Iterable[str] = ()) -> str:
    """`text` without the given `secrets` and without what looks like a key, token or password."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, HIDDEN)
    return _NAMED.sub(rf"\1{HIDDEN}", _PATTERNS.sub(HIDDEN, text))


def redact_fields(value: Any, names: Iterable[str]) -> Any:
    """A copy of plain JSON `value` in which every field named in `names`, at any depth, is hidden."""
    hidden = frozenset(names)
    if isinstance(value, dict):
        return {
            key: HIDDEN if key in hidden else redact_fields(item, hidden) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [redact_fields(item, hidden) for item in value]
    return redact_text(value) if isinstance(value, str) else value
