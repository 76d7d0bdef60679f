"""What a step decides: the next state, its commit, and the effects for when that is durable. Values only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from phronomy_ray.approvals import ApprovalEvaluationRequest
from phronomy_ray.commits import Commit
from phronomy_ray.frozen import replace
from phronomy_ray.journal import EventRow, ExecutionRow
from phronomy_ray.kernel.state import AgentState
from phronomy_ray.models.port import ModelRequest
from phronomy_ray.tool_calls import ToolInvocation


@dataclass(frozen=True, slots=True)
class Prepare:
    """Run the user's code on the input, then send `PreparationDone` or `PreparationFailed`."""

    execution_id: str
    input: Any
    durable_context: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class BuildInput:
    """Run the hooks on what would be sent, then send `InputBuilt` or `InputBuildFailed`."""

    request: ModelRequest
    durable_context: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class FilterOutput:
    """Run the output filters, then send `OutputFiltered` or `OutputFilterFailed`."""

    execution_id: str
    text: str
    durable_context: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class CallModel:
    """Call the model, then send `ModelAnswered`, `ModelFailed` or `ModelStopped`."""

    request: ModelRequest
    stream: bool


@dataclass(frozen=True, slots=True)
class Authorize:
    """Ask user code about each of these calls, then send one `Authorized` for all of them."""

    execution_id: str
    model_call_id: str
    requests: tuple[ApprovalEvaluationRequest, ...]


@dataclass(frozen=True, slots=True)
class DispatchTools:
    """Run these bodies side by side, and send each outcome once."""

    invocations: tuple[ToolInvocation, ...]


@dataclass(frozen=True, slots=True)
class StopWork:
    """Stop the model call and the running bodies of the execution."""

    execution_id: str


@dataclass(frozen=True, slots=True)
class Publish:
    """Hand durable events to observers."""

    events: tuple[EventRow, ...]


@dataclass(frozen=True, slots=True)
class Settled:
    """The execution is terminal."""

    row: ExecutionRow


Effect: TypeAlias = (
    Prepare | BuildInput | FilterOutput | CallModel | Authorize | DispatchTools | StopWork | Publish | Settled
)


@dataclass(frozen=True, slots=True)
class Step:
    """What a step decided: the state after `commit`, and what to do once it is durable."""

    state: AgentState
    #: ``None`` when nothing changes.
    commit: Commit | None = None
    effects: tuple[Effect, ...] = ()


def without_progress(before: AgentState, decided: Step) -> Step:
    """`decided` as a step that does not count as progress."""
    if decided.commit is None:
        return decided
    starts = before.root.starts_without_progress
    root = replace(decided.state.root, starts_without_progress=starts)
    return replace(
        decided,
        state=replace(decided.state, root=root),
        commit=replace(decided.commit, is_progress=False),
    )


def without_change(state: AgentState, *effects: Effect) -> Step:
    """A step that commits nothing."""
    return Step(state, None, effects)
