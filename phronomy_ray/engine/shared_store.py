"""One store for all engines of a process: its threads, its connections, and one group committer.

Each engine has a `StoreClient` of its own, a small view. Closing a view ends that agent's calls and leaves the store to the
others; whoever made the shared store closes it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

from phronomy_ray.approvals import RulesAsked, StandingRule
from phronomy_ray.commits import Commit
from phronomy_ray.engine.batcher import Batcher
from phronomy_ray.engine.group_commit import GroupCommitter
from phronomy_ray.errors import AgentUnloadedError, PhronomyError
from phronomy_ray.store.port import Store
from phronomy_ray.worker_inputs import WorkerInputRestricted

P = ParamSpec("P")
R = TypeVar("R")

#: How long an unused connection is kept, in seconds: an agent that waits for a human needs none, and servers have few.
IDLE_CLOSE_S = 30.0
#: Most agents whose rules are read with one query.
MAX_ASKED = 64


class SharedStore(WorkerInputRestricted):
    """A store on threads, for one event loop. Nothing is retried here: that is each agent's own affair (`StoreClient`).

    Args:
        store: the store; `StoreOptions.pool_size` should be one more than `threads`, or they wait for each other.
        threads: how many calls besides commits can run at once. Commits have a thread of their own.
    """

    def __init__(self, store: Store, *, threads: int = 2) -> None:
        self.store = store
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="phronomy-store")
        self._commit_thread = ThreadPoolExecutor(1, thread_name_prefix="phronomy-commit")
        self._committer = GroupCommitter(self._execute_group)
        self._rules: Batcher[RulesAsked, list[StandingRule]] = Batcher(self._read_rules, most=MAX_ASKED)
        self._running = 0
        self._used_at_s = 0.0
        self._idle: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def commits(self) -> int:
        """Commits that were executed so far."""
        return self._committer.commits

    @property
    def groups(self) -> int:
        """Groups that they were executed in."""
        return self._committer.groups

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`function` on a thread, once. Raises what it raises, and `AgentUnloadedError` after `close`."""
        return await self._on(self._threads, partial(function, *args, **kwargs))

    async def commit(self, commit: Commit) -> None:
        """Execute `commit` together with what other agents commit now. Raises as `Store.execute`."""
        self._check_open()
        await self._committer.commit(commit)

    async def rules_in_force(self, asked: RulesAsked) -> list[StandingRule]:
        """The rules of an agent, read together with those that other agents ask for now. Raises as `Store.rules_in_force`."""
        self._check_open()
        return await self._rules.ask(asked)

    def close(self) -> None:
        """Release connections and threads; calls that have not begun are refused."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        self.store.close()
        self._threads.shutdown(wait=False)
        self._commit_thread.shutdown(wait=False)

    async def _execute_group(self, commits: Sequence[Commit]) -> list[PhronomyError | None]:
        return await self._on(self._commit_thread, partial(self.store.execute_group, commits))

    async def _read_rules(self, asked: Sequence[RulesAsked]) -> list[list[StandingRule]]:
        return await self.call(self.store.rules_of, asked)

    async def _on(self, threads: ThreadPoolExecutor, call: Callable[[], R]) -> R:
        self._check_open()
        loop = asyncio.get_running_loop()
        self._running += 1
        try:
            return await loop.run_in_executor(threads, call)
        finally:
            self._running -= 1
            self._used_at_s = loop.time()
            if self._idle is None and not self._closed:
                self._idle = loop.call_later(IDLE_CLOSE_S, self._release_if_idle, loop)

    def _check_open(self) -> None:
        if self._closed:
            raise AgentUnloadedError("the store was closed in this process")

    def _release_if_idle(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give the connections back to the server when nobody has used them for a while; the next call opens one again."""
        self._idle = None
        if self._closed:
            return
        left_s = self._used_at_s + IDLE_CLOSE_S - loop.time()
        if self._running or left_s > 0:
            self._idle = loop.call_later(max(left_s, 1.0), self._release_if_idle, loop)
        else:
            self._threads.submit(self.store.close)


__all__ = ["IDLE_CLOSE_S", "SharedStore"]
