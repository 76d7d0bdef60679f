"""A store decorator that fails on command: before a commit, after it, always, or late.

Faults are named by step: a commit's ``step`` (``admit``, ``batch``, ``results``, ...) or a method's name (``claim``,
``settle``, ``load_execution``, ...). ``"*"`` means every step. A fault after a commit is the one that hurts in the field:
the commit happened and its caller does not know.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Literal, TypeVar

from phronomy_ray.approvals import RulesAsked, StandingRule
from phronomy_ray.cancellation import CancellationIntent
from phronomy_ray.commits import Commit, Hydration, NewAgent
from phronomy_ray.errors import CommitOutcomeUnknownError, PhronomyError, StoreUnavailableError
from phronomy_ray.journal import (
    AgentRoot,
    ApprovalRow,
    EventRow,
    ExecutionRow,
    JournalRecord,
    ModelCallRow,
    QueuedRequest,
    ToolCallRow,
)
from phronomy_ray.open_work import OpenWork, SupervisorBeat, WorkKind
from phronomy_ray.parking import ParkReason
from phronomy_ray.retention import Collectable, CollectedContents, CollectedRows, Retention
from phronomy_ray.store.port import LOOKED_AT_ONCE, Store
from phronomy_ray.subscriptions import (
    Delivery,
    DeliveryError,
    Subscription,
    SubscriptionLease,
    SubscriptionState,
)
from phronomy_ray.whereabouts import Whereabouts
from phronomy_ray.worker_inputs import WorkerInputRestricted

T = TypeVar("T")
_When = Literal["before", "after"]


@dataclass(slots=True)
class _Fault:
    step: str
    when: _When
    #: The call that fails, from 1 and counted from the fault's making; ``None`` for every call.
    nth: int | None
    error: PhronomyError
    seen: int = 0

    def strikes(self, step: str) -> bool:
        if self.step not in ("*", step):
            return False
        self.seen += 1
        return self.nth is None or self.seen == self.nth


class FaultyStore(WorkerInputRestricted):
    """`inner` with faults; without any it only counts. Thread-safe."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        #: Steps that were asked for, in order, whether or not they failed.
        self.calls: list[str] = []
        #: Commits that reached the inner store and returned.
        self.executed: list[Commit] = []
        self._faults: list[_Fault] = []
        self._delays: dict[str, float] = {}
        self._lock = threading.Lock()

    # --- configuration -------------------------------------------------------------------------------------------

    def fail_before(self, step: str, *, nth: int = 1, error: PhronomyError | None = None) -> None:
        """The `nth` call of `step` from now on fails and does nothing."""
        self._add(_Fault(step, "before", nth, error or _unavailable(step)))

    def fail_after(self, step: str, *, nth: int = 1, error: PhronomyError | None = None) -> None:
        """The `nth` call of `step` from now on happens, and its caller is told that nobody knows."""
        self._add(_Fault(step, "after", nth, error or _unknown(step)))

    def always_fail(self, step: str = "*", *, error: PhronomyError | None = None) -> None:
        """Every call of `step` fails and does nothing, until `heal`."""
        self._add(_Fault(step, "before", None, error or _unavailable(step)))

    def delay(self, step: str, seconds: float) -> None:
        """Every call of `step` takes this much longer."""
        with self._lock:
            self._delays[step] = seconds

    def heal(self) -> None:
        """Forget all faults and delays."""
        with self._lock:
            self._faults.clear()
            self._delays.clear()

    def _add(self, fault: _Fault) -> None:
        with self._lock:
            self._faults.append(fault)

    def _strike(self, step: str) -> list[_Fault]:
        with self._lock:
            self.calls.append(step)
            striking = [fault for fault in self._faults if fault.strikes(step)]
            delay = self._delays.get(step, self._delays.get("*", 0.0))
        if delay:
            time.sleep(delay)
        return striking

    def _run(self, step: str, call: Callable[[], T]) -> T:
        striking = self._strike(step)
        for fault in striking:
            if fault.when == "before":
                raise fault.error
        result = call()
        for fault in striking:
            raise fault.error
        return result

    # --- the port ------------------------------------------------------------------------------------------------

    @property
    def identity(self) -> str:
        """As `Store.identity`."""
        return self.inner.identity

    def create_agent(self, new: NewAgent) -> AgentRoot:
        """As `Store.create_agent`."""
        return self._run("create_agent", lambda: self.inner.create_agent(new))

    def load_root(self, agent_id: str) -> AgentRoot:
        """As `Store.load_root`."""
        return self._run("load_root", lambda: self.inner.load_root(agent_id))

    def claim(self, agent_id: str, *, owner: dict[str, Any], now: datetime) -> Hydration:
        """As `Store.claim`."""
        return self._run("claim", lambda: self.inner.claim(agent_id, owner=owner, now=now))

    def claim_served(
        self,
        agent_id: str,
        *,
        definition_id: str,
        definition_version: str,
        recent: int,
        owner: dict[str, Any],
        now: datetime,
    ) -> Hydration | None:
        """As `Store.claim_served`; the same step as a claim."""
        return self._run(
            "claim",
            lambda: self.inner.claim_served(
                agent_id,
                definition_id=definition_id,
                definition_version=definition_version,
                recent=recent,
                owner=owner,
                now=now,
            ),
        )

    def execute(self, commit: Commit) -> None:
        """As `Store.execute`."""

        def call() -> None:
            self.inner.execute(commit)
            with self._lock:
                self.executed.append(commit)

        self._run(commit.step, call)

    def execute_group(self, commits: Sequence[Commit]) -> list[PhronomyError | None]:
        """As `Store.execute_group`; a fault strikes the commits of its step, each by itself."""
        outcomes: list[PhronomyError | None] = [None] * len(commits)
        after: dict[int, PhronomyError] = {}
        sent: list[int] = []
        for index, commit in enumerate(commits):
            for fault in self._strike(commit.step):
                if fault.when == "before":
                    outcomes[index] = fault.error
                    break
                after[index] = fault.error
            else:
                sent.append(index)
        found = self.inner.execute_group([commits[index] for index in sent]) if sent else []
        for index, outcome in zip(sent, found, strict=True):
            outcomes[index] = outcome or after.get(index)
            if outcome is None:
                with self._lock:
                    self.executed.append(commits[index])
        return outcomes

    def purge_agent(self, agent_id: str, *, epoch: int, created_at: datetime) -> bool:
        """As `Store.purge_agent`."""
        return self._run(
            "purge_agent", lambda: self.inner.purge_agent(agent_id, epoch=epoch, created_at=created_at)
        )

    def retain(self, retention: Retention) -> Retention:
        """As `Store.retain`."""
        return self._run("retain", lambda: self.inner.retain(retention))

    def release(self, owner_key: str, *, agent_id: str, execution_id: str | None = None) -> bool:
        """As `Store.release`."""
        return self._run(
            "release", lambda: self.inner.release(owner_key, agent_id=agent_id, execution_id=execution_id)
        )

    def retentions(
        self, *, agent_id: str | None = None, owner_key: str | None = None, limit: int = 1000
    ) -> list[Retention]:
        """As `Store.retentions`."""
        return self._run(
            "retentions",
            lambda: self.inner.retentions(agent_id=agent_id, owner_key=owner_key, limit=limit),
        )

    def whereabouts(self, agent_id: str) -> Whereabouts:
        """As `Store.whereabouts`."""
        return self._run("whereabouts", lambda: self.inner.whereabouts(agent_id))

    def pin_agent(self, agent_id: str, pin: str | None, *, now: datetime) -> None:
        """As `Store.pin_agent`."""
        self._run("pin_agent", lambda: self.inner.pin_agent(agent_id, pin, now=now))

    def close_host(self, host: str, *, closed: bool, now: datetime) -> None:
        """As `Store.close_host`."""
        self._run("close_host", lambda: self.inner.close_host(host, closed=closed, now=now))

    def is_host_closed(self, host: str) -> bool:
        """As `Store.is_host_closed`."""
        return self._run("is_host_closed", lambda: self.inner.is_host_closed(host))

    def request_cancellation(self, intent: CancellationIntent) -> CancellationIntent | None:
        """As `Store.request_cancellation`."""
        return self._run("request_cancellation", lambda: self.inner.request_cancellation(intent))

    def find_cancellation(self, execution_id: str) -> CancellationIntent | None:
        """As `Store.find_cancellation`."""
        return self._run("find_cancellation", lambda: self.inner.find_cancellation(execution_id))

    def settle(self, agent_id: str, *, epoch: int, commit_id: str) -> bool:
        """As `Store.settle`."""
        return self._run("settle", lambda: self.inner.settle(agent_id, epoch=epoch, commit_id=commit_id))

    def read_journal(
        self,
        agent_id: str,
        *,
        after: int = 0,
        before: int | None = None,
        limit: int = 500,
        newest_first: bool = False,
        view_only: bool = False,
    ) -> list[JournalRecord]:
        """As `Store.read_journal`."""
        return self._run(
            "read_journal",
            lambda: self.inner.read_journal(
                agent_id,
                after=after,
                before=before,
                limit=limit,
                newest_first=newest_first,
                view_only=view_only,
            ),
        )

    def journal_of_execution(self, execution_id: str) -> list[JournalRecord]:
        """As `Store.journal_of_execution`."""
        return self._run("journal_of_execution", lambda: self.inner.journal_of_execution(execution_id))

    def read_content(self, content_hash: str) -> str:
        """As `Store.read_content`."""
        return self._run("read_content", lambda: self.inner.read_content(content_hash))

    def read_contents(self, content_hashes: Collection[str]) -> dict[str, str]:
        """As `Store.read_contents`."""
        return self._run("read_contents", lambda: self.inner.read_contents(content_hashes))

    def collect_rows(
        self,
        kind: Collectable,
        *,
        before: datetime,
        limit: int = 200,
        after: str = "",
        dry_run: bool = False,
    ) -> CollectedRows:
        """As `Store.collect_rows`."""
        return self._run(
            "collect_rows",
            lambda: self.inner.collect_rows(kind, before=before, limit=limit, after=after, dry_run=dry_run),
        )

    def collect_contents(
        self,
        *,
        now: datetime,
        older_than: timedelta,
        limit: int = LOOKED_AT_ONCE,
        after: str = "",
        dry_run: bool = False,
    ) -> CollectedContents:
        """As `Store.collect_contents`."""
        return self._run(
            "collect_contents",
            lambda: self.inner.collect_contents(
                now=now, older_than=older_than, limit=limit, after=after, dry_run=dry_run
            ),
        )

    def load_execution(self, execution_id: str) -> ExecutionRow:
        """As `Store.load_execution`."""
        return self._run("load_execution", lambda: self.inner.load_execution(execution_id))

    def find_execution(self, execution_id: str) -> ExecutionRow | None:
        """As `Store.find_execution`."""
        return self._run("find_execution", lambda: self.inner.find_execution(execution_id))

    def list_executions(
        self, *, agent_id: str | None = None, non_terminal_only: bool = False, limit: int = 100
    ) -> list[ExecutionRow]:
        """As `Store.list_executions`."""
        return self._run(
            "list_executions",
            lambda: self.inner.list_executions(
                agent_id=agent_id, non_terminal_only=non_terminal_only, limit=limit
            ),
        )

    def list_agents(self, *, limit: int = 100, after: str = "") -> list[AgentRoot]:
        """As `Store.list_agents`."""
        return self._run("list_agents", lambda: self.inner.list_agents(limit=limit, after=after))

    def queued_requests(self, agent_id: str) -> list[QueuedRequest]:
        """As `Store.queued_requests`."""
        return self._run("queued_requests", lambda: self.inner.queued_requests(agent_id))

    def find_request(self, execution_id: str) -> QueuedRequest | None:
        """As `Store.find_request`."""
        return self._run("find_request", lambda: self.inner.find_request(execution_id))

    def model_calls(self, execution_id: str) -> list[ModelCallRow]:
        """As `Store.model_calls`."""
        return self._run("model_calls", lambda: self.inner.model_calls(execution_id))

    def tool_calls(self, execution_id: str) -> list[ToolCallRow]:
        """As `Store.tool_calls`."""
        return self._run("tool_calls", lambda: self.inner.tool_calls(execution_id))

    def approvals(
        self,
        *,
        execution_id: str | None = None,
        agent_id: str | None = None,
        pending_only: bool = False,
        limit: int = 1000,
    ) -> list[ApprovalRow]:
        """As `Store.approvals`."""
        return self._run(
            "approvals",
            lambda: self.inner.approvals(
                execution_id=execution_id, agent_id=agent_id, pending_only=pending_only, limit=limit
            ),
        )

    def add_rule(self, rule: StandingRule) -> StandingRule:
        """As `Store.add_rule`."""
        return self._run("add_rule", lambda: self.inner.add_rule(rule))

    def revoke_rule(self, rule_id: str, *, revoked_by: str, now: datetime) -> StandingRule:
        """As `Store.revoke_rule`."""
        return self._run(
            "revoke_rule", lambda: self.inner.revoke_rule(rule_id, revoked_by=revoked_by, now=now)
        )

    def rules_in_force(self, *, agent_id: str, definition_id: str, now: datetime) -> list[StandingRule]:
        """As `Store.rules_in_force`."""
        return self._run(
            "rules_in_force",
            lambda: self.inner.rules_in_force(agent_id=agent_id, definition_id=definition_id, now=now),
        )

    def rules_of(self, asked: Sequence[RulesAsked]) -> list[list[StandingRule]]:
        """As `Store.rules_of`."""
        return self._run("rules_in_force", lambda: self.inner.rules_of(asked))

    def list_rules(self, *, limit: int = 1000) -> list[StandingRule]:
        """As `Store.list_rules`."""
        return self._run("list_rules", lambda: self.inner.list_rules(limit=limit))

    def events(self, execution_id: str, *, after: int = 0, limit: int = 1000) -> list[EventRow]:
        """As `Store.events`."""
        return self._run("events", lambda: self.inner.events(execution_id, after=after, limit=limit))

    def open_work(
        self, kind: WorkKind, *, now: datetime, after: OpenWork | None = None, limit: int = 500
    ) -> list[OpenWork]:
        """As `Store.open_work`."""
        return self._run("open_work", lambda: self.inner.open_work(kind, now=now, after=after, limit=limit))

    def add_subscription(self, subscription: Subscription) -> Subscription:
        """As `Store.add_subscription`."""
        return self._run("add_subscription", lambda: self.inner.add_subscription(subscription))

    def remove_subscription(self, subscription_id: str) -> bool:
        """As `Store.remove_subscription`."""
        return self._run("remove_subscription", lambda: self.inner.remove_subscription(subscription_id))

    def subscriptions(self) -> list[SubscriptionState]:
        """As `Store.subscriptions`."""
        return self._run("subscriptions", lambda: self.inner.subscriptions())

    def subscription_leases(self) -> list[SubscriptionLease]:
        """As `Store.subscription_leases`."""
        return self._run("subscription_leases", lambda: self.inner.subscription_leases())

    def take_subscription(self, subscription_id: str, *, holder: str, epoch: int, beats: int) -> int | None:
        """As `Store.take_subscription`."""
        return self._run(
            "take_subscription",
            lambda: self.inner.take_subscription(subscription_id, holder=holder, epoch=epoch, beats=beats),
        )

    def beat_subscription(self, subscription_id: str, *, epoch: int) -> bool:
        """As `Store.beat_subscription`."""
        return self._run(
            "beat_subscription", lambda: self.inner.beat_subscription(subscription_id, epoch=epoch)
        )

    def free_subscription(self, subscription_id: str, *, epoch: int) -> bool:
        """As `Store.free_subscription`."""
        return self._run(
            "free_subscription", lambda: self.inner.free_subscription(subscription_id, epoch=epoch)
        )

    def due_agents(
        self, subscription_id: str, *, now: datetime, after: str = "", limit: int = 100
    ) -> list[str]:
        """As `Store.due_agents`."""
        return self._run(
            "due_agents",
            lambda: self.inner.due_agents(subscription_id, now=now, after=after, limit=limit),
        )

    def deliveries_of(self, subscription_id: str, agent_id: str, *, limit: int = 50) -> list[Delivery]:
        """As `Store.deliveries_of`."""
        return self._run(
            "deliveries_of", lambda: self.inner.deliveries_of(subscription_id, agent_id, limit=limit)
        )

    def delivery_done(self, delivery: Delivery, *, epoch: int) -> bool:
        """As `Store.delivery_done`."""
        return self._run("delivery_done", lambda: self.inner.delivery_done(delivery, epoch=epoch))

    def delivery_failed(
        self,
        delivery: Delivery,
        *,
        epoch: int,
        error: DeliveryError,
        next_at: datetime | None,
        dead_at: datetime | None = None,
    ) -> bool:
        """As `Store.delivery_failed`."""
        return self._run(
            "delivery_failed",
            lambda: self.inner.delivery_failed(
                delivery, epoch=epoch, error=error, next_at=next_at, dead_at=dead_at
            ),
        )

    def dead_letters(
        self, *, subscription_id: str | None = None, after: int = 0, limit: int = 100
    ) -> list[Delivery]:
        """As `Store.dead_letters`."""
        return self._run(
            "dead_letters",
            lambda: self.inner.dead_letters(subscription_id=subscription_id, after=after, limit=limit),
        )

    def redeliver(
        self,
        *,
        now: datetime,
        subscription_id: str | None = None,
        delivery_ids: Collection[int] | None = None,
    ) -> int:
        """As `Store.redeliver`."""
        return self._run(
            "redeliver",
            lambda: self.inner.redeliver(now=now, subscription_id=subscription_id, delivery_ids=delivery_ids),
        )

    def forget_strays(self) -> int:
        """As `Store.forget_strays`."""
        return self._run("forget_strays", lambda: self.inner.forget_strays())

    def park_agent(self, agent_id: str, *, epoch: int, reason: ParkReason) -> bool:
        """As `Store.park_agent`."""
        return self._run("park_agent", lambda: self.inner.park_agent(agent_id, epoch=epoch, reason=reason))

    def uncount_start(self, agent_id: str, *, epoch: int) -> None:
        """As `Store.uncount_start`."""
        return self._run("uncount_start", lambda: self.inner.uncount_start(agent_id, epoch=epoch))

    def unpark_agent(self, agent_id: str, *, now: datetime, cancel_reason: str = "") -> bool:
        """As `Store.unpark_agent`."""
        return self._run(
            "unpark_agent",
            lambda: self.inner.unpark_agent(agent_id, now=now, cancel_reason=cancel_reason),
        )

    def parked_agents(self, *, limit: int = 100, after: str = "") -> list[AgentRoot]:
        """As `Store.parked_agents`."""
        return self._run("parked_agents", lambda: self.inner.parked_agents(limit=limit, after=after))

    def beat(self, cluster: str, *, info: dict[str, Any], now: datetime) -> list[SupervisorBeat]:
        """As `Store.beat`."""
        return self._run("beat", lambda: self.inner.beat(cluster, info=info, now=now))

    def forget_cluster(self, cluster: str, *, beats: int) -> bool:
        """As `Store.forget_cluster`."""
        return self._run("forget_cluster", lambda: self.inner.forget_cluster(cluster, beats=beats))

    def close(self) -> None:
        """As `Store.close`; never fails."""
        self.inner.close()


def _unavailable(step: str) -> StoreUnavailableError:
    return StoreUnavailableError(f"injected: the database was away at step {step!r}")


def _unknown(step: str) -> CommitOutcomeUnknownError:
    return CommitOutcomeUnknownError(f"injected: the connection was lost while committing step {step!r}")


__all__ = ["FaultyStore"]
