"""``doctor --explain`` and ``doctor --repair``: why an agent does not go on, and the steps that change nothing that is known."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from phronomy_ray.cli.exit_codes import ClusterUnavailableError, ExitCode
from phronomy_ray.cli.output import print_json
from phronomy_ray.cli.present_folder import import_from_here
from phronomy_ray.cli.session import Session
from phronomy_ray.clock import utc_now
from phronomy_ray.errors import NotFoundError, PhronomyError
from phronomy_ray.open_work import WorkKind
from phronomy_ray.runtime.explaining import (
    Facts,
    Reason,
    definition_reason,
    explain,
    may_wake,
    read_facts,
    store_reason,
)
from phronomy_ray.store.port import Store

if TYPE_CHECKING:
    from phronomy_ray.runtime.runtime import Runtime

#: Agents that one ``--repair`` looks at.
MAX_AGENTS = 1_000

#: Status of a live agent, ``None`` when it is not live.
AskLive = Callable[[str], dict[str, Any] | None]


def explain_command(session: Session, subject: str, *, as_json: bool) -> None:
    """Say why an agent, or an execution's agent, is where it is."""
    try:
        with session.open_store() as store:
            facts = read_facts(store, subject)
    except NotFoundError:
        raise
    except PhronomyError as error:
        _show(session, subject, [store_reason(error)], as_json=as_json)
        raise typer.Exit(ExitCode.FAILED) from None
    with _live(session) as ask:
        reasons = _reasons(facts, ask)
    _show(session, facts.root.agent_id, reasons, as_json=as_json)


def repair_command(session: Session, subject: str, *, as_json: bool) -> None:
    """Settle commits of unknown outcome, wake what was interrupted, let queued requests go on; say each step.

    Without a subject, agents that another cluster or driver has held last are left alone: it may hold them still.

    Raises `ClusterUnavailableError` when no cluster answers.
    """
    steps: list[dict[str, str]] = []

    def told(agent_id: str, text: str) -> None:
        steps.append({"agent_id": agent_id, "step": text})
        if not as_json:
            session.console.print(f"{agent_id}: {text}", markup=False, soft_wrap=True)

    failed = False
    left_alone: list[str] = []
    with session.open_store() as store, session.open_runtime(supervisor=False) as runtime:
        here = _cluster(runtime)
        for agent_id in [read_facts(store, subject).root.agent_id] if subject else _agents_with_work(store):
            try:
                facts = read_facts(store, agent_id)
                elsewhere = str(facts.root.owner.get("cluster", ""))
                if not subject and elsewhere not in ("", here):
                    left_alone.append(agent_id)  # another cluster or driver may hold it
                    continue
                live = _status(runtime, agent_id)
                reasons = explain(facts, definition=definition_reason(facts.root), live=live, asked_live=True)
                if not may_wake(reasons):
                    if subject:
                        told(agent_id, f"nothing that is safe to do: {reasons[0].text}")
                    continue
                _settle(store, agent_id, live, told)
                handle = runtime.agent(agent_id)
                if facts.execution is not None:
                    result = handle.resume(facts.execution.execution_id)
                    told(agent_id, f"woken: execution {result.execution_id} is {result.status.value}")
                else:
                    told(agent_id, f"woken: {handle.status()['lifecycle']}")
                gone = facts.taken - {item.execution_id for item in store.queued_requests(agent_id)}
                for id_ in sorted(gone):
                    told(agent_id, f"the queued request {id_} was dropped: another execution has its id")
            except PhronomyError as error:
                failed = True
                told(agent_id, f"failed: {error.message} [{error.code}]")
    if as_json:
        print_json({"steps": steps, "left_alone": left_alone, "ok": not failed})
    elif left_alone:
        text = (
            f"{len(left_alone)} agents with work were last held elsewhere and are left alone ({', '.join(left_alone[:10])}): "
            f"name one that nobody holds any more: {session.command('doctor --repair --explain ID')}, or start a supervisor: "
            f"{session.command('up')}"
        )
        session.console.print(text, markup=False, soft_wrap=True)
    elif not steps:
        session.console.print("there is nothing to repair", style="green")
    if failed:
        raise typer.Exit(ExitCode.FAILED)


def _cluster(runtime: Runtime) -> str:
    """What owners on this cluster write into the store; empty in process, where every command is a driver of its own."""
    if not _asks_cluster():
        return ""
    from phronomy_ray.actors.ray_calls import cluster_name

    return cluster_name(runtime.config.namespace)


def _asks_cluster() -> bool:
    from phronomy_ray.definition.placement import InProcess
    from phronomy_ray.runtime.config import placement_of_environment

    return not isinstance(placement_of_environment(), InProcess)


def _settle(
    store: Store, agent_id: str, live: dict[str, Any] | None, told: Callable[[str, str], None]
) -> None:
    """Find out what became of the commit that the live process stopped with."""
    details = ((live or {}).get("error") or {}).get("details") or {}
    commit_id, epoch = details.get("commit_id"), details.get("epoch")
    if isinstance(commit_id, str) and isinstance(epoch, int):
        happened = store.settle(agent_id, epoch=epoch, commit_id=commit_id)
        told(agent_id, f"commit {commit_id} {'has' if happened else 'has not'} happened")


def _agents_with_work(store: Store) -> list[str]:
    running = store.list_executions(non_terminal_only=True, limit=MAX_AGENTS)
    queued = store.open_work(WorkKind.QUEUED, now=utc_now(), limit=MAX_AGENTS)
    return list(dict.fromkeys([*(row.agent_id for row in running), *(work.agent_id for work in queued)]))


def _reasons(facts: Facts, ask: AskLive | None) -> list[Reason]:
    import_from_here()
    live = ask(facts.root.agent_id) if ask is not None else None
    return explain(facts, definition=definition_reason(facts.root), live=live, asked_live=ask is not None)


@contextmanager
def _live(session: Session) -> Iterator[AskLive | None]:
    """How to ask live agents; ``None`` when no cluster answers. Wakes nothing."""
    with ExitStack() as stack:
        runtime: Runtime | None = None
        if session.address_or("") != "local" and _asks_cluster():
            with suppress(ClusterUnavailableError):
                runtime = stack.enter_context(session.open_runtime(supervisor=False))
        yield None if runtime is None else partial(_status, runtime)


def _status(runtime: Runtime, agent_id: str) -> dict[str, Any] | None:
    found = runtime.get(agent_id)
    return None if found is None else found.status()


def _show(session: Session, agent_id: str, reasons: list[Reason], *, as_json: bool) -> None:
    if as_json:
        print_json({"agent_id": agent_id, "reasons": [reason.to_wire() for reason in reasons]})
        return
    session.console.print(f"agent {agent_id}", style="bold", markup=False)
    for reason in reasons:
        session.console.print(f"  {reason.text}", markup=False, soft_wrap=True)
        for command in reason.commands:
            session.console.print(
                f"    -> {session.command(command)}", markup=False, soft_wrap=True, style="yellow"
            )


__all__ = ["explain_command", "repair_command"]
