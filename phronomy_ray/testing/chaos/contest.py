"""Many drivers do at random to one agent what drivers do, and write down what they were told, for the check of admission.

Threads over runtimes of one process, or processes of their own: ``python -m phronomy_ray.testing.chaos.contest CONFIG``. Times are of
the machine's monotonic clock, which all its processes share.
"""

from __future__ import annotations

import json
import random
import sys
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass

from phronomy_ray import Dedicated, Packed, Runtime
from phronomy_ray.errors import AgentBusyError, ConflictError
from phronomy_ray.testing.chaos import log
from phronomy_ray.testing.chaos.admission import Answer, Kind, Operation
from phronomy_ray.testing.chaos.agents import Contested

#: Operations of drivers that are processes.
OPERATIONS = "operations"
#: Log of the drivers that are there.
READY = "ready"
#: A mark: every driver is there.
BEGIN = "begin"
#: What is asked, the frequent more often.
_ASKED = (Kind.START, Kind.START, Kind.APPROVE, Kind.APPROVE, Kind.CANCEL, Kind.UNLOAD)
#: Executions that are still talked about.
_NEWEST = 3
_PAUSE_S = 0.02


class Contestant:
    """One driver.

    Args:
        runtime: what it drives.
        agent_id: the one agent.
        seed: of its choices.
        known: ids of executions that were admitted, oldest first.
        tell: is given each operation when its answer has come.
    """

    def __init__(
        self,
        runtime: Runtime,
        agent_id: str,
        seed: str,
        *,
        known: Callable[[], list[str]],
        tell: Callable[[Operation], object],
    ) -> None:
        self._runtime = runtime
        self._agent_id = agent_id
        self._choice = random.Random(seed)
        self._known = known
        self._tell = tell

    def drive(self, goes_on: Callable[[], bool]) -> None:
        """Until it does not go on."""
        while goes_on():
            self._one()
            time.sleep(self._choice.random() * _PAUSE_S)

    def _one(self) -> None:
        agent = self._runtime.agent(self._agent_id)
        kind = self._choice.choice(_ASKED)
        known = self._known()[-_NEWEST:]
        execution_id = self._choice.choice(known) if known else ""
        if kind is Kind.UNLOAD:
            self._ask(kind, "", agent.unload)
        elif kind is Kind.START:
            execution_id = f"ex-{uuid.uuid4().hex[:8]}"
            message = json.dumps([[["send", 0]]])
            self._ask(kind, execution_id, lambda: agent.start(message, execution_id=execution_id))
        elif execution_id and kind is Kind.CANCEL:
            self._ask(kind, execution_id, lambda: agent.cancel(execution_id))
        elif execution_id:
            requests = self._runtime.store.approvals(execution_id=execution_id)
            if requests:
                request_id = requests[0].approval_request_id
                self._ask(kind, execution_id, lambda: self._runtime.approve(execution_id, request_id))

    def _ask(self, kind: Kind, execution_id: str, call: Callable[[], object]) -> None:
        begun = time.monotonic()
        answer = Answer.DONE
        try:
            if call() is False:
                return  # there was no process here to free: it says nothing of the agent
        except (AgentBusyError, ConflictError):
            answer = Answer.REFUSED
        self._tell(Operation(kind, execution_id, answer, begun, time.monotonic()))


# --- as a process ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ContestConfig:
    """One driver in a process of its own."""

    address: str
    store: str
    namespace: str
    #: Hosts for packed agents; 0 for an actor each.
    hosts: int
    agent_id: str
    seed: str
    seconds: float

    def to_text(self) -> str:
        """For a command line."""
        return json.dumps(asdict(self))

    def runtime(self) -> Runtime:
        """A runtime for it."""
        placement = Packed(hosts=self.hosts) if self.hosts else Dedicated()
        return Runtime(self.address, store=self.store, namespace=self.namespace, placement=placement)


def told() -> list[Operation]:
    """What all drivers that are processes were told."""
    return [
        Operation(
            Kind(entry["kind"]),
            entry["execution_id"],
            Answer(entry["answer"]),
            entry["begun"],
            entry["ended"],
        )
        for entry in log.entries(OPERATIONS)
    ]


def _write(operation: Operation) -> None:
    log.append(OPERATIONS, **asdict(operation))


def _admitted() -> list[str]:
    return [item.execution_id for item in told() if item.kind is Kind.START and item.answer is Answer.DONE]


def main(text: str) -> None:
    """Drive when all are there."""
    config = ContestConfig(**json.loads(text))
    with config.runtime() as runtime:
        runtime.load_or_create(Contested, config.agent_id)
        log.append(READY, agent_id=config.agent_id)
        while not log.is_marked(BEGIN):
            time.sleep(0.05)
        until = time.monotonic() + config.seconds
        contestant = Contestant(runtime, config.agent_id, config.seed, known=_admitted, tell=_write)
        contestant.drive(lambda: time.monotonic() < until)


if __name__ == "__main__":
    main(sys.argv[1])
