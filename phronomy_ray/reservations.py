"""Executions by an id that was fixed beforehand, as values: the reservation, and what is stored under the id.

Follows Phronomy's reserved executions (2.8 of its contract). A reservation is a plain value: whoever holds it may keep it anywhere
before anything is sent, and the store alone says whether its id is spent.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from phronomy_ray.canonical_json import check_format, to_json_value
from phronomy_ray.errors import InvalidInputError, NotFoundError, SerializationError, StateConflictError
from phronomy_ray.ids import check_id
from phronomy_ray.results import RunResult

WIRE_FORMAT = 1


@dataclass(frozen=True, slots=True)
class ReservedExecution:
    """An execution id that belongs to one agent and has not been sent anywhere yet.

    Raises:
        InvalidInputError: an id is not one, or the correlation is no JSON mapping.
    """

    agent_id: str
    execution_id: str
    #: What it is a part of, as a JSON mapping in the words of a coordinator; ``None``: it stands alone.
    correlation: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        check_id(self.agent_id, "agent_id")
        check_id(self.execution_id, "execution_id")
        object.__setattr__(self, "correlation", check_correlation(self.correlation))

    def check_agent(self, agent_id: str) -> None:
        """Raise `InvalidInputError` when it is another agent's."""
        if self.agent_id != agent_id:
            raise InvalidInputError(f"the reservation is one of agent {self.agent_id!r}, not of {agent_id!r}")

    def to_wire(self) -> dict[str, Any]:
        """JSON form."""
        return {
            "v": WIRE_FORMAT,
            "agent_id": self.agent_id,
            "execution_id": self.execution_id,
            "correlation": self.correlation,
        }

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ReservedExecution:
        """Inverse of `to_wire`. Raises `SerializationError` for a newer format."""
        check_format(wire, WIRE_FORMAT, "the reservation")
        return cls(wire["agent_id"], wire["execution_id"], wire["correlation"])


def check_correlation(value: object) -> dict[str, Any] | None:
    """A correlation as plain JSON. Raises `InvalidInputError`."""
    if value is None:
        return None
    try:
        plain = to_json_value(value)
    except SerializationError as error:
        raise InvalidInputError(f"correlation must be plain JSON: {error.message}") from error
    if not isinstance(plain, dict):
        raise InvalidInputError(f"correlation must be a mapping, not {type(value).__name__}")
    return plain


class ObservedState(StrEnum):
    """How far an execution is, for whoever asks by its id."""

    #: Nothing is stored under the id. A store that could not be read is an error and never this.
    ABSENT = "absent"
    #: A request waits for its turn under the id.
    QUEUED = "queued"
    ACTIVE = "active"
    #: It waits for a human.
    SUSPENDED = "suspended"
    TERMINAL = "terminal"


@dataclass(frozen=True, slots=True)
class ExecutionObservation:
    """What the store held under an execution id at one moment."""

    execution_id: str
    state: ObservedState
    #: The execution as stored; ``None`` when absent.
    result: RunResult | None = None
    #: The reservation that it was started with, or one that fits it; ``None`` when absent.
    reservation: ReservedExecution | None = None
    #: Whether its end was asked for. Once it was, it stays so.
    cancellation_requested: bool = False
    #: Why, in the words of whoever came first.
    cancellation_reason: str | None = field(default=None)

    @property
    def agent_id(self) -> str | None:
        """Whose execution it is; ``None`` when absent."""
        return self.result.agent_id if self.result is not None else None

    @property
    def is_absent(self) -> bool:
        """Whether nothing is stored under the id: it may still be started."""
        return self.state is ObservedState.ABSENT

    @property
    def is_queued(self) -> bool:
        """Whether it waits for its turn."""
        return self.state is ObservedState.QUEUED

    @property
    def is_active(self) -> bool:
        """Whether it works, whoever holds it."""
        return self.state is ObservedState.ACTIVE

    @property
    def is_suspended(self) -> bool:
        """Whether it waits for a human."""
        return self.state is ObservedState.SUSPENDED

    @property
    def is_terminal(self) -> bool:
        """Whether it has ended."""
        return self.state is ObservedState.TERMINAL

    @property
    def is_continuable(self) -> bool:
        """Whether an owner of the agent goes on with it: it is stored, has not ended, and is not asked to end."""
        is_open = self.is_queued or self.is_active or self.is_suspended
        return is_open and not self.cancellation_requested

    def value(self) -> RunResult:
        """The result of an execution that has ended well.

        Raises:
            NotFoundError: nothing is stored under the id.
            StateConflictError: it has not ended.
            the stored error of a failed, cancelled or blocked one, with its class and code.
        """
        if self.result is None:
            raise NotFoundError(
                f"no execution {self.execution_id!r} is stored", details={"execution_id": self.execution_id}
            )
        if not self.is_terminal:
            raise StateConflictError(
                f"execution {self.execution_id} has not ended: it is {self.result.status.value}",
                details={"execution_id": self.execution_id, "status": self.result.status.value},
            )
        return self.result.raise_for_status()


__all__ = ["ExecutionObservation", "ObservedState", "ReservedExecution", "check_correlation"]
