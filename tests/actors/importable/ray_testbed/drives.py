"""What other drivers are asked to do: functions of plain arguments, one runtime per store in each process."""

from __future__ import annotations

from typing import Any

from phronomy_ray import Agent, AgentHandle, Event, PhronomyError, RunResult, Runtime
from ray_testbed import effects

_RUNTIMES: dict[str, Runtime] = {}


def runtime(store: str) -> Runtime:
    if store not in _RUNTIMES:
        _RUNTIMES[store] = Runtime(store=store)
    return _RUNTIMES[store]


def forget(store: str) -> None:
    """Close the runtime of a store that is about to go."""
    opened = _RUNTIMES.pop(store, None)
    if opened is not None:
        opened.close()


def load(store: str, agent_class: type[Agent], agent_id: str) -> dict[str, Any]:
    return runtime(store).load(agent_class, agent_id).status()


def load_or_create(store: str, agent_class: type[Agent], agent_id: str) -> dict[str, Any]:
    return runtime(store).load_or_create(agent_class, agent_id).status()


def create(store: str, agent_class: type[Agent], agent_id: str) -> dict[str, Any]:
    return runtime(store).create(agent_class, agent_id).status()


def agent(store: str, agent_id: str) -> AgentHandle:
    return runtime(store).agent(agent_id)


def run(store: str, agent_id: str, message: str, execution_id: str) -> RunResult:
    """Start and wait for the end."""
    return agent(store, agent_id).start(message, execution_id=execution_id).result(effects.PATIENCE_S)


def start(store: str, agent_id: str, message: str, execution_id: str) -> str:
    return agent(store, agent_id).start(message, execution_id=execution_id).execution_id


def approve(store: str, execution_id: str, approved: bool = True) -> RunResult:
    """Answer every open request of an execution that this driver did not start."""
    handle = runtime(store).execution(execution_id)
    answer = handle.view()
    for request in answer.approvals:
        answer = runtime(store).approve(execution_id, request.approval_request_id, approved=approved)
    return answer


def result(store: str, execution_id: str) -> RunResult:
    return runtime(store).execution(execution_id).result(effects.PATIENCE_S)


def error_of(store: str, execution_id: str) -> PhronomyError:
    """The stored failure, raised by the read-back."""
    try:
        result(store, execution_id)
    except PhronomyError as error:
        return error
    raise AssertionError(f"execution {execution_id} did not fail")


def read_events(store: str, execution_id: str, after: int = 0, log: str | None = None) -> list[Event]:
    """All events to the end; with `log`, each is noted there as it comes."""
    events = []
    for event in runtime(store).execution(execution_id).events(after=after):
        events.append(event)
        if log is not None:
            effects.record(log, "read", seq=event.seq, type=event.type.value)
    return events


def error_of_with_causes(store: str, execution_id: str) -> list[BaseException]:
    """The stored failure and its chain of causes, one by one: pickle keeps no chain."""
    chain: list[BaseException] = []
    error: BaseException | None = error_of(store, execution_id)
    while error is not None:
        chain.append(error)
        error = error.__cause__
    return chain


def runtime_ready(store: str) -> None:
    """Open a store ahead of a race."""
    runtime(store)
