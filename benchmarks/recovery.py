"""Time from a kill to the continued execution, against the restart of a bare detached Ray actor in the same run.

The agent is killed in the middle of a batch whose one tool call may run again. Two moments count:

* *recovered*: the new owner's recovery commit is durable and the call is dispatched again (the execution goes on);
* *running*: the tool's body has begun again, which adds the start of a tool worker where none is warm.

The bare actor is back when it answers a call. Kills: SIGKILL to the actor's process; SIGKILL to a whole node (raylet and
workers) under Ray's health check at 500 ms / 1000 ms / 3, as in the demo.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from support.report import Report, arguments, median, ratio
from support.stores import fresh_store

HERE = Path(__file__).parent

POLL_S = 0.02
LIMIT_S = 90.0


class Bare:
    """A detached actor that does nothing."""

    async def where(self) -> tuple[int, str]:
        import ray

        return os.getpid(), ray.get_runtime_context().get_node_id()


def main() -> int:
    parser = arguments(__doc__ or "")
    options = parser.parse_args()
    report = Report("recovery", options.json, options.quick)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    from phronomy_ray import Dedicated, Runtime
    from phronomy_ray.testing.local_cluster import LocalCluster

    with ExitStack() as stack:
        store = stack.enter_context(fresh_store("sqlite", None))
        cluster = stack.enter_context(LocalCluster(workers=2, worker_resources={"agents": 100}))
        runtime = stack.enter_context(
            Runtime(cluster.address, store=store.url, placement=Dedicated(resources={"agents": 1}))
        )
        bench = _Bench(report, cluster, runtime)
        process = bench.repeat("process_kill", 2 if options.quick else 7, bench.kill_process)
        node = bench.repeat("node_kill", 1 if options.quick else 3, bench.kill_node)
        report.ratios["process_kill_vs_bare_actor"] = ratio(process["running"], process["bare"])
        report.ratios["process_kill_recovered_vs_bare_actor"] = ratio(process["recovered"], process["bare"])
        report.ratios["node_kill_vs_bare_actor"] = ratio(node["running"], node["bare"])
        report.ratios["node_kill_recovered_vs_bare_actor"] = ratio(node["recovered"], node["bare"])
    report.print()
    return 0


class _Bench:
    def __init__(self, report: Report, cluster: Any, runtime: Any) -> None:
        self.report = report
        self.cluster = cluster
        self.runtime = runtime
        self.added = 0

    def repeat(self, name: str, times: int, kill: Callable[[int], None]) -> dict[str, float]:
        """Kill a bare actor and an agent in turn; medians in seconds."""
        samples: dict[str, list[float]] = {"bare": [], "recovered": [], "running": []}
        for number in range(times):
            self.report.progress(f"{name} {number + 1} of {times}")
            samples["bare"].append(self.bare(name, number, kill))
            recovered, running = self.agent(name, number, kill)
            samples["recovered"].append(recovered)
            samples["running"].append(running)
            self.report.row(
                kill=name,
                bare_s=round(samples["bare"][-1], 3),
                recovered_s=round(recovered, 3),
                running_s=round(running, 3),
            )
        return {key: median(values) for key, values in samples.items()}

    def bare(self, name: str, number: int, kill: Callable[[int], None]) -> float:
        """Kill to first answer of a bare detached actor."""
        import ray

        remote: Any = ray.remote(Bare)
        actor: Any = remote.options(
            name=f"bare-{name}-{number}",
            lifetime="detached",
            num_cpus=0,
            resources={"agents": 1},
            max_restarts=-1,
            max_task_retries=0,
        ).remote()
        pid, _ = ray.get(actor.where.remote())
        killed = time.time()
        kill(pid)

        def answered() -> bool:
            try:
                return bool(ray.get(actor.where.remote(), timeout=2.0)[0] != pid)
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
                return False

        _until(answered, "the bare actor answers")
        back = time.time() - killed
        ray.kill(actor)
        self.refill()
        return back

    def agent(self, name: str, number: int, kill: Callable[[int], None]) -> tuple[float, float]:
        """Kill to recovery commit, and to the running tool body."""
        from support.bench_agents import HoldAgent

        with tempfile.TemporaryDirectory(prefix="phronomy-hold-") as folder:
            starts = Path(folder) / "starts"
            agent = self.runtime.create(HoldAgent, f"{name}-{number}")
            execution = agent.start(folder)
            _until(starts.exists, "the tool runs")
            pid = agent.status()["pid"]
            killed = time.time()
            kill(pid)
            store = self.runtime.store
            recovered: list[float] = []

            def continued() -> bool:
                if not recovered and any(
                    event.type == "recovered" for event in store.events(execution.execution_id)
                ):
                    recovered.append(time.time() - killed)
                return len(starts.read_text().splitlines()) > 1

            _until(continued, "the tool runs again")
            running = float(starts.read_text().splitlines()[1].split()[0]) - killed
            continued()
            (Path(folder) / "go").touch()
            assert execution.result(timeout=60).output == "done"
            agent.unload()
        self.refill()
        return recovered[0], running

    def kill_process(self, pid: int) -> None:
        """SIGKILL to the actor's process."""
        os.kill(pid, signal.SIGKILL)

    def kill_node(self, pid: int) -> None:
        """SIGKILL to the raylet and all workers of the actor's node."""
        self.cluster.kill_node(self.cluster.node_of_pid(pid).node_id)

    def refill(self) -> None:
        """Replace a lost node, so that every kill leaves one to go on."""
        while len(self.cluster.alive_nodes) < 3:
            self.added += 1
            self.cluster.add_node(f"spare-{self.added}", resources={"agents": 100})


def _until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {LIMIT_S:g} s: {what}")
        time.sleep(POLL_S)


if __name__ == "__main__":
    raise SystemExit(main())
