"""The cost of one durable turn (2 model calls, 1 tool) at turn 1, 50 and 500 of one conversation.

The runtime's own cost of a turn is its whole time, as the caller sees it, without the time that the agent waited for the
model (which takes the transport of a growing input with it, and is reported apart). The tool is a trivial async one.
Rows: the engine in the benchmark's own process; the dedicated actor called by a driver, with a scripted model in the
actor; the dedicated actor through the real gateway and a real HTTP server on loopback.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from support.report import Report, arguments, median, ratio
from support.stores import ENGINES, FreshStore, fresh_store, postgres

#: Makes a new conversation of a name; each call of what it returns is one turn.
Conversation: TypeAlias = "Callable[[str], Callable[[], TurnCost]]"
Driver: TypeAlias = Callable[[FreshStore], AbstractContextManager[Conversation]]

MESSAGE = "What is the price of the thing that we spoke of?"


@dataclass(frozen=True, slots=True)
class TurnCost:
    """One turn, in milliseconds."""

    total: float
    model: float

    @property
    def own(self) -> float:
        return self.total - self.model


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--engine", choices=ENGINES, action="append", help="only this store (may be repeated)"
    )
    parser.add_argument(
        "--row", choices=("engine", "actor", "gateway"), action="append", help="only this row"
    )
    options = parser.parse_args()
    report = Report("turn", options.json, options.quick)
    window = 10 if options.quick else 50
    rows = options.row or ["engine", "actor", "gateway"]
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        drivers: dict[str, Driver] = {"engine": in_process}
        if {"actor", "gateway"} & set(rows):
            stack.enter_context(local_ray(gateway="gateway" in rows))
            drivers["actor"] = dedicated
            drivers["gateway"] = through_gateway
        for engine in options.engine or ENGINES:
            for row in rows:
                report.progress(f"{row} on {engine}")
                with fresh_store(engine, server) as store:
                    measure(report, row, store, drivers[row], window)
    report.notes.append(
        f"medians of {window} turns from the named turn on (from turn 2 for the first, which also loads code); the three "
        "conversations take their measured turns in rotation, so that a drift of the machine meets all three alike"
    )
    report.print()
    return 0


def measure(report: Report, row: str, store: FreshStore, driver: Driver, window: int) -> None:
    """Bring three conversations to turns 1, 49 and 499, then measure their next turns in rotation."""
    starts = {1: 1, 50: 49, 500: 499}
    with driver(store) as conversation:
        turns = {name: conversation(f"turn-{name}") for name in starts}
        sizes: dict[int, float] = {}
        before = 0
        for number in range(1, starts[500] + 1):
            if number in (2, 450):
                before = store.bytes()
            turns[500]()
            if number in (51, 499):
                sizes[1 if number == 51 else 500] = (store.bytes() - before) / 50
        for name in (50, 1):
            for _ in range(starts[name]):
                turns[name]()
        costs: dict[int, list[TurnCost]] = {name: [] for name in starts}
        for _ in range(window):
            for name, turn in turns.items():
                costs[name].append(turn())
    for name in starts:
        report.row(
            row=row,
            store=store.engine,
            turn=name,
            turns_measured=window,
            own_ms=round(median([cost.own for cost in costs[name]]), 3),
            model_wait_ms=round(median([cost.model for cost in costs[name]]), 3),
            total_ms=round(median([cost.total for cost in costs[name]]), 3),
            **({"bytes_per_turn": round(sizes[name])} if name in sizes else {}),
        )
    growth = ratio(median([c.own for c in costs[500]]), median([c.own for c in costs[1]]))
    prefix = {"engine": "engine_", "actor": "", "gateway": "gateway_"}[row]
    report.ratios[f"{prefix}turn500_vs_turn1_{store.engine}"] = growth
    if row == "actor":
        key = "bytes500_vs_bytes1" if store.engine == "sqlite" else "bytes500_vs_bytes1_postgres"
        report.ratios[key] = ratio(sizes[500], sizes[1])


@contextmanager
def in_process(store: FreshStore) -> Iterator[Conversation]:
    """The engine on a loop of this process."""
    from support.bench_agents import OneToolAgent

    from phronomy_ray.clock import SystemClock
    from phronomy_ray.engine.creation import new_agent
    from phronomy_ray.engine.engine import AgentEngine, EngineParts
    from phronomy_ray.ids import new_execution_id
    from phronomy_ray.store.sql_store import open_store
    from phronomy_ray.tools.local_executor import LocalToolExecutor

    definition = OneToolAgent.definition()
    loop = asyncio.new_event_loop()
    engines = []

    def conversation(name: str) -> Callable[[], TurnCost]:
        opened = open_store(store.url)
        opened.create_agent(new_agent(name, definition, now=SystemClock().now()))

        async def make() -> AgentEngine:
            return AgentEngine(name, definition, EngineParts(opened, OneToolAgent.model, LocalToolExecutor()))

        engine = loop.run_until_complete(make())
        engines.append(engine)

        async def one() -> None:
            execution = new_execution_id()
            await engine.start(execution, MESSAGE)
            result = await engine.wait(execution, until="terminal", timeout_s=60)
            assert result is not None
            assert result.output is not None

        def turn() -> TurnCost:
            waited, begun = engine.status()["timing"]["model_s"], time.perf_counter()
            loop.run_until_complete(one())
            total = time.perf_counter() - begun
            return TurnCost(total * 1e3, (engine.status()["timing"]["model_s"] - waited) * 1e3)

        return turn

    yield conversation
    for engine in engines:
        loop.run_until_complete(engine.seal())
    loop.close()


@contextmanager
def dedicated(store: FreshStore, agent_class: str = "OneToolAgent") -> Iterator[Conversation]:
    """Dedicated actors called by this driver."""
    from support import bench_agents

    from phronomy_ray import Runtime

    with Runtime(store=store.url, model_gateways=1) as runtime:
        agents = []

        def conversation(name: str) -> Callable[[], TurnCost]:
            agent = runtime.create(getattr(bench_agents, agent_class), f"{store.engine}-{agent_class}-{name}")
            agents.append(agent)

            def turn() -> TurnCost:
                waited = agent.status()["timing"]["model_s"]
                begun = time.perf_counter()
                result = agent.invoke(MESSAGE, timeout=120)
                total = time.perf_counter() - begun
                assert result.output is not None
                return TurnCost(total * 1e3, (agent.status()["timing"]["model_s"] - waited) * 1e3)

            return turn

        yield conversation
        for agent in agents:
            agent.unload()


def through_gateway(store: FreshStore) -> AbstractContextManager[Conversation]:
    """A dedicated actor whose model calls go through the gateway to a real HTTP server."""
    return dedicated(store, "OneToolGatewayAgent")


@contextmanager
def local_ray(*, gateway: bool) -> Iterator[None]:
    """A Ray of its own, and a model server."""
    import ray
    from support.bench_scripts import one_tool_turn

    from phronomy_ray.testing.local_cluster import LocalCluster
    from phronomy_ray.testing.model_server import ModelServer

    with ExitStack() as stack:
        if gateway:
            server = stack.enter_context(ModelServer(one_tool_turn))
            os.environ["PHRONOMY_BENCH_API_BASE"] = server.base_url
        cluster = stack.enter_context(LocalCluster(workers=0, num_cpus=2))
        ray.init(address=cluster.address, namespace="phronomy", log_to_driver=False)
        yield


if __name__ == "__main__":
    raise SystemExit(main())
