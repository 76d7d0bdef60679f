"""Values that travel between an agent and whatever runs its tools: invocation, context, outcome.

Plain and picklable: nothing live crosses to a worker, and what comes back has been turned into JSON and text there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from operator import attrgetter
from typing import Any, TypeAlias

from phronomy_ray.clock import utc_now
from phronomy_ray.errors import CancellationError, ErrorRecord, InvalidInputError
from phronomy_ray.journal import ToolCallStatus

#: One dispatch of one call: its id and the number of the attempt.
CallKey: TypeAlias = tuple[str, int]
#: Longest report of progress, in characters of JSON text.
MAX_PROGRESS_CHARS = 10_000


class TravelsAsCall:
    """Base of frozen dataclasses that cross processes by the hundred: pickled as a call of their class with their fields.

    What `dataclasses` generates for classes with slots asks for the fields of the class once per value, in Python.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[type[Any], tuple[Any, ...]]:
        cls = type(self)
        values = _VALUES_OF.get(cls)
        if values is None:
            values = _VALUES_OF[cls] = attrgetter(*(item.name for item in fields(cls)))  # type: ignore[arg-type]
        return cls, values(self)


_VALUES_OF: dict[type[Any], attrgetter[tuple[Any, ...]]] = {}


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool body may know of the call that it serves.

    A tool asks for it by a parameter annotated ``ToolContext``; the parameter never appears in the schema and the
    model can neither set nor shadow it.
    """

    agent_id: str
    execution_id: str
    tool_call_id: str
    #: The same for every attempt of this call, also after a crash; new for a new call. Pass it on to the outside.
    idempotency_key: str
    #: 1 for the first dispatch of this call.
    attempt: int
    #: The execution's durable context, as given to ``start``; ``None`` when there was none.
    durable_context: dict[str, Any] | None = None
    #: Seconds that the body may take.
    timeout_s: float | None = None
    #: When the present attempt, or its execution, is over its time (aware UTC, by the clock of the process that runs it).
    deadline: datetime | None = None
    #: Whether the execution has been cancelled; cheap, may be polled by a long-running body.
    is_cancelled: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)
    #: Tells observers how far the body is: plain JSON of at most `MAX_PROGRESS_CHARS` characters, else
    #: `SerializationError`. A live event ``tool_progress``, never stored; from any thread. Not from tools in a task of their
    #: own (``cpu_bound``, or with ``ray_options``), whose reports are dropped.
    report_progress: Callable[[Any], None] = field(default=lambda value: None, compare=False, repr=False)

    @property
    def remaining_s(self) -> float | None:
        """Seconds until `deadline`, 0 when it has passed; what a body may spend and give to whom it calls. ``None``: no limit."""
        if self.deadline is None:
            return None
        return max(0.0, (self.deadline - utc_now()).total_seconds())

    def raise_if_cancelled(self) -> None:
        """Raise `CancellationError` when the execution has been cancelled; the call is recorded as cancelled then."""
        if self.is_cancelled():
            raise CancellationError("the execution was cancelled")


@dataclass(frozen=True, slots=True)
class ToolSettings:
    """What the runtime and the agent's instance set for every call; one object for all calls of a batch."""

    #: How much of a result the model is shown, in characters, for tools that set no limit of their own.
    max_result_chars: int | None = None
    #: Result filters of the agent's instance; they follow those of the tool and of the agent's class.
    result_filters: tuple[Callable[..., Any], ...] = ()


@dataclass(frozen=True, slots=True)
class ToolInvocation(TravelsAsCall):
    """One dispatch of one tool call."""

    tool_call_id: str
    #: Name within the agent's definition (alias applied).
    tool_name: str
    #: Validated JSON arguments.
    arguments: dict[str, Any]
    agent_id: str
    execution_id: str
    #: From 1; an outcome of an older attempt is ignored.
    attempt: int
    durable_context: dict[str, Any] | None = None
    #: Run it apart from others: its last attempt ended with the death of the worker that it shared.
    alone: bool = False
    #: What is set beside the definition; ``None`` for nothing.
    settings: ToolSettings | None = None
    #: Ownership epoch of the agent; a dispatch of an owner that has been replaced must not start any more.
    epoch: int = 0
    #: Key in the tool registry, by which a worker gets the same tool (`tools.resolve`); empty for the class's own one.
    registry_key: str = ""
    #: Seconds that the execution may still take by its caller's word, as it is dispatched; ``None`` for no limit.
    budget_s: float | None = None

    @property
    def key(self) -> CallKey:
        """What its outcome must carry."""
        return self.tool_call_id, self.attempt


@dataclass(frozen=True, slots=True)
class ToolStarted:
    """Observation: a body has begun. Live only."""

    tool_call_id: str
    attempt: int
    node: str
    pid: int
    started_at: str


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """Observation: how far a body says it is. Live only."""

    tool_call_id: str
    attempt: int
    #: Plain JSON.
    value: Any


@dataclass(frozen=True, slots=True)
class ToolOutcome(TravelsAsCall):
    """What became of one dispatch."""

    tool_call_id: str
    attempt: int
    #: A settled status or `ToolCallStatus.UNKNOWN`.
    status: ToolCallStatus
    #: What the model is told, cut to the tool's limit.
    model_text: str = ""
    #: The full result as JSON; ``None`` for a failure.
    result: Any = None
    error: ErrorRecord | None = None
    #: Where and when the body ran (wall clock of the worker, ISO 8601 UTC), empty when it never started.
    node: str = ""
    pid: int = 0
    started_at: str = ""
    ended_at: str = ""
    #: Whether `model_text` is a part of the whole result.
    truncated: bool = False

    @property
    def key(self) -> CallKey:
        """The dispatch that it is about."""
        return self.tool_call_id, self.attempt


@dataclass(frozen=True, slots=True)
class ToolLate:
    """A body ended after its outcome had been decided (timed out, cancelled, given up): recorded, without effect."""

    tool_call_id: str
    attempt: int
    execution_id: str
    #: What the outcome would have been, or ``abandoned``: the execution did not wait for its end any longer.
    status: str
    #: When the body really ended (ISO 8601 UTC).
    ended_at: str


@dataclass(frozen=True, slots=True)
class Attachment:
    """What an executor knows of calls that an earlier owner dispatched; a call in neither set is lost."""

    #: They still run, or their outcome was kept: each gives one outcome.
    attached: frozenset[CallKey] = frozenset()
    #: Certainly never begun, and fenced off: they can be dispatched whatever their replay rule.
    not_started: frozenset[CallKey] = frozenset()


class Resolution(StrEnum):
    """A human's word on a call whose outcome nobody knows."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    #: It is run again.
    NOT_PERFORMED = "not_performed"

    @classmethod
    def of(cls, word: str) -> Resolution:
        """The member that `word` names. Raises `InvalidInputError`."""
        try:
            return cls(word)
        except ValueError:
            raise InvalidInputError(f"outcome must be one of {', '.join(cls)}, not {word!r}") from None


class ToolOrigin(StrEnum):
    """Where a tool comes from, for whoever decides about its calls."""

    LOCAL = "local"
    MCP = "mcp"
    AGENT = "agent"
