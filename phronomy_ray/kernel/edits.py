"""Edits of an idle agent: knowledge is added, what the model sees is cleared, the agent is closed.

Each is one appended record in one commit: nothing is ever deleted, and what the record means is the view's to say
(`kernel.context`). Follows Phronomy's ``add_knowledge``, ``clear_transcript!``, ``clear_knowledge!``, ``reset_context!`` and
``close!``.
"""

from __future__ import annotations

from phronomy_ray.errors import AgentBusyError, AgentClosedError
from phronomy_ray.frozen import replace
from phronomy_ray.journal import Channel, JournalRecord, Lifecycle, RecordKind
from phronomy_ray.kernel.effects import Step, without_change
from phronomy_ray.kernel.inputs import Edit, EditKind, Env
from phronomy_ray.kernel.root_step import root_step
from phronomy_ray.kernel.state import AgentState

_RECORDS = {
    EditKind.ADD_KNOWLEDGE: RecordKind.KNOWLEDGE,
    EditKind.CLEAR_TRANSCRIPT: RecordKind.TRANSCRIPT_CLEARED,
    EditKind.CLEAR_KNOWLEDGE: RecordKind.KNOWLEDGE_CLEARED,
    EditKind.RESET_CONTEXT: RecordKind.CONTEXT_RESET,
    EditKind.CLOSE: RecordKind.AGENT_CLOSED,
}
#: Edits after which a new generation of the transcript begins.
_NEW_GENERATION = (EditKind.CLEAR_TRANSCRIPT, EditKind.RESET_CONTEXT)


def edit(state: AgentState, event: Edit, env: Env) -> Step:
    """Append the record of an edit. Closing a closed agent changes nothing.

    Raises:
        AgentBusyError: an execution is non-terminal, or a request waits.
        AgentClosedError: the agent was closed.
    """
    root = state.root
    held = state.held_by
    if held is not None:
        raise AgentBusyError(
            f"agent {root.agent_id!r} can be edited only while it is idle: it has the execution {held}",
            details={"agent_id": root.agent_id, "execution_id": held},
        )
    is_close = event.kind is EditKind.CLOSE
    if root.lifecycle is Lifecycle.CLOSED:
        if is_close:
            return without_change(state)
        raise AgentClosedError(f"agent {root.agent_id!r} is closed", details={"agent_id": root.agent_id})
    is_knowledge = event.kind is EditKind.ADD_KNOWLEDGE
    generation = root.transcript_generation + (event.kind in _NEW_GENERATION)
    record = JournalRecord(
        position=root.journal_position + 1,
        kind=_RECORDS[event.kind],
        channel=Channel.CONTEXT if is_knowledge else Channel.STATE,
        occurred_at=env.now,
        role="user" if is_knowledge else None,
        content=event.knowledge,
        causation_id=event.edit_id,
        context_candidate=is_knowledge,
        generation=generation,
    )
    after = replace(
        root,
        context_revision=root.context_revision + (not is_close),
        transcript_generation=generation,
        lifecycle=Lifecycle.CLOSED if is_close else root.lifecycle,
    )
    return root_step(state, env, event.kind.value, after, journal=(record,))
