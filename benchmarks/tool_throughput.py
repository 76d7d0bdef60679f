"""One turn with N tool calls: ours on every store, what the machine allows, and what other runtimes make of it.

Three tools: `trivial` is an async function that returns at once, `sleep50` blocks for 50 ms, `burn50` computes for about
50 ms in pure Python. A turn is a model call that asks for N calls, the calls, and a model call that answers; no model does
any work. Everything that is compared is timed in rotation within one run.

Rows:

* ``dedicated``: a dedicated actor called by this driver, on SQLite and PostgreSQL with their durability on, and on
  ``memory``: the same SQLite on a RAM disk, where fsync costs nothing and nothing survives (durability off).
* ``engine``: the same engine in this process, with tools on threads; ``none`` throws its commits away (durability off).
* floors: ``asyncio_gather`` or ``threads`` in this process, ``ray_tasks`` (one per call), ``ray_chunks`` (2 tasks of 128
  threads that stream lists), ``ray_warm_actor`` (one call that runs the batch on 256 threads of a warm actor) and
  ``ray_warm_actor_calls`` (one call of it for each).
* peers, with the `peers` extra: LangGraph as it comes and with as many threads as calls, the OpenAI Agents SDK,
  pydantic-ai. They store nothing.

Besides, one turn with a single blocking tool through the model gateway, against the same hops without a kernel.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from support.batch_scripts import BatchModel, Work
from support.floors import RayFloors, local_floors
from support.our_rows import OurTurn, dedicated, in_process
from support.peers import missing_peers, peers
from support.report import Report, arguments, ratio
from support.rotation import Samples, rotate
from support.skeleton import Recording, SkeletonActor
from support.stores import FreshStore, fresh_store, postgres
from support.tool_bodies import cpu_rounds

TOOLS = ("trivial", "sleep50", "burn50")
SIZES = (1, 8, 64, 256, 1024)
#: RAM disk for the rows without durability.
RAM_DISK = "/dev/shm"
#: The row that counts in every ratio.
OURS = "dedicated/sqlite"
RAW_RAY = ("ray_chunks", "ray_warm_actor", "ray_warm_actor_calls")
PEER_ROWS = ("langgraph", "langgraph_tuned", "langgraph_tuned_async", "openai_agents", "pydantic_ai")

Cell = dict[str, Samples]


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this tool (may be repeated)")
    parser.add_argument("--calls", type=int, action="append", help="only this N (may be repeated)")
    parser.add_argument(
        "--no-ray", action="store_true", help="only what needs no Ray: engine rows, threads, peers"
    )
    options = parser.parse_args()
    report = Report("tool_throughput", options.json, options.quick)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    bench = Bench(report, rounds=2 if options.quick else 7, budget_s=2.0 if options.quick else 4.0)
    sizes = options.calls or ([1, 8, 64, 256] if options.quick else list(SIZES))
    cells: dict[tuple[str, int], Cell] = {}
    with ExitStack() as stack:
        bench.open(stack, use_ray=not options.no_ray)
        for tool in options.tool or TOOLS:
            for calls in sizes:
                if tool == "burn50" and calls > 64 and options.quick:
                    continue
                cells[tool, calls] = bench.cell(tool, calls)
        if not options.no_ray:
            bench.skeleton(turns=10 if options.quick else 60)
    _ratios(report, cells)
    report.notes.append(
        f"a burn50 body is {bench.rounds_of_burn} rounds of arithmetic, calibrated to 50 ms when the run began"
    )
    report.print()
    return 0


class Bench:
    """Stores, Ray and runtimes that all cells share."""

    def __init__(self, report: Report, *, rounds: int, budget_s: float) -> None:
        self._report = report
        self._rounds = rounds
        self._budget_s = budget_s
        self.rounds_of_burn = cpu_rounds()
        self._stores: dict[str, FreshStore] = {}
        self._runtimes: dict[str, Any] = {}
        self._ray: RayFloors | None = None
        self._gateway: Any = None

    def open(self, stack: ExitStack, *, use_ray: bool) -> None:
        """Fresh stores; a Ray of our own, with a gateway whose model does no work."""
        server = stack.enter_context(postgres())
        for engine in ("sqlite", "postgres"):
            self._stores[engine] = stack.enter_context(fresh_store(engine, server))
        self._stores["memory"] = stack.enter_context(_memory_store())
        if not use_ray:
            return
        import ray

        from phronomy_ray import Runtime
        from phronomy_ray.actors.model_gateway import ModelGateway, gateway_options
        from phronomy_ray.testing.local_cluster import LocalCluster

        cluster = stack.enter_context(LocalCluster(workers=0, num_cpus=os.cpu_count() or 2))
        ray.init(address=cluster.address, namespace="phronomy", log_to_driver=False)
        gateway: Any = ray.remote(ModelGateway)
        self._gateway = gateway.options(**gateway_options(0, "phronomy")).remote(BatchModel())
        self._ray = RayFloors()
        stack.callback(self._ray.close)
        for name, store in self._stores.items():
            self._runtimes[name] = stack.enter_context(Runtime(store=store.url, model_gateways=1))

    def cell(self, tool: str, calls: int) -> Cell:
        """Time everything for one tool and one N."""
        from support.batch_agents import BatchAgent

        self._report.progress(f"{tool} x {calls}")
        work = Work(tool, calls, (("rounds", self.rounds_of_burn),) if tool == "burn50" else ())
        # what holds the interpreter takes N x 50 ms in one process and needs no second look
        alone_in_process = tool == "burn50" and calls > 64
        with ExitStack() as stack:
            ours: dict[str, OurTurn] = {}
            for name, runtime in self._runtimes.items():
                ours[f"dedicated/{name}"] = stack.enter_context(dedicated(runtime, BatchAgent, work))
            contenders: dict[str, Callable[[], object]] = {}
            if not alone_in_process:
                for name in ("sqlite", "postgres"):
                    ours[f"engine/{name}"] = stack.enter_context(
                        in_process(BatchAgent, self._stores[name], work)
                    )
                ours["engine/none"] = stack.enter_context(
                    in_process(BatchAgent, self._stores["memory"], work, keep=False)
                )
                contenders |= local_floors(work, stack) | peers(work, stack)
            if self._ray is not None:
                floors = self._ray.of(work)
                if tool != "burn50" and calls > 256:
                    del floors["ray_tasks"]  # two at a time: half a minute that says nothing new
                contenders |= floors
            contenders = {name: turn.turn for name, turn in ours.items()} | contenders
            before = {name: turn.commits() for name, turn in ours.items()}
            found = rotate(contenders, rounds=self._rounds, budget_s=self._budget_s)
            spent = {name: _difference(turn.commits(), before[name]) for name, turn in ours.items()}
        for name, samples in found.items():
            turns = len(samples.times) + 1
            commits = spent.get(name)
            self._report.row(
                tool=tool,
                calls=calls,
                row=name,
                median_ms=round(samples.median, 2),
                first_ms=round(samples.first, 2),
                calls_per_s=round(calls / samples.median * 1e3, 1),
                turns=len(samples.times),
                **(
                    {}
                    if commits is None
                    else {
                        "commits": round(commits[0] / turns, 1),
                        "commit_ms": round(commits[1] / turns * 1e3, 2),
                    }
                ),
            )
        return found

    def skeleton(self, *, turns: int) -> None:
        """One turn with a single blocking tool through the gateway, against its hops alone."""
        import ray
        from support.batch_agents import GatewayBatchAgent

        work = Work("touch", 1)
        recording = Recording(work, turns + 1)
        steps = [len(commits) for commits in recording.commits]
        assert set(steps) == {4}, steps
        for name, runtime in self._runtimes.items():
            self._report.progress(f"single blocking tool on {name}")
            remote: Any = ray.remote(SkeletonActor)
            actor: Any = remote.options(num_cpus=0).remote(
                self._stores[name].url, recording.agent, self._gateway
            )
            ray.get(actor.ready.remote())
            script = iter(zip(recording.commits, recording.requests, strict=True))

            def hops(actor: Any = actor, script: Iterator[tuple[Any, Any]] = script) -> None:
                commits, requests = next(script)
                assert ray.get(actor.turn.remote(commits, requests)) == "0"

            with dedicated(runtime, GatewayBatchAgent, work) as ours:
                found = rotate(
                    {"dedicated": ours.turn, "skeleton": hops}, rounds=turns, budget_s=self._budget_s * 3
                )
            ray.kill(actor)
            for row, samples in found.items():
                self._report.row(
                    tool="touch",
                    calls=1,
                    row=f"{row}/{name}",
                    through="gateway",
                    median_ms=round(samples.median, 2),
                    first_ms=round(samples.first, 2),
                    turns=len(samples.times),
                )
            suffix = "" if name == "sqlite" else f"_{name}"
            self._report.ratios[f"ray_path_vs_skeleton{suffix}"] = ratio(
                found["dedicated"].median, found["skeleton"].median
            )


@contextmanager
def _memory_store() -> Iterator[FreshStore]:
    """An SQLite file on a RAM disk: every statement is executed and nothing survives the machine."""
    from phronomy_ray.store.sql_store import open_store

    with tempfile.TemporaryDirectory(prefix="phronomy-bench-", dir=RAM_DISK) as folder:
        url = f"sqlite:///{Path(folder) / 'store.db'}"
        open_store(url, create=True).close()
        yield FreshStore("sqlite", url)


def _difference(after: tuple[int, float], before: tuple[int, float]) -> tuple[int, float]:
    return after[0] - before[0], after[1] - before[1]


def _ratios(report: Report, cells: dict[tuple[str, int], Cell]) -> None:
    """Time ratios have ours above, throughput ratios theirs: in both a target names a bound on ours."""

    def compare(
        key: str, tool: str, calls: int, others: tuple[str, ...], *, throughput: bool, ours: str = OURS
    ) -> None:
        cell = cells.get((tool, calls), {})
        there = [cell[name].median for name in others if name in cell]
        if ours not in cell or not there:
            lost = ours if ours not in cell else " or ".join(others)
            report.missing(key, f"no row {lost} for {tool} x {calls} in this run")
            return
        mine, best = cell[ours].median, min(there)
        report.ratios[key] = ratio(best, mine) if throughput else ratio(mine, best)

    tuned = ("langgraph_tuned", "langgraph_tuned_async")
    for suffix, ours in (("", OURS), ("_postgres", "dedicated/postgres"), ("_memory", "dedicated/memory")):
        compare(f"sleep256_vs_chunked_ray{suffix}", "sleep50", 256, RAW_RAY, throughput=False, ours=ours)
        compare(f"sleep256_vs_langgraph{suffix}", "sleep50", 256, ("langgraph",), throughput=True, ours=ours)
        compare(f"sleep256_vs_langgraph_tuned{suffix}", "sleep50", 256, tuned, throughput=True, ours=ours)
        compare(
            f"sleep256_vs_pydantic_ai{suffix}", "sleep50", 256, ("pydantic_ai",), throughput=True, ours=ours
        )
        compare(f"cpu64_vs_raw_ray{suffix}", "burn50", 64, ("ray_tasks",), throughput=True, ours=ours)
        compare(f"cpu64_vs_best_peer{suffix}", "burn50", 64, PEER_ROWS, throughput=True, ours=ours)
        compare(
            f"trivial256_vs_langgraph{suffix}", "trivial", 256, ("langgraph",), throughput=True, ours=ours
        )
    for name in missing_peers():
        report.notes.append(f"{name} is not installed here: pip install 'phronomy-ray[peers]'")


if __name__ == "__main__":
    raise SystemExit(main())
