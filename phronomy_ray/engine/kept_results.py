"""Results of executions that have ended under this owner: asked for again at once, without the store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator

from phronomy_ray.engine.reading import messages_of
from phronomy_ray.journal import AgentRoot, ExecutionRow, JournalRecord
from phronomy_ray.kernel.state import AgentState
from phronomy_ray.messages import Message
from phronomy_ray.results import ResultParts, RunResult, result_of

#: Results that are kept in memory.
KEPT_RESULTS = 32


class KeptResults:
    """The newest results, by execution."""

    def __init__(self) -> None:
        self._results: OrderedDict[str, RunResult] = OrderedDict()

    def __iter__(self) -> Iterator[str]:
        return iter(self._results)

    def get(self, execution_id: str) -> RunResult | None:
        """The result, ``None`` when it is not kept."""
        return self._results.get(execution_id)

    def keep(
        self, row: ExecutionRow, before: AgentState, after: AgentState, journal: Iterable[JournalRecord]
    ) -> None:
        """Keep the result of the execution that ended with the commit of `journal`."""
        earlier = [message for _, message in before.conversation.current]
        messages = (*earlier, *messages_of(journal))
        parts = ResultParts(
            messages=tuple(Message.from_wire(item) for item in messages), revisions=revisions_of(after.root)
        )
        self._results[row.execution_id] = result_of(row, parts)
        while len(self._results) > KEPT_RESULTS:
            self._results.popitem(last=False)


def revisions_of(root: AgentRoot) -> dict[str, int]:
    """How far the agent is, as a result tells it."""
    return {
        "agent_revision": root.agent_revision,
        "context_revision": root.context_revision,
        "journal_position": root.journal_position,
    }
