"""What it costs to wake a stored agent, and to keep it live: time by length of history, wakes per second, memory.

* *dedicated*: `Runtime.load` of an agent that has no process, against the start and first answer of a detached Ray actor of an
  empty class, in rotation in the same run; neither has preloaded modules.
* *host*: wakes in a process that runs already, on the loop of its agents; one after another for the time of one, many at once for
  wakes per second. The floor is the one durable commit that a claim is, on the same store.
* *packed*: the same as a driver sees it, `Runtime.load` of agents of one host actor: where the agent lives is looked up, and it is
  asked what it does.
* *memory*: resident bytes that live idle agents add to a process of their own.

Every history is an imported conversation of so many messages: the densest one, for all its records are shown to models.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from support.report import Report, arguments, median, ratio
from support.stores import ENGINES, FreshStore, fresh_store, postgres

HERE = Path(__file__).parent
#: Wakes that are under way at once when many are asked for.
AT_ONCE = 64
#: Between two starts of processes, in seconds, and after the first ones, which start gateway and supervisor.
PAUSE_S = 3.0
SETTLE_S = 10.0
#: Length of the histories of agents whose memory is measured: longer than what a wake reads.
MEMORY_RECORDS = 50


class Bare:
    """An actor of an empty class."""

    def ping(self) -> None:
        pass


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument(
        "--engine", choices=ENGINES, action="append", help="only this store (may be repeated)"
    )
    parser.add_argument(
        "--row", choices=("dedicated", "host", "packed", "memory"), action="append", help="only this row"
    )
    parser.add_argument("--memory-of", nargs=2, metavar=("URL", "AGENTS"), help=argparse_hidden())
    options = parser.parse_args()
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    if options.memory_of:
        print(json.dumps(asyncio.run(_resident(options.memory_of[0], int(options.memory_of[1])))))
        return 0
    report = Report("activation", options.json, options.quick)
    rows = options.row or ["dedicated", "host", "packed", "memory"]
    with ExitStack() as stack:
        server = stack.enter_context(postgres())
        if {"dedicated", "packed"} & set(rows):
            stack.enter_context(local_ray())
        for engine in options.engine or ENGINES:
            if "host" in rows:
                with fresh_store(engine, server) as store:
                    host_wakes(report, store)
            if "packed" in rows:
                with fresh_store(engine, server) as store:
                    packed_wakes(report, store)
        if "dedicated" in rows:
            with fresh_store("sqlite", server) as store:
                dedicated_wakes(report, store)
        if "memory" in rows:
            with fresh_store("sqlite", server) as store:
                memory(report, store)
    _worst(report, "packed_wake_ms_p50", row="host", field="wake_ms_p50", worse=max)
    _worst(report, "packed_wakes_per_s", row="host", field="wakes_per_s", worse=min)
    _worst(report, "packed_load_ms_p50", row="packed", field="load_ms_p50", worse=max)
    _worst(report, "packed_loads_per_s", row="packed", field="loads_per_s", worse=min)
    for key in ("dedicated_1000_vs_bare_actor", "kib_per_idle_agent"):
        if key not in report.ratios:
            report.missing(key, "its row was not measured")
    report.print()
    return 0


def argparse_hidden() -> str:
    """Help of an option that only this program gives to itself."""
    import argparse

    return argparse.SUPPRESS


def _worst(report: Report, key: str, *, row: str, field: str, worse: Callable[[list[float]], float]) -> None:
    """`key` as the worse of the two stores."""
    found = [
        item[field]
        for item in report.results
        if item["row"] == row and field in item and item["records"] == 1_000
    ]
    if found:
        report.ratios[key] = worse(found)
    else:
        report.missing(key, f"the row {row!r} was not measured")


# --- histories -------------------------------------------------------------------------------------------------


def stored_agents(store: FreshStore, prefix: str, count: int, records: int) -> list[str]:
    """Agents with histories of so many records."""
    from support.bench_agents import LongHistoryAgent

    from phronomy_ray.clock import SystemClock
    from phronomy_ray.engine.creation import new_agent
    from phronomy_ray.store.sql_store import open_store

    context = [
        {"role": "assistant" if n % 2 else "user", "content": f"message {n} " + "x" * 100}
        for n in range(records)
    ]
    opened = open_store(store.url)
    names = [f"{prefix}-{records}-{number}" for number in range(count)]
    for name in names:
        new = new_agent(name, LongHistoryAgent.definition(), context=context, now=SystemClock().now())
        opened.create_agent(new)
    opened.close()
    return names


def claims_ms(store: FreshStore, names: list[str]) -> float:
    """The floor: one durable commit that changes one row, in milliseconds."""
    from phronomy_ray.clock import SystemClock
    from phronomy_ray.store.sql_store import open_store

    opened = open_store(store.url)
    taken = []
    for name in names:
        begun = time.perf_counter()
        opened.claim(name, owner={}, now=SystemClock().now())
        taken.append((time.perf_counter() - begun) * 1e3)
    opened.close()
    return median(taken[1:])


# --- a host ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def running_host(limit: int) -> AsyncIterator[Any]:
    """A host of agents on this loop."""
    from phronomy_ray import InProcess
    from phronomy_ray.hosting.in_process import InProcessDirectory, LocalProcess
    from phronomy_ray.runtime.homes import _open_store

    process = LocalProcess(InProcess(max_live_agents=limit), _open_store)
    InProcessDirectory(process, asyncio.get_running_loop())
    process.start()
    yield process.host
    process.close()


def wiring(url: str) -> Any:
    """How `LongHistoryAgent` is started."""
    from support.bench_agents import LongHistoryAgent

    from phronomy_ray.definition.source import DefinitionSource
    from phronomy_ray.hosting.wiring import AgentWiring, StoreConfig

    return AgentWiring(DefinitionSource(LongHistoryAgent.definition().class_path), StoreConfig(url))


def host_wakes(report: Report, store: FreshStore) -> None:
    """One wake after another by length of history, then many at once."""
    one, many = (5, 40) if report.quick else (40, 400)
    for records in (10, 1_000, 10_000):
        report.progress(f"host on {store.engine}: {records} records")
        names = stored_agents(store, "one", one if records < 10_000 else max(3, one // 4), records)
        crowd = stored_agents(store, "many", many, records) if records == 1_000 else []
        floor = claims_ms(store, names)
        times, seconds = asyncio.run(_host_wakes(store.url, names, crowd))
        report.row(
            row="host",
            store=store.engine,
            records=records,
            claim_ms=round(floor, 3),
            wake_ms_p50=round(median(times), 3),
            **({"wakes_per_s": round(len(crowd) / seconds, 1)} if crowd else {}),
        )


async def _host_wakes(url: str, names: list[str], crowd: list[str]) -> tuple[list[float], float]:
    start = wiring(url)
    times = []
    async with running_host(10_000) as host:
        await host.activate(names[0], start)  # connects, and loads code
        for name in names[1:]:
            begun = time.perf_counter()
            await host.activate(name, start)
            times.append((time.perf_counter() - begun) * 1e3)
        begun = time.perf_counter()
        await _in_parts(crowd, lambda name: host.activate(name, start))
        return times, time.perf_counter() - begun


async def _in_parts(names: list[str], wake: Any) -> None:
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with gate:
            await wake(name)

    await asyncio.gather(*(one(name) for name in names))


# --- with Ray --------------------------------------------------------------------------------------------------


def packed_wakes(report: Report, store: FreshStore) -> None:
    """The same as a driver sees it: agents of one host actor."""
    from support.bench_agents import LongHistoryAgent

    from phronomy_ray import Packed, Runtime

    one, many = (5, 40) if report.quick else (40, 400)
    report.progress(f"packed on {store.engine}")
    names = stored_agents(store, "packed", one, 1_000)
    crowd = stored_agents(store, "crowd", many, 1_000)
    namespace = f"bench-{store.engine}"
    with Runtime(
        store=store.url, placement=Packed(hosts=1), model_gateways=1, namespace=namespace
    ) as runtime:
        runtime.load(LongHistoryAgent, names[0])
        times = []
        for name in names[1:]:
            begun = time.perf_counter()
            runtime.load(LongHistoryAgent, name)
            times.append((time.perf_counter() - begun) * 1e3)

        async def all_at_once() -> float:
            begun = time.perf_counter()
            await _in_parts(crowd, lambda name: runtime.load_async(LongHistoryAgent, name))
            return time.perf_counter() - begun

        seconds = asyncio.run(all_at_once())
        report.row(
            row="packed",
            store=store.engine,
            records=1_000,
            load_ms_p50=round(median(times), 3),
            loads_per_s=round(many / seconds, 1),
        )


def dedicated_wakes(report: Report, store: FreshStore) -> None:
    """Bare actors and dedicated agents in rotation."""
    import ray
    from support.bench_agents import LongHistoryAgent

    from phronomy_ray import Runtime

    rounds = 2 if report.quick else 7
    lengths = (10, 1_000, 10_000)
    names = {records: stored_agents(store, "dedicated", rounds + 1, records) for records in lengths}
    bare: Any = ray.remote(Bare)
    taken: dict[int, list[float]] = {0: [], **{records: [] for records in lengths}}
    with Runtime(store=store.url, model_gateways=1) as runtime:
        for number in range(rounds + 1):  # the first round loads code in the driver
            report.progress(f"dedicated: round {number} of {rounds}")
            begun = time.perf_counter()
            actor = bare.options(num_cpus=0, lifetime="detached", name=f"bare-{number}").remote()
            ray.get(actor.ping.remote())
            times = {0: time.perf_counter() - begun}
            ray.kill(actor)
            _pause()
            for records in lengths:
                begun = time.perf_counter()
                agent = runtime.load(LongHistoryAgent, names[records][number])
                times[records] = time.perf_counter() - begun
                agent.unload()
                _pause()
            if not number:
                time.sleep(SETTLE_S)
            else:
                for records, took in times.items():
                    taken[records].append(took)
    floor = median(taken[0])
    for records in lengths:
        wake = median(taken[records])
        report.row(
            row="dedicated",
            store=store.engine,
            records=records,
            bare_ms=round(floor * 1e3, 1),
            wake_ms_p50=round(wake * 1e3, 1),
        )
        report.ratios[f"dedicated_{records}_vs_bare_actor"] = ratio(wake, floor)


def _pause() -> None:
    """Let a process end, and Ray fill its stock of processes, before the next one is timed: both take what others need."""
    time.sleep(PAUSE_S)


@contextmanager
def local_ray() -> Iterator[None]:
    """A Ray of its own."""
    import ray

    from phronomy_ray.testing.local_cluster import LocalCluster

    with LocalCluster(workers=0, num_cpus=2) as cluster:
        ray.init(address=cluster.address, namespace="phronomy", log_to_driver=False)
        yield


# --- memory ----------------------------------------------------------------------------------------------------


def memory(report: Report, store: FreshStore) -> None:
    """Resident memory of live idle agents, in a process that does nothing else."""
    counts = (200,) if report.quick else (1_000, 10_000)
    stored_agents(store, "idle", max(counts) + 50, MEMORY_RECORDS)
    for count in counts:
        report.progress(f"memory: {count} agents")
        output = subprocess.run(
            [sys.executable, __file__, "--memory-of", store.url, str(count)],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        ).stdout
        found = json.loads(output)
        report.row(row="memory", records=MEMORY_RECORDS, agents=count, **found)
        report.ratios["kib_per_idle_agent"] = found["kib_per_agent"]


async def _resident(url: str, count: int) -> dict[str, float]:
    start = wiring(url)
    names = [f"idle-{MEMORY_RECORDS}-{number}" for number in range(count + 50)]
    async with running_host(count + 100) as host:
        await _in_parts(names[:50], lambda name: host.activate(name, start))
        before = _rss_kib()
        await _in_parts(names[50:], lambda name: host.activate(name, start))
        after = _rss_kib()
    return {"process_mib": round(after / 1024, 1), "kib_per_agent": round((after - before) / count, 2)}


def _rss_kib() -> float:
    import gc

    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1024


if __name__ == "__main__":
    raise SystemExit(main())
