"""Subscriptions as values: who is to be told of durable events, for certain and in order, and what became of it.

The fact that an event has to be delivered is written by the transaction that writes the event, so neither is ever there without the
other. Delivery is at least once: whoever receives keeps the `event_id` of what it has dealt with and drops what comes again.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from phronomy_ray.canonical_json import check_format, dumps
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.events import LIVE_EVENTS, EventType
from phronomy_ray.journal import EventRow

WIRE_FORMAT = 1
#: How long an event is tried to be delivered, in seconds: three days.
DEFAULT_MAX_AGE_S = 259_200.0
DEFAULT_TIMEOUT_S = 10.0
_KNOWN = frozenset(EventType)
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """What both kinds of targets have in common."""

    #: Types of events that are delivered; empty for all durable ones.
    events: Collection[EventType | str] = ()
    #: Limit of one attempt, in seconds.
    timeout_s: float = DEFAULT_TIMEOUT_S
    #: How long one event is tried, from its commit, before it becomes a dead letter, in seconds; at least one attempt is made.
    max_age_s: float = DEFAULT_MAX_AGE_S
    #: How many attempts one event is given; ``None`` for as many as `max_age_s` allows.
    max_attempts: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "events", _types(self.events))
        for name in ("timeout_s", "max_age_s"):
            value: object = getattr(self, name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < float(value) < float("inf"):  # type: ignore[arg-type]
                raise InvalidInputError(f"{name} must be a positive number of seconds, not {value!r}")
        attempts: object = self.max_attempts
        if attempts is not None and (
            isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1
        ):
            raise InvalidInputError(f"max_attempts must be a positive whole number or None, not {attempts!r}")

    def wants(self, type: str) -> bool:
        """Whether events of this type are delivered."""
        return not self.events or type in self.events

    def _common(self) -> dict[str, Any]:
        return {
            "v": WIRE_FORMAT,
            "events": [str(item) for item in self.events],
            "timeout_s": self.timeout_s,
            "max_age_s": self.max_age_s,
            "max_attempts": self.max_attempts,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook(_Target):
    """An HTTP endpoint that events are posted to, signed as the Standard Webhooks specification says.

    Raises:
        InvalidInputError: a value cannot be used; a URL with a user or password in it is refused, since it would be stored.
    """

    #: ``https://...`` (or ``http://``). It is stored as it is: what must stay secret belongs into `secret_env`.
    url: str
    #: Name of the environment variable of the *delivering* process that holds the signing secret (``whsec_<base64>``, or any
    #: text); empty for unsigned deliveries. The secret itself is never stored.
    secret_env: str = ""

    def __post_init__(self) -> None:
        _Target.__post_init__(self)
        _check_url(self.url)
        if self.secret_env and not _ENV_NAME.fullmatch(self.secret_env):
            raise InvalidInputError("secret_env must be the name of an environment variable, not a secret")

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON, without any secret."""
        return {"kind": "webhook", "url": self.url, "secret_env": self.secret_env, **self._common()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Callback(_Target):
    """A function that is called with a `DeliveredEvent`, plain or async, in the delivering process; it returning is the receipt.

    Raises:
        InvalidInputError: a value cannot be used.
    """

    #: ``module:function``, to be imported where events are delivered.
    function: str

    def __post_init__(self) -> None:
        _Target.__post_init__(self)
        path: object = self.function
        if not (isinstance(path, str) and all(path.partition(":"))):
            raise InvalidInputError(f"function must be 'module:function', not {path!r}")

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"kind": "callback", "function": self.function, **self._common()}


Target: TypeAlias = Webhook | Callback


def target_from_wire(wire: Mapping[str, Any]) -> Target:
    """The inverse of ``to_wire``. Raises `SerializationError` for a newer format."""
    given = dict(wire)
    check_format(given, WIRE_FORMAT, "the subscription")
    kind = given.pop("kind")
    del given["v"]
    return Webhook(**given) if kind == "webhook" else Callback(**given)


@dataclass(frozen=True, slots=True)
class Subscription:
    """One target under its id."""

    subscription_id: str
    target: Target
    #: Events that are committed later are delivered.
    created_at: datetime


@dataclass(frozen=True, slots=True)
class SubscriptionLease:
    """Who delivers for a subscription just now. One at a time: whoever takes over raises the epoch, and an older epoch records nothing."""

    subscription: Subscription
    #: Name of the deliverer; empty when nobody has it.
    holder: str
    epoch: int
    #: Signs of life in this epoch.
    beats: int


@dataclass(frozen=True, slots=True)
class SubscriptionState:
    """A subscription, for people."""

    subscription: Subscription
    #: Who delivers; empty for nobody.
    holder: str
    #: Events that are still to be delivered, and when the oldest of them was committed (or redelivered).
    waiting: int
    oldest_waiting_at: datetime | None
    #: Events that were given up.
    dead: int

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        oldest = self.oldest_waiting_at
        return {
            "subscription_id": self.subscription.subscription_id,
            "target": self.subscription.target.to_wire(),
            "created_at": self.subscription.created_at.isoformat(),
            "holder": self.holder,
            "waiting": self.waiting,
            "oldest_waiting_at": oldest.isoformat() if oldest is not None else None,
            "dead": self.dead,
        }


@dataclass(frozen=True, slots=True)
class DeliveryError:
    """Why an attempt failed; never with what the receiver answered, or with a secret."""

    #: ``timeout``, ``unreachable``, ``http_status``, ``secret_missing``, ``callback_failed``, ...
    code: str
    message: str
    #: HTTP status, if there was an answer.
    status: int | None = None

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"code": self.code, "message": self.message, "status": self.status}

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> DeliveryError:
        """The inverse of `to_wire`."""
        return cls(**wire)


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event on its way to one subscription, or a dead letter."""

    #: Greater than that of every earlier event of its agent.
    delivery_id: int
    subscription_id: str
    event: EventRow
    #: Attempts that have failed.
    attempts: int
    #: Since when it is tried: its commit, or when it was said to be delivered again.
    since: datetime
    #: Not before; ``None`` for at once.
    next_at: datetime | None = None
    error: DeliveryError | None = None
    #: When it was given up; ``None`` while it is tried.
    dead_at: datetime | None = None

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "delivery_id": self.delivery_id,
            "subscription_id": self.subscription_id,
            "event_id": event_id(self.event),
            "agent_id": self.event.agent_id,
            "execution_id": self.event.execution_id,
            "seq": self.event.seq,
            "type": self.event.type,
            "attempts": self.attempts,
            "error": self.error.to_wire() if self.error is not None else None,
            "dead_at": self.dead_at.isoformat() if self.dead_at is not None else None,
        }


@dataclass(frozen=True, slots=True)
class DeliveredEvent:
    """What a callback is given, and what the body of a webhook says."""

    #: The same at every delivery of this event, and of no other one: what to drop repetitions by.
    event_id: str
    agent_id: str
    execution_id: str
    seq: int
    #: An `EventType`, or the text of a type that only a newer release knows.
    type: EventType | str
    #: When it was committed.
    created_at: datetime
    #: From 1.
    attempt: int = 1
    payload: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, delivery: Delivery) -> DeliveredEvent:
        """The next attempt of a delivery."""
        row = delivery.event
        return cls(
            event_id(row),
            row.agent_id,
            row.execution_id,
            row.seq,
            EventType(row.type) if row.type in _KNOWN else row.type,
            row.created_at,
            delivery.attempts + 1,
            row.payload,
        )

    def body(self) -> str:
        """The JSON that is posted: the same characters at every attempt."""
        return dumps(
            {
                "type": str(self.type),
                "timestamp": self.created_at.isoformat(),
                "data": {
                    "event_id": self.event_id,
                    "agent_id": self.agent_id,
                    "execution_id": self.execution_id,
                    "seq": self.seq,
                    "payload": self.payload,
                },
            }
        )


def event_id(row: EventRow) -> str:
    """A stable name of a durable event. Its time is part of it: an execution's id may be used again after a purge."""
    facts = "\0".join((row.agent_id, row.execution_id, str(row.seq), row.created_at.isoformat()))
    return f"evt_{hashlib.sha256(facts.encode()).hexdigest()[:32]}"


def _types(given: object) -> tuple[EventType, ...]:
    if isinstance(given, str) or not isinstance(given, Collection):
        raise InvalidInputError(f"events must be a list of event types, not {given!r}")
    found = []
    for item in given:
        try:
            type_ = EventType(item)
        except ValueError:
            raise InvalidInputError(f"there are no events of type {item!r}") from None
        if type_ in LIVE_EVENTS:
            raise InvalidInputError(f"events of type {type_.value!r} are live only; they cannot be delivered")
        found.append(type_)
    return tuple(dict.fromkeys(found))


def _check_url(url: object) -> None:
    if not isinstance(url, str):
        raise InvalidInputError(f"url must be text, not {type(url).__name__}")
    try:
        parts = urlsplit(url)
        has_host = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        raise InvalidInputError("url is not a URL") from None
    if parts.scheme not in ("http", "https") or not has_host or any(char.isspace() for char in url):
        raise InvalidInputError("url must begin with http:// or https:// and name a host")
    if parts.username is not None or parts.password is not None:
        raise InvalidInputError("url must not hold a user or password: it is stored; sign with secret_env")


__all__ = [
    "Callback",
    "DeliveredEvent",
    "Delivery",
    "DeliveryError",
    "Subscription",
    "SubscriptionLease",
    "SubscriptionState",
    "Target",
    "Webhook",
    "event_id",
    "target_from_wire",
]
