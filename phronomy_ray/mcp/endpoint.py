"""Where an MCP server is and how it is started or reached: the part of a declaration that a gateway process needs.

Values only; the secrets in it (environment, headers, credentials of an address) are in no ``repr`` and no error text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from phronomy_ray.canonical_json import content_hash, dumps
from phronomy_ray.redaction import REDACTED, redact_text

#: Secrets shorter than this are not searched for in texts: they would blank ordinary words.
MIN_SECRET_CHARS = 6


class Transport(StrEnum):
    """How messages reach a server."""

    #: A child process; messages are lines on its standard input and output.
    STDIO = "stdio"
    #: Streamable HTTP.
    HTTP = "streamable_http"


@dataclass(frozen=True, slots=True)
class McpEndpoint:
    """One MCP server, as a gateway opens it."""

    #: Name of the server, as the agent's author gave it.
    name: str
    #: Program and arguments of a stdio server; empty for an HTTP one.
    command: tuple[str, ...] = field(default=(), repr=False)
    #: Address of an HTTP server; empty for a stdio one.
    url: str = field(default="", repr=False)
    #: Variables added to the small environment that a stdio server inherits (PATH, HOME, USER, ...).
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Headers of every request to an HTTP server.
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    #: Working directory of a stdio server; that of the gateway when ``None``.
    cwd: str | None = None
    #: Limit of starting a server and shaking hands, in seconds.
    connect_timeout_s: float = 30.0
    #: Close a connection that has not been used for so long, in seconds; ``None`` keeps it.
    idle_close_s: float | None = None

    @property
    def transport(self) -> Transport:
        """How it is reached."""
        return Transport.STDIO if self.command else Transport.HTTP

    @property
    def origin(self) -> str:
        """What people and policies may see: the program's name, or scheme, host and port without path or credentials."""
        if self.command:
            return self.command[0].rsplit("/", 1)[-1]
        parts = urlsplit(self.url)
        port = f":{parts.port}" if parts.port is not None else ""
        return f"{parts.scheme}://{parts.hostname or ''}{port}"

    @property
    def fingerprint(self) -> str:
        """Hash that is the same for endpoints between which a caller could not tell a difference."""
        return content_hash(
            dumps(
                {
                    "name": self.name,
                    "command": self.command,
                    "url": self.url,
                    "env": dict(self.env),
                    "headers": {name.lower(): value for name, value in self.headers.items()},
                    "cwd": self.cwd,
                }
            )
        )

    @property
    def secrets(self) -> frozenset[str]:
        """Exact texts that must not appear anywhere else."""
        found = {*self.env.values(), *self.headers.values()}
        # "Bearer abc" is searched for as a whole and by its last word
        found |= {value.rpartition(" ")[2] for value in self.headers.values()}
        if self.url:
            parts = urlsplit(self.url)
            found |= {parts.password or "", parts.username or ""}
            found |= {value for _, value in parse_qsl(parts.query)}
        return frozenset(text for text in found if len(text) >= MIN_SECRET_CHARS)

    def clean(self, text: str) -> str:
        """`text`, an error's or a log line, without this endpoint's secrets and without what looks like one."""
        return redact_text(text, self.secrets)

    def clean_result(self, value: Any) -> Any:
        """A JSON value from the server in which this endpoint's own secrets are blanked, and nothing else is touched."""
        return _without(value, sorted(self.secrets, key=len, reverse=True))


def _without(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, str):
        for secret in secrets:
            value = value.replace(secret, REDACTED)
        return value
    if isinstance(value, dict):
        return {key: _without(item, secrets) for key, item in value.items()}
    return [_without(item, secrets) for item in value] if isinstance(value, list) else value
