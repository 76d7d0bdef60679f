"""Tool names: what providers accept, and how a name is derived from a text that they would refuse.

Providers take 1 to 64 letters, digits, ``_`` or ``-`` and answer anything else with an error at run time that names no tool.
So a name that somebody wrote down is checked when the tool is made, and a name that is derived (from a class, a function, a
server's tool with a prefix) is made legal here, and nowhere else.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from phronomy_ray.errors import ConfigurationError

MAX_NAME_CHARS = 64
_LEGAL = re.compile(rf"[A-Za-z0-9_-]{{1,{MAX_NAME_CHARS}}}")
_ILLEGAL_CHARS = re.compile(r"[^A-Za-z0-9_-]+")
_HASH_CHARS = 8
_RULE = f"1 to {MAX_NAME_CHARS} letters, digits, '_' or '-'"


def is_tool_name(name: object) -> bool:
    """Whether every provider accepts `name`."""
    return isinstance(name, str) and _LEGAL.fullmatch(name) is not None


def check_tool_name(name: Any, *, what: str = "tool name") -> str:
    """`name`, if every provider accepts it.

    Raises:
        ConfigurationError: it is no text or not legal.
    """
    if not is_tool_name(name):
        raise ConfigurationError(f"{what} {name!r} is not allowed: {_RULE} (give name=...)")
    return str(name)


def derive_tool_name(text: str, *, prefix: str = "") -> str:
    """A legal tool name for `prefix` + `text`: the text itself where it is legal.

    Otherwise illegal characters become ``_``, the whole is cut, and a hash of the full text is put behind it, so that two
    texts which look alike after that stay two names. The same text gives the same name in every process and release.
    """
    whole = prefix + text
    if is_tool_name(whole):
        return whole
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_CHARS]
    stem = _ILLEGAL_CHARS.sub("_", whole)[: MAX_NAME_CHARS - _HASH_CHARS - 1].strip("_") or "tool"
    return f"{stem}_{digest}"


def snake_case(class_name: str) -> str:
    """``ReadFile`` as ``read_file``, ``HTTPGet`` as ``http_get``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower()
