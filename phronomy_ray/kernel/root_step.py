"""A durable step that leaves the running execution alone: an edit, a change of the queue, a late end of a body."""

from __future__ import annotations

from phronomy_ray.commits import Commit
from phronomy_ray.frozen import replace
from phronomy_ray.ids import commit_id
from phronomy_ray.journal import AgentRoot, EventRow, ExecutionRow, JournalRecord, QueuedRequest
from phronomy_ray.kernel.effects import Publish, Step
from phronomy_ray.kernel.inputs import Env
from phronomy_ray.kernel.state import AgentState, queue_after


def root_step(
    state: AgentState,
    env: Env,
    name: str,
    root: AgentRoot | None = None,
    *,
    journal: tuple[JournalRecord, ...] = (),
    new_execution: ExecutionRow | None = None,
    events: tuple[EventRow, ...] = (),
    new_requests: tuple[QueuedRequest, ...] = (),
    ended_requests: tuple[str, ...] = (),
) -> Step:
    """The step `name` with these writes; `root` is the root with what else changes of it."""
    before, root = state.root, root or state.root
    number = state.commits + 1
    commit = Commit(
        commit_id=commit_id(before.agent_id, before.epoch, number),
        step=name,
        agent_id=before.agent_id,
        epoch=before.epoch,
        expected_revision=before.agent_revision,
        expected_position=before.journal_position,
        now=env.now,
        lifecycle=root.lifecycle,
        context_revision=root.context_revision,
        transcript_generation=root.transcript_generation,
        journal=journal,
        new_execution=new_execution,
        events=events,
        new_requests=new_requests,
        ended_requests=ended_requests,
    )
    after = replace(
        state,
        root=replace(
            root,
            agent_revision=before.agent_revision + 1,
            journal_position=commit.position_after,
            updated_at=env.now,
            starts_without_progress=0,
        ),
        conversation=state.conversation.apply(journal),
        commits=number,
        queue=queue_after(state.queue, new_requests, ended_requests),
    )
    return Step(after, commit, (Publish(events),) if events else ())
