"""A driver under the storm: ``python -m phronomy_ray.testing.chaos.load CONFIG``, in a process of its own that may be killed.

One thread for each of its agents: start, watch to the end, be the human where one is needed, write down what was told. A driver
that is started again goes on with what its predecessor had begun.
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from phronomy_ray import AgentHandle, Dedicated, InProcess, Packed, Runtime
from phronomy_ray.errors import (
    AgentBusyError,
    BackpressureError,
    ConflictError,
    NotFoundError,
    PhronomyError,
)
from phronomy_ray.results import RunResult
from phronomy_ray.testing.chaos import log
from phronomy_ray.testing.chaos.agents import NAMES, WORKER_MEMORY_BYTES, class_of
from phronomy_ray.tools.pool_config import PoolConfig

T = TypeVar("T")
#: A mark: begin nothing any more.
ENOUGH = "enough"
#: How long one call may go on being tried, in seconds.
PATIENCE_S = 240.0


@dataclass(frozen=True, slots=True)
class LoadConfig:
    """What one driver does."""

    #: Of the cluster; empty for agents in the driver's own process.
    address: str
    store: str
    namespace: str
    #: Hosts for packed agents; 0 for an actor each.
    hosts: int
    number: int
    agents: tuple[str, ...]
    seed: int

    def to_text(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    @classmethod
    def of_text(cls, text: str) -> LoadConfig:
        """From a command line."""
        values = json.loads(text)
        return cls(**{**values, "agents": tuple(values["agents"])})

    def runtime(self) -> Runtime:
        """A runtime for it."""
        if not self.address:
            return Runtime(placement=InProcess(), store=self.store)
        placement = Packed(hosts=self.hosts) if self.hosts else Dedicated()
        return Runtime(
            self.address,
            store=self.store,
            namespace=self.namespace,
            placement=placement,
            pools={"default": PoolConfig(worker_memory_bytes=WORKER_MEMORY_BYTES)},
        )


class Human:
    """One thread of the driver: it works with one agent."""

    def __init__(self, config: LoadConfig, runtime: Runtime, agent_id: str) -> None:
        self._config = config
        self._runtime = runtime
        self._agent_id = agent_id
        self._choice = random.Random(f"{config.seed}/{agent_id}")

    def work(self) -> None:
        """Until it is enough."""
        agent = persist(lambda: self._runtime.load_or_create(class_of(self._agent_id), self._agent_id))
        mine = [entry for entry in log.entries(log.HISTORY) if entry.get("agent_id") == self._agent_id]
        ended = {entry["execution_id"] for entry in mine if entry["kind"] == "ended"}
        begun = [entry for entry in mine if entry["kind"] == "begin"]
        for entry in begun:
            if entry["execution_id"] not in ended:
                self._turn(agent, entry["execution_id"], entry["message"])
        number = len(begun)
        while not log.is_marked(ENOUGH):
            number += 1
            message = json.dumps(
                [
                    [
                        (self._choice.choice(NAMES), self._choice.randrange(0, 400))
                        for _ in range(self._choice.randrange(1, 4))
                    ]
                    for _ in range(self._choice.randrange(1, 3))
                ]
            )
            self._turn(agent, f"ex-{self._agent_id}-{number}", message)

    def _turn(self, agent: AgentHandle, execution_id: str, message: str) -> None:
        self._tell("begin", execution_id, message=message)
        persist(lambda: agent.start(message, execution_id=execution_id))
        self._tell("admitted", execution_id)
        if self._choice.random() < 0.1:
            time.sleep(self._choice.random() * 0.3)
            persist(lambda: agent.cancel(execution_id, "changed my mind"))
        result = persist(lambda: self._to_the_end(agent, execution_id))
        self._tell("ended", execution_id, status=result.status.value, output=result.output)

    def _to_the_end(self, agent: AgentHandle, execution_id: str) -> RunResult:
        handle = agent.execution(execution_id)
        while True:
            result = handle.wait("suspended")
            if result.status.is_terminal:
                return result
            for request in result.approvals:
                approved = self._choice.random() < 0.8
                agent.approve(
                    execution_id, request.approval_request_id, approved=approved, decided_by="human"
                )
            for call in result.unresolved:
                self._resolve(agent, execution_id, call)

    def _resolve(self, agent: AgentHandle, execution_id: str, call: Any) -> None:
        """Look outside whether it was done, as a human would; who looks too early is wrong, so wait a little first."""
        time.sleep(1.5)
        done = any(effect["tool_call_id"] == call.tool_call_id for effect in log.entries(log.EFFECTS))
        outcome = "succeeded" if done else "not_performed"
        # the word may be taken although its answer is lost: it is written down before it is said
        revision = call.execution_revision
        self._tell(
            "resolved", execution_id, tool_call_id=call.tool_call_id, outcome=outcome, revision=revision
        )
        agent.resolve(execution_id, call.tool_call_id, outcome, result="it was" if done else None)

    def _tell(self, kind: str, execution_id: str, **facts: Any) -> None:
        log.append(log.HISTORY, kind=kind, agent_id=self._agent_id, execution_id=execution_id, **facts)


def persist(function: Callable[[], T]) -> T:
    """Call it until it works: under a storm every error but a misuse may be over soon. Raises the last one when patience ends."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return function()
        except PhronomyError as error:
            lasting = isinstance(error, ConflictError) and not isinstance(
                error, AgentBusyError | BackpressureError
            )
            if time.monotonic() > deadline or (isinstance(error, NotFoundError) and not error.retryable):
                raise
            log.append("errors", code=error.code, message=error.message[:300], lasting=lasting)
            time.sleep(0.3)


def main(text: str) -> None:
    """Work with all agents of the configuration."""
    config = LoadConfig.of_text(text)
    failures: list[str] = []

    def one(agent_id: str) -> None:
        try:
            Human(config, runtime, agent_id).work()
        except BaseException as error:  # noqa: BLE001 - written down, and the driver's exit code
            failures.append(f"{agent_id}: {type(error).__name__}: {error}")
            log.append("failures", agent_id=agent_id, error=f"{type(error).__name__}: {error}"[:500])

    with persist(config.runtime) as runtime:
        threads = [threading.Thread(target=one, args=(agent_id,)) for agent_id in config.agents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(sys.argv[1])
