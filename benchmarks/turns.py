"""Durable turns per second (2 model calls, 1 tool) of 1, 64 and 1,000 agents at once, against other durable runtimes.

The model is scripted and in process, the tool cooperative and trivial: what is left is the runtimes. Ours are packed agents, in
one host (a Ray actor) that a driver calls for every turn; `in_process` is the same host in the driver. LangGraph
with its checkpointers and DBOS, where they are installed, run in this process. All rows of one size take their windows in
rotation; a window is one or more turns of every agent, all agents at once.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from support import durable_peers
from support.durable_peers import MESSAGE, Turn
from support.report import Report, arguments, median, ratio
from support.stores import ENGINES, fresh_store, postgres

from phronomy_ray.testing.postgres import PostgresServer, fresh_database

#: Agents at once: turns of each agent in one window, and windows.
SIZES = {1: (40, 7), 64: (4, 7), 1000: (1, 2)}
QUICK = {1: (5, 2), 64: (1, 2), 1000: (1, 1)}
#: Sizes of a quick run that names none.
QUICK_SIZES = (1, 64)


@dataclass
class System:
    """One row: something that makes turns."""

    turn: Turn
    #: Waiting for the model and number of commits so far, of the agent of this name; ``None`` where nobody counts.
    look: Callable[[str], Awaitable[tuple[float, int]]] | None = None
    #: Turns per second of each window.
    rates: list[float] = field(default_factory=list)
    own_ms: list[float] = field(default_factory=list)
    commits: list[float] = field(default_factory=list)


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--engine", choices=ENGINES, action="append", help="only this store (may be repeated)"
    )
    parser.add_argument("--agents", type=int, choices=tuple(SIZES), action="append", help="only this size")
    parser.add_argument(
        "--no-ray", action="store_true", help="without the packed rows; their ratios are in_process's"
    )
    options = parser.parse_args()
    report = Report("turns", options.json, options.quick)
    wanted = options.agents or (QUICK_SIZES if options.quick else tuple(SIZES))
    sizes = {size: (QUICK if options.quick else SIZES)[size] for size in SIZES if size in wanted}
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        if not options.no_ray:
            stack.enter_context(local_ray())
        for engine in options.engine or ENGINES:
            for agents, (turns, windows) in sizes.items():
                report.progress(f"{agents} agents on {engine}")
                asyncio.run(
                    measure(
                        report, engine, server, agents, turns=turns, windows=windows, ray=not options.no_ray
                    )
                )
    ratios(report)
    report.notes.append(
        "langgraph is measured in two of its modes (async is its default, sync stores before it goes on); the faster one counts"
    )
    report.print()
    return 0


async def measure(
    report: Report, engine: str, server: PostgresServer, agents: int, *, turns: int, windows: int, ray: bool
) -> None:
    """All rows of one size on one store."""
    names = [f"{engine}-{agents}-{number}" for number in range(agents)]  # a host knows its agents by them
    async with AsyncExitStack() as stack:
        systems = await open_systems(stack, engine, server, names, ray=ray)
        for system in systems.values():  # loads code, opens connections, claims agents
            await window(system, names, 1)
        for _ in range(windows):
            for system in systems.values():
                await measured_window(system, names, turns)
        for name, system in systems.items():
            report.row(
                row=name,
                store=engine,
                agents=agents,
                turns=agents * turns * windows,
                turns_per_s=round(median(system.rates), 1),
                **(
                    {"own_ms_per_turn": round(median(system.own_ms), 2)}
                    if agents == 1 and system.own_ms
                    else {}
                ),
                **({"commits_per_turn": round(median(system.commits), 2)} if system.commits else {}),
            )


async def measured_window(system: System, names: list[str], turns: int) -> None:
    """One window of one row."""
    before = [await system.look(name) for name in names[:64]] if system.look else []
    seconds = await window(system, names, turns)
    system.rates.append(len(names) * turns / seconds)
    if system.look:
        after = [await system.look(name) for name in names[:64]]
        done = turns * len(before)
        commits = sum(item[1] for item in after) - sum(item[1] for item in before)
        system.commits.append(commits / done)
        if len(names) == 1:
            system.own_ms.append((seconds - (after[0][0] - before[0][0])) / turns * 1e3)


async def window(system: System, names: list[str], turns: int) -> float:
    """`turns` turns of every agent, all agents at once; how many seconds that took."""

    async def conversation(name: str) -> None:
        for _ in range(turns):
            await system.turn(name)

    begun = time.perf_counter()
    await asyncio.gather(*map(conversation, names))
    return time.perf_counter() - begun


async def open_systems(
    stack: AsyncExitStack, engine: str, server: PostgresServer, names: list[str], *, ray: bool
) -> dict[str, System]:
    """Every row that can be measured here, each with a store of its own."""
    found: dict[str, System] = {}
    for row in ("packed", "in_process") if ray else ("in_process",):
        store = stack.enter_context(fresh_store(engine, server))
        found[row] = await stack.enter_async_context(ours(store.url, names, packed=row == "packed"))
    missing = durable_peers.missing_peers()
    if "langgraph" not in missing:
        for durability in ("async", "sync"):
            url = stack.enter_context(_empty(engine, server))
            peer = durable_peers.langgraph(engine, url, durability=durability)
            found[f"langgraph_{durability}"] = System(await stack.enter_async_context(peer))
    if engine == "postgres" and "dbos" not in missing:
        url = stack.enter_context(_empty(engine, server))
        found["dbos"] = System(await stack.enter_async_context(durable_peers.dbos(url)))
    return found


@contextmanager
def _empty(engine: str, server: PostgresServer) -> Iterator[str]:
    """URL of an empty database."""
    if engine == "postgres":
        with fresh_database(server) as url:
            yield url
    else:
        with tempfile.TemporaryDirectory(prefix="phronomy-bench-") as folder:
            yield f"sqlite:///{Path(folder) / 'peer.db'}"


@asynccontextmanager
async def ours(url: str, names: list[str], *, packed: bool) -> AsyncIterator[System]:
    """Agents of this package in one host."""
    from support.bench_agents import OneToolAgent

    from phronomy_ray import InProcess, Packed, Runtime

    runtime = await asyncio.to_thread(
        lambda: Runtime(store=url, placement=Packed(hosts=1) if packed else InProcess())
    )
    agents = dict(
        zip(
            names,
            await asyncio.gather(*(runtime.create_async(OneToolAgent, name) for name in names)),
            strict=True,
        )
    )

    async def turn(name: str) -> None:
        result = await agents[name].invoke_async(MESSAGE, timeout=300)
        assert result.output is not None

    async def look(name: str) -> tuple[float, int]:
        timing = (await agents[name].status_async())["timing"]
        return timing["model_s"], timing["commits"]

    try:
        yield System(turn, look)
    finally:
        await asyncio.to_thread(runtime.close)


def ratios(report: Report) -> None:
    """The ratios of the rows that were measured."""
    rates = {(row["row"], row["store"], row["agents"]): row for row in report.results}
    packed = "packed" if any(row["row"] == "packed" for row in report.results) else "in_process"

    def rate(row: str, store: str, agents: int) -> float | None:
        found = rates.get((row, store, agents))
        return None if found is None else float(found["turns_per_s"])

    for key, store, peers in (
        ("sqlite64_vs_langgraph", "sqlite", ("langgraph_async", "langgraph_sync")),
        ("postgres64_vs_langgraph", "postgres", ("langgraph_async", "langgraph_sync")),
        ("postgres64_vs_dbos", "postgres", ("dbos",)),
    ):
        own = rate(packed, store, 64)
        theirs = [found for peer in peers if (found := rate(peer, store, 64)) is not None]
        if own is None:
            report.missing(key, "64 agents were not measured")
        elif not theirs:
            report.missing(key, "not installed: pip install 'phronomy-ray[peers]'")
        else:
            report.ratios[key] = ratio(own, max(theirs))
    alone = rates.get((packed, "postgres", 1))
    if alone is None:
        report.missing("postgres1_ms_per_turn", "one agent on PostgreSQL was not measured")
    else:
        report.ratios["postgres1_ms_per_turn"] = alone["own_ms_per_turn"]
    counted = [row["commits_per_turn"] for row in report.results if "commits_per_turn" in row]
    if counted:
        report.ratios["commits_per_turn"] = max(counted)
    else:
        report.missing("commits_per_turn", "nothing was measured")


@contextmanager
def local_ray() -> Iterator[None]:
    """A Ray of its own."""
    import ray

    from phronomy_ray.testing.local_cluster import LocalCluster

    with LocalCluster(workers=0, num_cpus=2) as cluster:
        ray.init(address=cluster.address, namespace="phronomy", log_to_driver=False)
        try:
            yield
        finally:
            ray.shutdown()


if __name__ == "__main__":
    raise SystemExit(main())
