"""What another driver is asked to do whose agents live in its own process, without Ray: functions of plain arguments.

Such a process is a whole cluster of its own to everybody else on its store, and it can be stopped at any place, also between two
statements of a transaction, as a machine that hangs is.
"""

from __future__ import annotations

import os
import signal
import threading
from enum import StrEnum
from typing import Any

from sqlalchemy import event

from phronomy_ray import Agent, InProcess, RunResult, Runtime, SupervisionLimits
from phronomy_ray.commits import Commit
from phronomy_ray.engine.store_client import StoreClient
from phronomy_ray.errors import PhronomyError
from phronomy_ray.store.sql_store import SqlStore
from ray_testbed import effects

_RUNTIMES: dict[str, Runtime] = {}


class Where(StrEnum):
    """Where in a commit a process is stopped."""

    #: Behind its last statement, and before ``COMMIT``: it holds the agent's row, or the file.
    INSIDE = "inside"
    #: Decided, and not begun: the database has heard nothing yet.
    EDGE = "edge"


def open_runtime(store: str, supervisor: SupervisionLimits | None = None) -> None:
    """Make the runtime of a store; the same one is used from then on."""
    _RUNTIMES[store] = Runtime(store=store, placement=InProcess(), supervisor=supervisor or False)


def runtime(store: str) -> Runtime:
    if store not in _RUNTIMES:
        open_runtime(store)
    return _RUNTIMES[store]


def forget(store: str) -> None:
    """Close the runtime of a store that is about to go."""
    opened = _RUNTIMES.pop(store, None)
    if opened is not None:
        opened.close()


def create(store: str, agent_class: type[Agent], agent_id: str) -> dict[str, Any]:
    return runtime(store).create(agent_class, agent_id).status()


def status(store: str, agent_id: str) -> dict[str, Any]:
    return runtime(store).agent(agent_id).status()


def start(store: str, agent_id: str, message: str, execution_id: str) -> str:
    return runtime(store).agent(agent_id).start(message, execution_id=execution_id).execution_id


def invoke(store: str, agent_id: str, message: str) -> RunResult:
    return runtime(store).agent(agent_id).invoke(message, timeout=effects.PATIENCE_S)


def result(store: str, execution_id: str) -> RunResult:
    return runtime(store).execution(execution_id).result(effects.PATIENCE_S)


def start_many(store: str, agent_class: type[Agent], messages: dict[str, str]) -> None:
    """Create agents and start one execution each, named after its agent."""
    for agent_id, message in messages.items():
        agent = runtime(store).create(agent_class, agent_id)
        agent.start(message, execution_id=f"ex-{agent_id}")


def drain_on_sigterm(store: str, drain_s: float) -> None:
    """Have SIGTERM shut the runtime down, as a deployment does it, and end the process."""

    def leave() -> None:
        signal.sigwait({signal.SIGTERM})
        try:
            runtime(store).shutdown(drain=drain_s)
            runtime(store).close()
        finally:
            os._exit(0)

    threading.Thread(target=leave, daemon=True).start()


def note_commits() -> None:
    """Have every agent of this process leave an effect ``commit`` with what became of each of its commits."""
    commit_once = StoreClient.commit

    async def commit(self: StoreClient, commit: Commit) -> None:
        try:
            await commit_once(self, commit)
        except PhronomyError as error:
            effects.record(commit.agent_id, "commit", step=commit.step, outcome=type(error).__name__)
            raise
        effects.record(commit.agent_id, "commit", step=commit.step, outcome="done")

    StoreClient.commit = commit  # type: ignore[method-assign]


def stop_in_next_commit(store: str, agent_id: str, where: Where) -> None:
    """Have this process stop itself (SIGSTOP) in the next transaction that its agents write; leaves an effect ``stops`` before."""
    opened = runtime(store)
    shared = opened._home._process.store(opened.config.store)  # type: ignore[attr-defined]
    database: SqlStore = shared.store
    transactions = database._transactions
    armed = [True]

    def stop(*_: Any) -> None:
        if armed.pop() if armed else False:
            effects.record(agent_id, "stops", where=where)
            # to this thread: one that is sent to the process may find another thread first, and this one would go on for a moment
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)

    is_sqlite = store.startswith("sqlite")
    if where is Where.INSIDE:
        if not is_sqlite:  # there a group is one statement; taken apart it is what it always was
            database.execute_group = lambda commits: [_outcome(database, one) for one in commits]  # type: ignore[method-assign]
        event.listen(transactions._get_engine(), "commit", stop)
    elif is_sqlite:
        event.listen(transactions._get_engine(), "begin", stop, insert=True)
    else:
        execute_group = database.execute_group

        def stopping(commits: Any) -> Any:
            stop()
            return execute_group(commits)

        database.execute_group = stopping  # type: ignore[method-assign]


def _outcome(database: SqlStore, commit: Commit) -> PhronomyError | None:
    try:
        database.execute(commit)
    except PhronomyError as error:
        return error
    return None
