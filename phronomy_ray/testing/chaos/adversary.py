"""Who does the harm that a schedule names, to the processes, nodes and connections of one storm. Whatever it stops goes on again."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence

from phronomy_ray.testing import processes
from phronomy_ray.testing.chaos import log
from phronomy_ray.testing.chaos.agents import HUNGRY
from phronomy_ray.testing.chaos.proxy import Cut, CuttingProxy
from phronomy_ray.testing.chaos.schedule import STOPS, Fault, FaultKind, chosen
from phronomy_ray.testing.local_cluster import LocalCluster

#: How long a trap (the next commit, the next tool body) waits for its prey, and a kill for a victim, in seconds.
TRAP_S = 4.0
#: Titles of Ray's processes, by what may be done to them.
_OWNERS = ("ray::AgentActor", "ray::HostActor")
_TITLES = {
    FaultKind.KILL_OWNER: _OWNERS,
    FaultKind.STOP_OWNER: _OWNERS,
    FaultKind.KILL_WORKER: ("ray::ToolWorker",),
    FaultKind.STOP_WORKER: ("ray::ToolWorker",),
    FaultKind.KILL_POOL: ("ray::PoolActor",),
    FaultKind.STOP_POOL: ("ray::PoolActor",),
    FaultKind.KILL_SUPERVISOR: ("ray::Supervisor",),
    FaultKind.STOP_SUPERVISOR: ("ray::Supervisor",),
    FaultKind.KILL_GATEWAY: ("ray::ModelGateway",),
    FaultKind.STOP_GATEWAY: ("ray::ModelGateway",),
}


class Adversary:
    """Harms one storm.

    Args:
        cluster: where it kills and stops; ``None`` when the agents live in their drivers.
        proxy: what cuts connections to the store; ``None`` when there is none.
        drivers: the processes of the drivers as they are at the moment, by number.
    """

    def __init__(
        self,
        cluster: LocalCluster | None,
        proxy: CuttingProxy | None,
        drivers: Callable[[], Sequence[subprocess.Popen[bytes]]],
    ) -> None:
        self._cluster = cluster
        self._proxy = proxy
        self._drivers = drivers
        self._timers: list[threading.Timer] = []
        self._stopped: set[int] = set()
        self._joined = 2

    def harm(self, fault: Fault) -> str:
        """Do it; what was harmed, empty when there was nothing to harm."""
        if fault.kind in STOPS:
            return self._stop(fault)
        match fault.kind:
            case FaultKind.KILL_DRIVER:
                driver = chosen(fault.pick, self._drivers())
                assert driver is not None
                driver.kill()
                driver.wait()
                return f"driver {driver.pid}"
            case FaultKind.KILL_NODE:
                return self._kill_node(fault.pick)
            case FaultKind.CUT_STORE | FaultKind.CUT_BEFORE_COMMIT | FaultKind.CUT_AFTER_COMMIT:
                return self._cut(fault.kind)
            case FaultKind.EXHAUST_MEMORY:
                log.mark(HUNGRY)
                _until(lambda: not log.is_marked(HUNGRY))
                return "" if log.take_mark(HUNGRY) else "the worker of the next tool body"
            case _:
                pid = self._victim(fault)
                if pid is not None:
                    processes.kill_hard([pid])
                return f"process {pid}" if pid is not None else ""

    def finish(self) -> None:
        """Wait until everything that was stopped goes on."""
        for timer in self._timers:
            timer.join()

    def let_go(self) -> None:
        """Everything that was stopped goes on now, whatever has happened."""
        for timer in self._timers:
            timer.cancel()
        for pid in tuple(self._stopped):
            self._continue(pid)

    # --- inside ------------------------------------------------------------------------------------------------

    def _stop(self, fault: Fault) -> str:
        pid = self._victim(fault)
        if pid is None:
            return ""
        self._stopped.add(pid)
        os.kill(pid, signal.SIGSTOP)
        timer = threading.Timer(fault.for_s, self._continue, (pid,))
        timer.start()
        self._timers.append(timer)
        return f"process {pid} for {fault.for_s} s"

    def _continue(self, pid: int) -> None:
        self._stopped.discard(pid)
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            return

    def _victim(self, fault: Fault) -> int | None:
        if fault.kind is FaultKind.STOP_DRIVER:
            return chosen(fault.pick, [item.pid for item in self._drivers() if item.poll() is None])
        titles = _TITLES[fault.kind]
        if self._cluster is not None:
            _until(lambda: bool(self._pids(titles)))  # it may be on its way back from the fault before
        return chosen(fault.pick, self._pids(titles))

    def _kill_node(self, pick: float) -> str:
        if self._cluster is None:
            return ""
        node = chosen(pick, [node for node in self._cluster.alive_nodes if not node.is_head])
        if node is None:
            return ""
        self._cluster.kill_node(node.node_id)
        self._joined += 1
        self._cluster.add_node(f"worker-{self._joined}")
        return f"node {node.name}"

    def _cut(self, kind: FaultKind) -> str:
        proxy = self._proxy
        assert proxy is not None
        if kind is FaultKind.CUT_STORE:
            proxy.cut_all()
            return "all connections"
        before = proxy.cuts
        proxy.arm(Cut.BEFORE if kind is FaultKind.CUT_BEFORE_COMMIT else Cut.AFTER)
        _until(lambda: proxy.cuts > before)
        proxy.arm(None)
        return "a commit" if proxy.cuts > before else ""

    def _pids(self, titles: tuple[str, ...]) -> list[int]:
        if self._cluster is None:
            return []
        return sorted(pid for pid in self._cluster.pids() if processes.command_line(pid).startswith(titles))


def _until(is_so: Callable[[], bool]) -> None:
    """Wait for it, `TRAP_S` at most."""
    deadline = time.monotonic() + TRAP_S
    while not is_so() and time.monotonic() < deadline:
        time.sleep(0.05)
