"""Why an agent does not go on, and what helps: decided from what is stored, and from what its live process says where one is asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from phronomy_ray.definition.agent import import_agent
from phronomy_ray.engine.migrating import check_definition
from phronomy_ray.errors import (
    CommitOutcomeUnknownError,
    ConfigurationError,
    ContentIntegrityError,
    DefinitionUnavailableError,
    DefinitionVersionError,
    NotFoundError,
    PhronomyError,
    SchemaVersionError,
)
from phronomy_ray.journal import (
    AgentRoot,
    ApprovalRow,
    ExecutionRow,
    ExecutionStatus,
    Lifecycle,
    QueuedRequest,
    ToolCallRow,
    ToolCallStatus,
)
from phronomy_ray.store.port import Store


class Why(StrEnum):
    """Why an agent or an execution is where it is."""

    SCHEMA = "schema"
    CONTENT_KEY = "content_key"
    STORE = "store"
    CLOSED = "closed"
    PARKED = "parked"
    WRONG_DEFINITION = "wrong_definition"
    CLASS_UNAVAILABLE = "class_unavailable"
    INSTANCE_OPTIONS = "instance_options"
    APPROVAL = "approval"
    RESOLUTION = "resolution_required"
    CANCELLING = "cancelling"
    COMMIT_UNKNOWN = "commit_unknown"
    STOPPED = "stopped"
    OWNER_GONE = "owner_gone"
    RUNNING = "running"
    QUEUED = "queued"
    TAKEN = "queued_id_taken"
    ENDED = "ended"
    IDLE = "idle"


#: What `repair` may do something about: waking the agent settles it, and changes nothing that is known.
REPAIRED_BY_WAKING = frozenset({Why.COMMIT_UNKNOWN, Why.STOPPED, Why.OWNER_GONE, Why.QUEUED, Why.TAKEN})
#: As long as one of these holds, waking is of no use.
KEEPS_FROM_WAKING = frozenset(
    {Why.PARKED, Why.WRONG_DEFINITION, Why.INSTANCE_OPTIONS, Why.SCHEMA, Why.CONTENT_KEY, Why.STORE}
)


@dataclass(frozen=True, slots=True)
class Reason:
    """One reason."""

    why: Why
    #: For people.
    text: str
    #: ``phronomy`` commands that help, without the word itself; any one of them.
    commands: tuple[str, ...] = ()

    def to_wire(self) -> dict[str, Any]:
        """Plain JSON."""
        return {"why": self.why.value, "text": self.text, "commands": list(self.commands)}


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one agent."""

    root: AgentRoot
    execution: ExecutionRow | None = None
    approvals: tuple[ApprovalRow, ...] = ()
    unknown_calls: tuple[ToolCallRow, ...] = ()
    queue: tuple[QueuedRequest, ...] = ()
    #: Ids of queued requests that have become other executions.
    taken: frozenset[str] = frozenset()
    #: An execution that was asked about and has ended.
    ended: ExecutionRow | None = None


def read_facts(store: Store, subject: str) -> Facts:
    """What the store knows of an agent, or of the agent of an execution or queued request. Raises `NotFoundError`."""
    asked = store.find_execution(subject)
    waiting = store.find_request(subject) if asked is None else None
    agent_id = asked.agent_id if asked is not None else waiting.agent_id if waiting is not None else subject
    try:
        root = store.load_root(agent_id)
    except NotFoundError:
        raise NotFoundError(f"neither an agent nor an execution {subject!r} is stored") from None
    open_ = store.list_executions(agent_id=agent_id, non_terminal_only=True, limit=1)
    execution = open_[0] if open_ else None
    queue = tuple(store.queued_requests(agent_id))
    calls = store.tool_calls(execution.execution_id) if execution is not None else []
    return Facts(
        root=root,
        execution=execution,
        approvals=tuple(store.approvals(execution_id=execution.execution_id, pending_only=True))
        if execution is not None
        else (),
        unknown_calls=tuple(call for call in calls if call.status is ToolCallStatus.UNKNOWN),
        queue=queue,
        taken=frozenset(
            item.execution_id for item in queue if store.find_execution(item.execution_id) is not None
        ),
        ended=asked if asked is not None and asked.status.is_terminal else None,
    )


def definition_reason(root: AgentRoot) -> Reason | None:
    """Whether this process has a class that can go on with the agent; ``None`` when it has."""
    if not root.class_path:
        return Reason(
            Why.CLASS_UNAVAILABLE,
            f"its class {root.definition_id!r} is one of a driver's own script: only that script can wake it",
        )
    try:
        check_definition(
            import_agent(root.class_path).definition(),
            root.definition_id,
            root.definition_version,
            root.agent_id,
        )
    except DefinitionVersionError as error:
        return Reason(Why.WRONG_DEFINITION, error.message)
    except DefinitionUnavailableError as error:
        return Reason(Why.CLASS_UNAVAILABLE, f"its class cannot be imported here: {error.message}")
    except ConfigurationError as error:
        return Reason(Why.WRONG_DEFINITION, f"its class cannot be used: {error.message}")
    return None


def store_reason(error: PhronomyError) -> Reason:
    """Why nothing can be read at all."""
    if isinstance(error, SchemaVersionError):
        return Reason(Why.SCHEMA, error.message, ("db upgrade",))
    if isinstance(error, ContentIntegrityError):
        return Reason(Why.CONTENT_KEY, error.message)
    return Reason(Why.STORE, f"{error.message} [{error.code}]", ("doctor",))


def explain(
    facts: Facts,
    *,
    definition: Reason | None = None,
    live: Mapping[str, Any] | None = None,
    asked_live: bool = False,
) -> list[Reason]:
    """Every reason, what has to be done first in front.

    Args:
        facts: what the store knows.
        definition: what `definition_reason` says.
        live: the status of the live process; ``None`` when there is none, or when nobody has asked.
        asked_live: whether somebody has asked for a live process.
    """
    root, row = facts.root, facts.execution
    found: list[Reason] = []
    if facts.ended is not None:
        why = facts.ended.terminal_reason or (facts.ended.error or {}).get("message") or "no reason kept"
        found.append(
            Reason(
                Why.ENDED,
                f"execution {facts.ended.execution_id} has ended: {facts.ended.status.value}"
                + ("" if facts.ended.status is ExecutionStatus.COMPLETED else f" ({why})"),
                (f"inspect {facts.ended.execution_id}",),
            )
        )
    if root.lifecycle is Lifecycle.CLOSED:
        found.append(Reason(Why.CLOSED, "it was closed and takes no more work, for ever"))
    if root.lifecycle is Lifecycle.PARKED:
        said = root.parked.message if root.parked is not None else "no reason is kept"
        found.append(Reason(Why.PARKED, f"it was taken out of service: {said}", (f"unpark {root.agent_id}",)))
    needs_process = row is not None or bool(facts.queue)
    if definition is not None and live is None and (needs_process or definition.why is Why.WRONG_DEFINITION):
        found.append(definition)
    options = {} if row is None else row.state.get("options", {})
    if options and live is None:
        found.append(
            Reason(
                Why.INSTANCE_OPTIONS,
                f"its execution came with instance options ({', '.join(sorted(options))}): load the agent with them",
            )
        )
    if row is not None:
        found += _of_execution(facts, row, live, asked_live=asked_live)
    found += _of_process(root, live)
    found += _of_queue(facts, row, live)
    return found or [Reason(Why.IDLE, "it is idle: nothing is to be done")]


def _of_execution(
    facts: Facts, row: ExecutionRow, live: Mapping[str, Any] | None, *, asked_live: bool
) -> list[Reason]:
    id_ = row.execution_id
    found: list[Reason] = []
    for item in facts.approvals:
        until = f", until {item.expires_at.isoformat()}" if item.expires_at is not None else ""
        found.append(
            Reason(
                Why.APPROVAL,
                f"execution {id_} waits for a human: may {item.tool_name} run (since {item.created_at.isoformat()}{until})?",
                (f"approve {item.approval_request_id}", f"reject {item.approval_request_id}"),
            )
        )
    for call in facts.unknown_calls:
        found.append(
            Reason(
                Why.RESOLUTION,
                f"execution {id_} waits for a human: nobody knows whether {call.tool_name} (attempt {call.attempt}) happened",
                tuple(
                    f"resolve {id_} {call.tool_call_id} {outcome}"
                    for outcome in ("succeeded", "failed", "not_performed")
                ),
            )
        )
    if row.cancel_requested_at is not None:
        found.append(
            Reason(
                Why.CANCELLING,
                f"execution {id_} is being cancelled since {row.cancel_requested_at.isoformat()}",
            )
        )
    if row.status is ExecutionStatus.SUSPENDED and found:
        return found
    phase = f"execution {id_} is {row.status.value} ({row.phase.value})"
    if live is not None:
        found.append(Reason(Why.RUNNING, f"{phase}, epoch {live.get('epoch')}", (f"watch {id_}",)))
    elif asked_live:
        found.append(
            Reason(
                Why.OWNER_GONE, f"{phase}, and no process holds it", (f"watch {id_}", "up", "doctor --repair")
            )
        )
    else:
        found.append(
            Reason(
                Why.RUNNING,
                f"{phase}; whether a process holds it was not asked, since no cluster answers here",
                (f"watch {id_}",),
            )
        )
    return found


def _of_process(root: AgentRoot, live: Mapping[str, Any] | None) -> list[Reason]:
    error = (live or {}).get("error")
    if not isinstance(error, Mapping):
        return []
    said = f"{error.get('message')} [{error.get('code')}]"
    if error.get("code") == CommitOutcomeUnknownError.default_code:
        return [Reason(Why.COMMIT_UNKNOWN, f"its process stopped: {said}", ("doctor --repair",))]
    return [
        Reason(Why.STOPPED, f"its process stopped: {said}", (f"unload {root.agent_id}", "doctor --repair"))
    ]


def _of_queue(facts: Facts, row: ExecutionRow | None, live: Mapping[str, Any] | None) -> list[Reason]:
    found: list[Reason] = []
    for id_ in sorted(facts.taken):
        found.append(
            Reason(
                Why.TAKEN,
                f"the queued request {id_} never begins: another execution has its id",
                ("doctor --repair",),
            )
        )
    waiting = [item for item in facts.queue if item.execution_id not in facts.taken]
    if waiting:
        behind = f"behind execution {row.execution_id}" if row is not None else "for its agent to be woken"
        commands = ("doctor --repair",) if row is None and live is None else ()
        found.append(Reason(Why.QUEUED, f"{len(waiting)} queued requests wait {behind}", commands))
    return found


def may_wake(reasons: list[Reason]) -> bool:
    """Whether waking the agent helps and nothing speaks against it."""
    whys = {reason.why for reason in reasons}
    if whys & KEEPS_FROM_WAKING:
        return False
    if whys & {Why.APPROVAL, Why.RESOLUTION}:
        whys -= {Why.QUEUED}
    return bool(whys & REPAIRED_BY_WAKING)


__all__ = [
    "Facts",
    "Reason",
    "Why",
    "definition_reason",
    "explain",
    "may_wake",
    "read_facts",
    "store_reason",
]
