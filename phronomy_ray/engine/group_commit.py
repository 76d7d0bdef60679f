"""Group commit: what the agents of one process want to commit while a commit is being made goes together into the next one.

So a lone agent loses nothing, and with many agents the groups grow until the flushes of the log no longer count. Nobody is told
of a commit before its transaction is durable.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from phronomy_ray.commits import Commit
from phronomy_ray.engine.batcher import Batcher
from phronomy_ray.errors import PhronomyError

#: Most commits in one group; a store may execute a group in several transactions when it is large.
MAX_COMMITS = 64

#: `Store.execute_group` on a thread.
ExecuteGroup = Callable[[Sequence[Commit]], Awaitable[Sequence[PhronomyError | None]]]


class GroupCommitter:
    """Commits of many agents on one event loop.

    Args:
        execute: executes a group, as `Store.execute_group`.
        most_commits: limit of one group.
    """

    def __init__(self, execute: ExecuteGroup, *, most_commits: int = MAX_COMMITS) -> None:
        self._batcher: Batcher[Commit, None] = Batcher(
            execute, most=most_commits, key_of=lambda commit: commit.agent_id
        )

    async def commit(self, commit: Commit) -> None:
        """Have `commit` executed; returns when it is durable. A caller that is cancelled does not undo its commit.

        Commits of one agent are executed in the order of the calls, and never in one group.

        Raises what `Store.execute` raises for it.
        """
        await self._batcher.ask(commit)

    @property
    def groups(self) -> int:
        """Groups that were executed."""
        return self._batcher.batches

    @property
    def commits(self) -> int:
        """Commits in them."""
        return self._batcher.items


__all__ = ["MAX_COMMITS", "ExecuteGroup", "GroupCommitter"]
