"""One agent's view of the store: calls with retries, and commits that are settled before anybody goes on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import ParamSpec, TypeVar

from tenacity import retry_if_exception_type, stop_after_delay, wait_exponential, wait_random
from tenacity.asyncio import AsyncRetrying

from phronomy_ray.approvals import RulesAsked, StandingRule
from phronomy_ray.commits import Commit
from phronomy_ray.engine.shared_store import SharedStore
from phronomy_ray.errors import AgentUnloadedError, CommitOutcomeUnknownError, StoreUnavailableError
from phronomy_ray.store.port import Store
from phronomy_ray.worker_inputs import WorkerInputRestricted

P = ParamSpec("P")
R = TypeVar("R")

#: How long an unreachable store is tried again before the agent stops, in seconds.
RETRY_S = 10.0


class StoreClient(WorkerInputRestricted):
    """A store on threads, with retries of what is known not to have happened.

    Args:
        store: a store for this agent alone, closed with it, or the one that all agents of this process share.
        retry_s: how long an unreachable store is tried again.
    """

    __slots__ = ("_closed", "_retry_s", "_shared", "_shares", "store")

    def __init__(self, store: Store | SharedStore, *, retry_s: float = RETRY_S) -> None:
        self._shares = isinstance(store, SharedStore)
        self._shared = store if isinstance(store, SharedStore) else SharedStore(store)
        self.store: Store = self._shared.store
        self._retry_s = retry_s
        self._closed = False

    async def run(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """`function` on a thread; an unreachable store is tried again for `retry_s` seconds.

        Raises what `function` raises, and `StoreUnavailableError` at the end of the retries.
        """
        return await self._retried(partial(self._shared.call, function, *args, **kwargs))

    async def commit(self, commit: Commit) -> None:
        """Execute `commit`; when its outcome is unknown, find out under the root row's lock before anything else.

        Raises:
            CommitOutcomeUnknownError: it could not be found out; the agent must stay closed.
        """
        try:
            await self._retried(partial(self._shared.commit, commit))
        except CommitOutcomeUnknownError as lost:
            try:
                happened = await self.run(
                    self.store.settle, commit.agent_id, epoch=commit.epoch, commit_id=commit.commit_id
                )
            except StoreUnavailableError as error:
                lost.details |= {"commit_id": commit.commit_id, "epoch": commit.epoch, "step": commit.step}
                raise lost from error
            if not happened:
                await self._retried(partial(self._shared.commit, commit))

    async def rules_in_force(self, asked: RulesAsked) -> list[StandingRule]:
        """The rules that hold for the agent, in one query with what other agents ask for. Raises as `run`."""
        return await self._retried(partial(self._shared.rules_in_force, asked))

    def close(self) -> None:
        """Refuse further calls; release connections and threads, unless other agents share them."""
        self._closed = True
        if not self._shares:
            self._shared.close()

    async def _retried(self, call: Callable[[], Awaitable[R]]) -> R:
        """`call`, and again as long as the store is away; whoever succeeds at once pays for no retrying."""
        self._check_open()
        try:
            return await call()
        except StoreUnavailableError as error:
            failed = [error]
        async for attempt in self._retrying():
            with attempt:
                if failed:
                    raise failed.pop()
                self._check_open()
                return await call()
        raise AssertionError("unreachable")

    def _check_open(self) -> None:
        if self._closed:
            raise AgentUnloadedError("the agent was unloaded from this process")

    def _retrying(self) -> AsyncRetrying:
        return AsyncRetrying(
            retry=retry_if_exception_type(StoreUnavailableError),
            stop=stop_after_delay(self._retry_s),
            wait=wait_exponential(multiplier=0.05, max=1.0) + wait_random(0, 0.05),
            reraise=True,
        )
