"""The cost of one durable turn (2 model calls, 1 tool) at turn 1, 50 and 500 of one conversation.

The runtime's own cost of a turn is its whole time, as the caller sees it, without the time that the agent waited for the
model (which takes the transport of a growing input with it, and is reported apart). The tool is a trivial async one.
Rows: the engine in the benchmark's own process; the dedicated actor called by a driver, with a scripted model in the
actor; the dedicated actor through the real gateway and a real HTTP server on loopback.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from support.report import Report, arguments, median, ratio
from support.stores import ENGINES, FreshStore, fresh_store, postgres

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
        filter(None, [str(Path(__file__).parent / "support"), os.environ.get("PYTHONPATH")])
    )
    sys.path.insert(0, str(Path(__file__).parent / "support"))
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        drivers: dict[str, Callable[[FreshStore], object]] = {"engine": in_process}
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
        f"medians over windows of {window} turns that begin at the named turn; the first window begins at turn 2, "
        "since the first turn of a process also loads code"
    )
    report.print()
    return 0


def measure(
    report: Report, row: str, store: FreshStore, driver: Callable[[FreshStore], object], window: int
) -> None:
    """Run one conversation of 500 turns and a window, and report its three windows."""
    starts = {1: 2, 50: 50, 500: 500}
    # the first window may reach into turn 50: it ends before
    costs: dict[int, list[TurnCost]] = {}
    sizes: dict[int, float] = {}
    with driver(store) as turn:  # type: ignore[attr-defined]
        done = 0
        turn()
        done += 1
        for name, begin in starts.items():
            while done < begin - 1:
                turn()
                done += 1
            count = min(window, 48) if name == 1 else window
            before = store.bytes()
            costs[name] = [turn() for _ in range(count)]
            sizes[name] = (store.bytes() - before) / count
            done += count
            report.row(
                row=row,
                store=store.engine,
                turn=name,
                turns_measured=count,
                own_ms=round(median([cost.own for cost in costs[name]]), 3),
                model_wait_ms=round(median([cost.model for cost in costs[name]]), 3),
                total_ms=round(median([cost.total for cost in costs[name]]), 3),
                bytes_per_turn=round(sizes[name]),
            )
    growth = ratio(median([c.own for c in costs[500]]), median([c.own for c in costs[1]]))
    name = {"engine": "engine_", "actor": "", "gateway": "gateway_"}[row]
    report.ratios[f"{name}turn500_vs_turn1_{store.engine}"] = growth
    if row == "actor":
        key = "bytes500_vs_bytes1" if store.engine == "sqlite" else "bytes500_vs_bytes1_postgres"
        report.ratios[key] = ratio(sizes[500], sizes[1])


@contextmanager
def in_process(store: FreshStore) -> Iterator[Callable[[], TurnCost]]:
    """The engine on a loop of this process."""
    from bench_agents import OneToolAgent

    from phronomy_ray.clock import SystemClock
    from phronomy_ray.engine.creation import new_agent
    from phronomy_ray.engine.engine import AgentEngine, EngineParts
    from phronomy_ray.ids import new_execution_id
    from phronomy_ray.store.sql_store import open_store
    from phronomy_ray.tools.executor import LocalToolExecutor

    definition = OneToolAgent.definition()
    opened = open_store(store.url)
    opened.create_agent(new_agent("bench", definition, now=SystemClock().now()))
    loop = asyncio.new_event_loop()

    async def make() -> AgentEngine:
        return AgentEngine("bench", definition, EngineParts(opened, OneToolAgent.model, LocalToolExecutor()))

    engine = loop.run_until_complete(make())

    async def one() -> None:
        execution = new_execution_id()
        await engine.start(execution, MESSAGE)
        result = await engine.wait(execution, until="terminal", timeout_s=60)
        assert result is not None
        assert result.output is not None

    def turn() -> TurnCost:
        waited, begun = engine.status()["timing"]["model_s"], time.perf_counter()
        loop.run_until_complete(one())
        return TurnCost(
            (time.perf_counter() - begun) * 1e3, (engine.status()["timing"]["model_s"] - waited) * 1e3
        )

    yield turn
    loop.run_until_complete(engine.seal())
    loop.close()


@contextmanager
def dedicated(store: FreshStore, agent_class: str = "OneToolAgent") -> Iterator[Callable[[], TurnCost]]:
    """A dedicated actor called by this driver."""
    import bench_agents

    from phronomy_ray import Runtime

    with Runtime(store=store.url, model_gateways=1) as runtime:
        agent = runtime.create(getattr(bench_agents, agent_class), f"bench-{store.engine}-{agent_class}")

        def turn() -> TurnCost:
            waited = agent.status()["timing"]["model_s"]
            begun = time.perf_counter()
            result = agent.invoke(MESSAGE, timeout=120)
            total = time.perf_counter() - begun
            assert result.output is not None
            return TurnCost(total * 1e3, (agent.status()["timing"]["model_s"] - waited) * 1e3)

        yield turn
        agent.unload()


def through_gateway(store: FreshStore) -> object:
    """A dedicated actor whose model calls go through the gateway to a real HTTP server."""
    return dedicated(store, "OneToolGatewayAgent")


@contextmanager
def local_ray(*, gateway: bool) -> Iterator[None]:
    """A Ray of its own, and a model server."""
    import ray
    from bench_agents import one_tool_turn

    from phronomy_ray.testing.model_server import ModelServer

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    with ExitStack() as stack:
        if gateway:
            server = stack.enter_context(ModelServer(one_tool_turn))
            os.environ["PHRONOMY_BENCH_API_BASE"] = server.base_url
            sys.modules.pop("bench_agents")
        ray.init(address="local", namespace="phronomy", include_dashboard=False, log_to_driver=False)
        stack.callback(ray.shutdown)
        yield


if __name__ == "__main__":
    raise SystemExit(main())
