"""The error taxonomy: one root, stable codes, and a plain record form that survives storage.

Every error the package raises on purpose derives from `PhronomyError`. An error carries

* ``code``: a stable, machine-readable reason (the class's default unless one is given),
* ``details``: JSON values that say which agent, execution, field or limit was involved,
* ``retryable``: whether repeating the same call later can succeed without changing it.

Errors cross process borders by pickle and reach the store as `ErrorRecord`, which keeps the class name, the
code and a bounded chain of causes. Reading one back gives the same class again (`ErrorRecord.to_exception`).
The split into configuration, provider, control, identity, tool and storage errors follows Phronomy's taxonomy.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import Any, ClassVar

MAX_CAUSES = 5
MAX_MESSAGE_CHARS = 2_000
MAX_TRACEBACK_CHARS = 4_000


class PhronomyError(Exception):
    """Root of every error that phronomy-ray raises on purpose."""

    default_code: ClassVar[str] = "phronomy_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str = "", *, code: str | None = None, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip().split("\n")[0])
        self.code: str = code or self.default_code
        self.details: dict[str, Any] = dict(details or {})

    @property
    def message(self) -> str:
        """The text without class name or code."""
        return str(self.args[0]) if self.args else ""

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.code, self.details))


def _rebuild(cls: type[PhronomyError], message: str, code: str, details: dict[str, Any]) -> PhronomyError:
    return cls(message, code=code, details=details)


# --- configuration and use -------------------------------------------------------------------------------------


class ConfigurationError(PhronomyError):
    """A definition, option or environment is wrong; nothing was started."""

    default_code = "configuration"


class AgentClosedError(ConfigurationError):
    """The agent was closed: it takes no more work, and its conversation is not edited any more."""

    default_code = "agent_closed"


class DefinitionUnavailableError(ConfigurationError):
    """The agent's class cannot be imported in the process that should run it."""

    default_code = "definition_unavailable"


class DefinitionVersionError(ConfigurationError):
    """The agent is stored, or live, under another definition or version than this class; nothing was changed."""

    default_code = "definition_version"


class DefinitionChangedError(ConfigurationError):
    """The tool is not the one that the stored call was made for: another schema or version, or it is gone."""

    default_code = "definition_changed"


class InvalidConversationError(PhronomyError, ValueError):
    """An imported conversation breaks the tool-exchange protocol."""

    default_code = "invalid_conversation"


class InvalidInputError(PhronomyError, ValueError):
    """An argument of a call has the wrong type or value."""

    default_code = "invalid_input"


class DimensionMismatchError(InvalidInputError):
    """A vector has another length than the vectors that it is to be stored or compared with."""

    default_code = "dimension_mismatch"


class EventLoopReentrancyError(PhronomyError, RuntimeError):
    """A blocking call was made on a running event loop; use the async form."""

    default_code = "event_loop_reentrancy"


class IllegalTransitionError(PhronomyError):
    """A state machine was asked for a move that its table does not allow."""

    default_code = "illegal_transition"


# --- model provider --------------------------------------------------------------------------------------------


class ModelError(PhronomyError):
    """The model call failed."""

    default_code = "model_error"


class TransportError(ModelError):
    """The model provider could not be reached or broke the connection."""

    default_code = "model_transport"
    retryable = True


class RateLimitError(TransportError):
    """The model provider refused the call for its rate limit."""

    default_code = "model_rate_limit"
    retryable = True


class ModelTimeoutError(TransportError, TimeoutError):
    """The model provider did not answer in time."""

    default_code = "model_timeout"
    retryable = True


class AuthenticationError(ModelError):
    """The model provider refused the credentials."""

    default_code = "model_authentication"


class ModelRequestError(ModelError):
    """The model provider refused the request as malformed."""

    default_code = "model_request"


class ContextLengthError(ModelError):
    """The model provider says that the input exceeds its context window."""

    default_code = "context_length"


class ContextBudgetExceededError(ModelError):
    """What must be sent does not fit the model's context window."""

    default_code = "context_budget_exceeded"


class EmptyResponseError(ModelError):
    """The model answered with neither text nor a tool call."""

    default_code = "empty_response"


class OutputTruncatedError(ModelError):
    """The model's answer was cut by the output token limit."""

    default_code = "output_truncated"


class MaxIterationsError(PhronomyError):
    """The execution used all its model calls without a final answer."""

    default_code = "max_iterations"


# --- control ---------------------------------------------------------------------------------------------------


class CancellationError(PhronomyError):
    """The execution was cancelled."""

    default_code = "cancelled"


class TurnTimeoutError(CancellationError, TimeoutError):
    """The turn did not end within its time and was cancelled."""

    default_code = "turn_timeout"


class DeadlineExceededError(CancellationError, TimeoutError):
    """The caller's deadline has passed: the execution was cancelled, or not even started."""

    default_code = "deadline_exceeded"


class WaitTimeoutError(PhronomyError, TimeoutError):
    """The wait ended before the awaited thing did; what was waited for goes on."""

    default_code = "wait_timeout"
    retryable = True


class ApprovalRejectedError(PhronomyError):
    """A human rejected a tool call and the execution ended."""

    default_code = "approval_rejected"


class BackpressureError(PhronomyError):
    """A bounded queue is full."""

    default_code = "backpressure"
    retryable = True


class OrderedDeliveryError(PhronomyError):
    """An `OrderedDelivery` accepts nothing more, or did not hand over everything."""

    default_code = "ordered_delivery"


class RuntimeShutdownError(PhronomyError):
    """The runtime is closed."""

    default_code = "runtime_shutdown"


# --- identity and admission ------------------------------------------------------------------------------------


class AgentAlreadyExistsError(PhronomyError):
    """An agent with this id exists, live or stored."""

    default_code = "agent_already_exists"


class AgentBusyError(PhronomyError):
    """The agent has a non-terminal execution, or cannot do this in its present state."""

    default_code = "agent_busy"
    retryable = True


class AgentRetainedError(AgentBusyError):
    """Somebody holds what is stored of the agent; it is deleted when every hold is released."""

    default_code = "agent_retained"

    @property
    def owners(self) -> tuple[str, ...]:
        """Owner keys of the holds."""
        return tuple(self.details.get("owners", ()))


class AgentUnloadedError(PhronomyError):
    """This actor has been unloaded; wake the agent and ask again."""

    default_code = "agent_unloaded"
    retryable = True


class AgentUnreachableError(PhronomyError):
    """The process of an agent, or the cluster under it, answered with a fault of its own: what became of the call is not known."""

    default_code = "agent_unreachable"


class HostClosedError(PhronomyError):
    """A host takes no more agents: it is being drained, or shut down."""

    default_code = "host_closed"
    retryable = True


class AgentParkedError(PhronomyError):
    """The agent was parked because its starts made no progress."""

    default_code = "agent_parked"


class ExecutionRehydrationRequiredError(PhronomyError):
    """Nobody holds this execution in memory; load its agent first."""

    default_code = "execution_rehydration_required"
    retryable = True


# --- tools and filters -----------------------------------------------------------------------------------------


class ToolError(PhronomyError):
    """A tool failed and its definition says that this ends the execution."""

    default_code = "tool_error"


class ToolTimeoutError(ToolError, TimeoutError):
    """A tool did not finish within its timeout."""

    default_code = "tool_timeout"


class CapabilityError(PhronomyError):
    """A capability of the agent could not be turned into a tool."""

    default_code = "capability"


class CapabilityUnavailable(CapabilityError):
    """No provider of the capability is available to this agent."""

    default_code = "capability_unavailable"


class CapabilityAmbiguous(CapabilityError):
    """Two providers of the capability have the same claim to it."""

    default_code = "capability_ambiguous"


class ToolNameCollisionError(ConfigurationError):
    """Two tools of one turn would be shown under the same name."""

    default_code = "tool_name_collision"


class CleanupError(ToolError):
    """A child agent has ended its work, but its process could not be freed.

    The work is done and its result is kept; only the unload is worth repeating (`Runtime.retry_unload`).
    """

    default_code = "child_cleanup"

    @property
    def child_agent_id(self) -> str:
        """The child."""
        return str(self.details.get("child_agent_id", ""))

    @property
    def child_execution_id(self) -> str:
        """The child's execution, whose result is stored."""
        return str(self.details.get("child_execution_id", ""))

    @property
    def result(self) -> dict[str, Any]:
        """How the child ended: ``status`` and ``output``."""
        found = self.details.get("result")
        return dict(found) if isinstance(found, dict) else {}

    @property
    def causes(self) -> tuple[ErrorRecord, ...]:
        """What each attempt to unload it failed with."""
        return tuple(ErrorRecord.from_wire(wire) for wire in self.details.get("causes", ()))


class ScopeCleanupError(PhronomyError):
    """A scope has ended, and some of the agents that it had woken could not be unloaded.

    Their work and what is stored of them is as it was; unloading them again is all that is left to do.
    """

    default_code = "scope_cleanup"

    @property
    def failures(self) -> dict[str, ErrorRecord]:
        """What the unload of each agent failed with, by agent id."""
        found = self.details.get("failures", {})
        return {agent_id: ErrorRecord.from_wire(wire) for agent_id, wire in found.items()}


class FilterBlockError(PhronomyError):
    """A filter blocked the value."""

    default_code = "filter_blocked"


class FilterError(PhronomyError):
    """A filter failed, which is not the same as blocking."""

    default_code = "filter_failed"


class HookError(PhronomyError):
    """A before_llm_input hook failed, or user code that prepares a turn did not return in time."""

    default_code = "hook_failed"


class RepeatedToolCallError(PhronomyError):
    """The model repeated the same tool calls after it had been warned; what was done is kept."""

    default_code = "repeated_tool_call"


# --- storage ---------------------------------------------------------------------------------------------------


class StoreError(PhronomyError):
    """The store refused or failed an operation."""

    default_code = "store_error"


class ConflictError(StoreError):
    """Another writer advanced what this commit was based on; nothing was written."""

    default_code = "conflict"


class StateConflictError(ConflictError):
    """The stored state differs from what the caller assumed."""

    default_code = "state_conflict"


class ApprovalExpiredError(StateConflictError):
    """The approval request expired before it was answered and counts as rejected."""

    default_code = "approval_expired"


class OwnershipLostError(StoreError):
    """A newer owner holds this agent; the commit was refused."""

    default_code = "ownership_lost"


class NotFoundError(StoreError):
    """The store has no such record."""

    default_code = "not_found"


class SerializationError(StoreError):
    """A value cannot be stored as canonical JSON, or a stored one cannot be read."""

    default_code = "serialization"


class ContentIntegrityError(StoreError):
    """Stored content does not match its hash or its key."""

    default_code = "content_integrity"


class SchemaVersionError(StoreError):
    """The database schema is older or newer than this release can use."""

    default_code = "schema_version"


class StoreUnavailableError(StoreError):
    """The database cannot be reached."""

    default_code = "store_unavailable"
    retryable = True


class CommitOutcomeUnknownError(StoreError):
    """The connection was lost during a commit, so it is not known whether it happened."""

    default_code = "commit_outcome_unknown"


class RemoteError(PhronomyError):
    """An error of a class that is not ours, kept by name, message and code."""

    default_code = "remote_error"

    @property
    def type_name(self) -> str:
        """Qualified name of the original class."""
        return str(self.details.get("type", "Exception"))


# --- record form -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ErrorRecord:
    """A failure as plain data: what the journal keeps and what crosses process borders."""

    #: Qualified class name, ``errors`` classes by their bare name.
    type: str
    #: Stable reason code.
    code: str
    #: Text, at most `MAX_MESSAGE_CHARS`.
    message: str
    #: Causes, nearest first, at most `MAX_CAUSES`.
    causes: tuple[ErrorRecord, ...] = ()
    #: Tail of the traceback where one is of use (tool bodies), else empty.
    traceback: str = ""
    #: JSON details of our own errors.
    details: dict[str, Any] | None = None

    @classmethod
    def from_exception(cls, error: BaseException, *, with_traceback: bool = False) -> ErrorRecord:
        """Describe `error` without keeping it; never raises, whatever the exception does."""
        causes: list[ErrorRecord] = []
        seen = {id(error)}
        cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
        while cause is not None and id(cause) not in seen and len(causes) < MAX_CAUSES:
            seen.add(id(cause))
            causes.append(cls(_type_name(cause), _code(cause), safe_message(cause)))
            cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
        trace = ""
        if with_traceback:
            trace = "".join(traceback.format_tb(error.__traceback__))[-MAX_TRACEBACK_CHARS:]
        # A copy: the error may get details later that hold this very record (a model call's attempts).
        details = dict(error.details) if isinstance(error, PhronomyError) else None
        return cls(
            _type_name(error), _code(error), safe_message(error), tuple(causes), trace, details or None
        )

    @property
    def told(self) -> str:
        """What people are told: the message, with the class before it when the error is not ours (``KeyError: 'x'``)."""
        if self.code != RemoteError.default_code:
            return self.message
        return f"{self.type}: {self.message}" if self.message else self.type

    def to_wire(self) -> dict[str, Any]:
        """The JSON form."""
        wire: dict[str, Any] = {"type": self.type, "code": self.code, "message": self.message}
        if self.causes:
            wire["causes"] = [cause.to_wire() for cause in self.causes]
        if self.traceback:
            wire["traceback"] = self.traceback
        if self.details:
            wire["details"] = self.details
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> ErrorRecord:
        """Inverse of `to_wire`; unknown keys are ignored."""
        return cls(
            type=str(wire.get("type", "Exception")),
            code=str(wire.get("code", "remote_error")),
            message=str(wire.get("message", "")),
            causes=tuple(cls.from_wire(cause) for cause in wire.get("causes", ())),
            traceback=str(wire.get("traceback", "")),
            details=wire.get("details"),
        )

    def to_exception(self) -> PhronomyError:
        """The error again: our class when it is one of ours (never imported by stored name), else `RemoteError`."""
        known = _known_classes().get(self.type)
        details = dict(self.details or {})
        if known is None:
            details["type"] = self.type
            error: PhronomyError = RemoteError(
                f"{self.type}: {self.message}", code=self.code, details=details
            )
        else:
            error = known(self.message, code=self.code, details=details)
        current: BaseException = error
        for cause in self.causes:
            nested = ErrorRecord(cause.type, cause.code, cause.message, details=cause.details).to_exception()
            current.__cause__ = nested
            current = nested
        return error


def safe_message(error: BaseException) -> str:
    """``str(error)`` bounded to `MAX_MESSAGE_CHARS`, also when ``__str__`` raises."""
    try:
        text = str(error)
    except BaseException as broken:  # noqa: BLE001 - a user's __str__ may raise anything; the record must still be made
        text = f"<message unavailable: __str__ raised {type(broken).__name__}>"
    return text if len(text) <= MAX_MESSAGE_CHARS else text[: MAX_MESSAGE_CHARS - 1] + "…"


def _type_name(error: BaseException) -> str:
    cls = type(error)
    if isinstance(error, PhronomyError) and cls.__name__ in _known_classes():
        return cls.__name__
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"


def _code(error: BaseException) -> str:
    try:
        code = getattr(error, "code", None)
    except BaseException:  # noqa: BLE001 - a user's property may raise anything
        code = None
    return code if isinstance(code, str) and code else RemoteError.default_code


def _known_classes() -> dict[str, type[PhronomyError]]:
    return {
        name: value
        for name, value in globals().items()
        if isinstance(value, type) and issubclass(value, PhronomyError)
    }
