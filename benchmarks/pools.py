"""Many agents in one pool: fairness, time in the queue, a noisy neighbour, and a queue that is full.

32 dedicated agents share a pool of 64 running calls and begin a turn of the same many 50 ms calls at the same moment. An
agent's time is what its caller sees, from the common start to the end of its turn. Then one of them has as many calls as
all others together, beside them. Last, a small pool is filled: how fast its refusal comes back through the executor
that an agent's actor uses, and whether everything works once it is empty again.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.batch_scripts import FINAL_TEXT, Work
from support.report import Report, arguments, median, ratio
from support.stores import fresh_store, postgres

NAMESPACE = "phronomy"
#: How long the small pool is kept full, in seconds.
HOLD_S = 4.0
REFUSALS = 20


def main() -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--agents", type=int, help="how many agents (32; 6 with --quick)")
    options = parser.parse_args()
    report = Report("pools", options.json, options.quick)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    from support.batch_agents import PoolAgent

    from phronomy_ray import Runtime
    from phronomy_ray.testing.local_cluster import LocalCluster
    from phronomy_ray.tools.pool_config import PoolConfig

    count = options.agents or (6 if options.quick else 32)
    with ExitStack() as stack:
        server = stack.enter_context(postgres())  # many processes write: the store of a cluster
        store = stack.enter_context(fresh_store("postgres", server))
        cluster = stack.enter_context(LocalCluster(workers=0, num_cpus=os.cpu_count() or 2))
        pools = {
            "bench_shared": PoolConfig(max_running=2 * count),
            "bench_small": PoolConfig(max_running=2, max_queued=4),
        }
        runtime = stack.enter_context(Runtime(cluster.address, store=store.url, pools=pools))
        report.progress(f"starting {count} agents")
        agents = [runtime.create(PoolAgent, f"pool-{number}") for number in range(count)]
        bench = _Bench(report, runtime, agents)
        bench.turns([Work("shared50", 4)] * count)  # starts the pool and its workers
        bench.fairness(calls=16 if options.quick else 64, rounds=2 if options.quick else 5)
        bench.noisy_neighbour(calls=4 if options.quick else 16, rounds=2 if options.quick else 5)
        bench.full_queue(pools)
        for agent in agents:
            agent.unload()
    report.print()
    return 0


class _Bench:
    def __init__(self, report: Report, runtime: Any, agents: Sequence[Any]) -> None:
        self._report = report
        self._runtime = runtime
        self._agents = agents

    def fairness(self, *, calls: int, rounds: int) -> None:
        """All agents want the same at the same time."""
        spreads, queued = [], []
        for number in range(rounds):
            times, executions = self.turns([Work("shared50", calls)] * len(self._agents))
            waits = [wait for execution in executions for wait in self._queue_ms(execution)]
            spreads.append(max(times) / min(times))
            queued.append(median(waits))
            self._report.row(
                part="fairness",
                round=number + 1,
                agents=len(times),
                calls_per_agent=calls,
                fastest_ms=round(min(times), 1),
                slowest_ms=round(max(times), 1),
                queue_median_ms=round(median(waits), 1),
                queue_max_ms=round(max(waits), 1),
                calls_per_s=round(len(times) * calls / max(times) * 1e3, 1),
            )
        self._report.ratios["slowest_vs_fastest_agent"] = round(median(spreads), 3)

    def noisy_neighbour(self, *, calls: int, rounds: int) -> None:
        """One agent with as many calls as all others together must not keep them waiting for its end."""
        others = len(self._agents) - 1
        quiet = [Work("shared50", calls)] * others
        noise = Work("shared50", calls * others)
        alone, beside, loud = [], [], []
        for _ in range(rounds):
            times, _ = self.turns([None, *quiet])
            alone.append(max(times))
            times, _ = self.turns([noise, *quiet])
            loud.append(times[0])
            beside.append(max(times[1:]))
        self._report.row(
            part="noisy_neighbour",
            quiet_agents=others,
            calls_per_quiet_agent=calls,
            calls_of_noisy_agent=noise.calls,
            slowest_quiet_alone_ms=round(median(alone), 1),
            slowest_quiet_beside_ms=round(median(beside), 1),
            noisy_ms=round(median(loud), 1),
        )
        self._report.ratios["quiet_agents_beside_noisy_vs_alone"] = ratio(median(beside), median(alone))

    def full_queue(self, pools: Any) -> None:
        """Refusals of a full pool, and the same agent afterwards."""
        holder, other = self._agents[:2]
        held = Work("small_hold", 6, (("seconds", HOLD_S / 3),))  # 2 run and 4 wait, three rounds long
        execution = holder.start(held.message())
        time.sleep(HOLD_S / 12)
        refused_ms = asyncio.run(_refusals(pools, other.agent_id))
        begun = time.perf_counter()
        answer = other.start(Work("small_hold", 1, (("seconds", 0.0),)).message())
        assert answer.result(timeout=60).output == FINAL_TEXT
        turn_ms = (time.perf_counter() - begun) * 1e3
        codes = [(row.error or {}).get("code") for row in self._runtime.store.tool_calls(answer.execution_id)]
        assert codes == ["backpressure"], codes
        assert execution.result(timeout=60).output == FINAL_TEXT
        after = other.start(Work("small_hold", 6, (("seconds", 0.0),)).message())
        assert after.result(timeout=60).output == FINAL_TEXT
        statuses = [row.status.value for row in self._runtime.store.tool_calls(after.execution_id)]
        assert statuses == ["succeeded"] * 6, statuses
        self._report.row(
            part="full_queue",
            refusals=len(refused_ms),
            refusal_median_ms=round(median(refused_ms), 2),
            refusal_max_ms=round(max(refused_ms), 2),
            refused_turn_ms=round(turn_ms, 1),
            calls_that_succeed_afterwards=len(statuses),
        )
        self._report.ratios["full_queue_error_ms"] = round(median(refused_ms), 3)

    def turns(self, works: Sequence[Work | None]) -> tuple[list[float], list[str]]:
        """One turn of each agent that has work, all begun at once: their times in milliseconds, their executions."""

        async def one(agent: Any, work: Work, begun: float) -> tuple[float, str]:
            handle = await agent.start_async(work.message())
            result = await handle.result_async(timeout=300)
            assert result.output == FINAL_TEXT, result
            return (time.perf_counter() - begun) * 1e3, handle.execution_id

        async def all_at_once() -> list[tuple[float, str]]:
            begun = time.perf_counter()
            return await asyncio.gather(
                *(
                    one(agent, work, begun)
                    for agent, work in zip(self._agents, works, strict=True)
                    if work is not None
                )
            )

        found = asyncio.run(all_at_once())
        return [took for took, _ in found], [execution for _, execution in found]

    def _queue_ms(self, execution: str) -> list[float]:
        """From the decision that a call will run to the start of its body, by the ledger."""
        return [
            (row.started_at - row.created_at).total_seconds() * 1e3
            for row in self._runtime.store.tool_calls(execution)
            if row.started_at is not None
        ]


async def _refusals(pools: Any, agent_id: str) -> list[float]:
    """Dispatch single calls into the full pool, as an agent's actor does; milliseconds until each refusal."""
    from support.batch_agents import PoolAgent

    from phronomy_ray.actors.pool_clients import PoolClients
    from phronomy_ray.actors.tool_executor import RayToolExecutor
    from phronomy_ray.hosting.wiring import DefinitionSource
    from phronomy_ray.tool_calls import ToolInvocation, ToolOutcome

    definition = PoolAgent.definition()
    executor = RayToolExecutor(DefinitionSource(definition.class_path), PoolClients(NAMESPACE), pools)
    loop = asyncio.get_running_loop()
    times = []
    for number in range(REFUSALS + 1):
        arrived: asyncio.Future[ToolOutcome] = loop.create_future()

        def sink(item: object, arrived: asyncio.Future[ToolOutcome] = arrived) -> None:
            if isinstance(item, ToolOutcome):
                arrived.set_result(item)

        invocation = ToolInvocation(
            tool_call_id=f"refused-{number}",
            tool_name="small_hold",
            arguments={"n": number, "seconds": 0.0},
            agent_id=agent_id,
            execution_id=f"refused-execution-{number}",
            attempt=1,
        )
        begun = time.perf_counter()
        executor.dispatch([invocation], definition.tools, sink)
        outcome = await asyncio.wait_for(arrived, 30)
        times.append((time.perf_counter() - begun) * 1e3)
        assert outcome.error is not None
        assert outcome.error.code == "backpressure", outcome
    executor.close()
    return times[1:]  # the first one looks the pool up


if __name__ == "__main__":
    raise SystemExit(main())
