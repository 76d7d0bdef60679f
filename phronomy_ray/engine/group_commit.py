"""Group commit: what the agents of one process want to commit while a commit is being made goes together into the next one.

No timer and no waiting for company: the first commit goes at once, alone, and whatever arrives until it is durable is the next
group. So a lone agent loses nothing, and with many agents the groups grow until the flushes of the log no longer count. Nobody
is told of a commit before its transaction is durable.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from phronomy_ray.commits import Commit
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
        self._execute = execute
        self._most = most_commits
        self._waiting: deque[tuple[Commit, asyncio.Future[None]]] = deque()
        self._running: asyncio.Task[None] | None = None
        #: Groups that were executed, and the commits in them.
        self.groups = 0
        self.commits = 0

    async def commit(self, commit: Commit) -> None:
        """Have `commit` executed; returns when it is durable. A caller that is cancelled does not undo its commit.

        Commits of one agent are executed in the order of the calls, and never in one group.

        Raises what `Store.execute` raises for it.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._waiting.append((commit, done))
        if self._running is None:
            self._running = loop.create_task(self._run())
        await done

    async def _run(self) -> None:
        try:
            while self._waiting:
                await self._execute_next()
        finally:
            self._running = None

    async def _execute_next(self) -> None:
        group = self._take()
        self.groups += 1
        self.commits += len(group)
        outcomes: Sequence[Exception | None]
        try:
            outcomes = await self._execute([commit for commit, _ in group])
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome of all who wait
            outcomes = [error] * len(group)
        for (_, done), outcome in zip(group, outcomes, strict=True):
            if done.done():
                continue
            if outcome is None:
                done.set_result(None)
            else:
                done.set_exception(outcome)

    def _take(self) -> list[tuple[Commit, asyncio.Future[None]]]:
        """The next group, in order; a second commit of one agent waits for the group after it."""
        group: list[tuple[Commit, asyncio.Future[None]]] = []
        later: list[tuple[Commit, asyncio.Future[None]]] = []
        agents: set[str] = set()
        while self._waiting and len(group) < self._most:
            item = self._waiting.popleft()
            agent_id = item[0].agent_id
            (later if agent_id in agents else group).append(item)
            agents.add(agent_id)
        self._waiting.extendleft(reversed(later))
        return group


__all__ = ["MAX_COMMITS", "ExecuteGroup", "GroupCommitter"]
