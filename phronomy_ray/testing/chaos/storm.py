"""A whole storm: a cluster, drivers, an adversary, and the checker afterwards."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from phronomy_ray.store.migrate import Migrations
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing import processes
from phronomy_ray.testing.chaos import log
from phronomy_ray.testing.chaos.checker import violations
from phronomy_ray.testing.chaos.load import ENOUGH, LoadConfig
from phronomy_ray.testing.chaos.proxy import Cut, CuttingProxy
from phronomy_ray.testing.chaos.schedule import STORE_FAULTS, Fault, FaultKind, chosen, plan_faults
from phronomy_ray.testing.local_cluster import LocalCluster
from phronomy_ray.testing.postgres import PostgresServer

NAMESPACE = "storm"
#: How long what was begun may take to end when the storm is over, in seconds.
SETTLE_S = 180.0
#: Titles of Ray's processes, by what may be done to them.
_OWNERS = ("ray::AgentActor", "ray::HostActor")
_TITLES = {
    FaultKind.KILL_OWNER: _OWNERS,
    FaultKind.STOP_OWNER: _OWNERS,
    FaultKind.KILL_WORKER: ("ray::ToolWorker",),
    FaultKind.KILL_POOL: ("ray::PoolActor",),
    FaultKind.KILL_SUPERVISOR: ("ray::Supervisor",),
}


@dataclass(frozen=True, slots=True)
class StormConfig:
    """What kind of storm."""

    seconds: float
    seed: int
    postgres: bool = False
    #: Hosts for packed agents; 0 for an actor each.
    hosts: int = 0
    drivers: int = 2
    agents_per_driver: int = 2


@dataclass
class StormReport:
    """What came of it."""

    config: StormConfig
    planned: list[Fault]
    injected: Counter[str] = field(default_factory=Counter)
    #: Faults that found nothing to harm.
    idle: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    executions: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    settle_s: float = 0.0


def run_storm(config: StormConfig, *, tell: Callable[[str], None] = lambda text: None) -> StormReport:
    """Let the storm run and look at what is left."""
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    os.environ[log.FOLDER_ENV] = str(folder)
    try:
        with _database(config, folder) as (url, checked_url, proxy):
            without = () if proxy is not None else STORE_FAULTS
            report = StormReport(config, plan_faults(config.seed, config.seconds, without=without))
            _Storm(config, folder, url, proxy, report, tell).run()
            store = open_store(checked_url)
            try:
                history = log.entries(log.HISTORY)
                report.violations += violations(store, log.entries(log.EFFECTS), history)
            finally:
                store.close()
            report.executions = Counter(e["status"] for e in history if e["kind"] == "ended")
            report.errors = Counter(entry["code"] for entry in log.entries("errors"))
            report.violations += [f"a driver failed: {entry['error']}" for entry in log.entries("failures")]
            return report
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _database(config: StormConfig, folder: Path) -> Iterator[tuple[str, str, CuttingProxy | None]]:
    """A database: the URL for the agents, the URL for the checker, and what can cut the first."""
    if not config.postgres:
        url = f"sqlite:///{folder}/agents.db"
        Migrations(url).upgrade()
        yield url, url, None
        return
    with PostgresServer() as server:
        url = server.create_database()
        Migrations(url).upgrade()
        parsed = make_url(url)
        host = parsed.host or parsed.query.get("host") or "127.0.0.1"
        proxy = CuttingProxy(str(host), parsed.port or 5432)
        query = {key: value for key, value in parsed.query.items() if key != "host"}
        cut = parsed.set(host="127.0.0.1", port=proxy.port, query=query)
        try:
            yield cut.render_as_string(hide_password=False), url, proxy
        finally:
            proxy.close()


class _Storm:
    """One run."""

    def __init__(
        self,
        config: StormConfig,
        folder: Path,
        url: str,
        proxy: CuttingProxy | None,
        report: StormReport,
        tell: Callable[[str], None],
    ) -> None:
        self._config = config
        self._folder = folder
        self._url = url
        self._proxy = proxy
        self._report = report
        self._tell = tell
        self._drivers: list[subprocess.Popen[bytes]] = []
        self._timers: list[threading.Timer] = []
        self._nodes = 2
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", "")]))
        environment = {log.FOLDER_ENV: str(folder), **({"PYTHONPATH": path} if path else {})}
        self._cluster = LocalCluster(workers=2, env=environment)

    def run(self) -> None:
        with self._cluster:
            try:
                self._drivers = [self._start_driver(number) for number in range(self._config.drivers)]
                self._wait_for_load()
                begun = time.monotonic()
                for fault in self._report.planned:
                    time.sleep(max(0.0, begun + fault.at_s - time.monotonic()))
                    self._revive_drivers()
                    self._inject(fault)
                time.sleep(max(0.0, begun + self._config.seconds - time.monotonic()))
                for timer in self._timers:
                    timer.join()
                ended = time.monotonic()
                self._settle()
                self._report.settle_s = time.monotonic() - ended
            finally:
                for driver in self._drivers:
                    driver.kill()
                    driver.wait()

    # --- drivers -----------------------------------------------------------------------------------------------

    def _start_driver(self, number: int) -> subprocess.Popen[bytes]:
        count = self._config.agents_per_driver
        config = LoadConfig(
            self._cluster.address,
            self._url,
            NAMESPACE,
            self._config.hosts,
            number,
            tuple(f"storm-{number}-{index}" for index in range(count)),
            self._config.seed,
        )
        with (self._folder / f"driver-{number}.out").open("ab") as out:
            return subprocess.Popen(
                [sys.executable, "-m", "phronomy_ray.testing.chaos.load", config.to_text()],
                stdout=out,
                stderr=out,
                env={**os.environ, "RAY_AUTH_MODE": "disabled"},
            )

    def _wait_for_load(self) -> None:
        deadline = time.monotonic() + SETTLE_S
        wanted = self._config.drivers * self._config.agents_per_driver
        while len({e["agent_id"] for e in log.entries(log.HISTORY) if e["kind"] == "ended"}) < wanted:
            if time.monotonic() > deadline:
                raise TimeoutError(
                    f"not every agent has ended an execution after {SETTLE_S:g} s: {self._outputs()}"
                )
            time.sleep(0.2)

    def _revive_drivers(self) -> None:
        for number, driver in enumerate(self._drivers):
            if driver.poll() is not None:
                self._drivers[number] = self._start_driver(number)

    def _settle(self) -> None:
        """Nothing is harmed any more: every driver ends what it has begun."""
        log.mark(ENOUGH)
        deadline = time.monotonic() + SETTLE_S
        while time.monotonic() < deadline:
            if all(driver.poll() is not None for driver in self._drivers):
                if all(driver.returncode == 0 for driver in self._drivers):
                    return
                self._revive_drivers()  # it was killed last: its successor ends what it had begun
            time.sleep(0.2)
        self._report.violations.append(
            f"drivers did not come to an end within {SETTLE_S:g} s: {self._outputs()}"
        )

    def _outputs(self) -> str:
        return " | ".join(path.read_text()[-2_000:] for path in sorted(self._folder.glob("driver-*.out")))

    # --- harm --------------------------------------------------------------------------------------------------

    def _inject(self, fault: Fault) -> None:
        done = self._harm(fault)
        (self._report.injected if done else self._report.idle)[fault.kind.value] += 1
        self._tell(f"{fault.at_s:6.1f} s {fault.kind.value}: {done or 'nothing to harm'}")

    def _harm(self, fault: Fault) -> str:
        """Do it; what was harmed, empty for nothing."""
        match fault.kind:
            case FaultKind.KILL_DRIVER:
                number = int(fault.pick * len(self._drivers))
                self._drivers[number].kill()
                self._drivers[number].wait()
                return f"driver {number}"
            case FaultKind.KILL_NODE:
                return self._kill_node(fault.pick)
            case FaultKind.CUT_STORE | FaultKind.CUT_BEFORE_COMMIT | FaultKind.CUT_AFTER_COMMIT:
                return self._cut(fault.kind)
            case FaultKind.STOP_OWNER:
                pid = chosen(fault.pick, self._pids(_TITLES[fault.kind]))
                if pid is None:
                    return ""
                os.kill(pid, signal.SIGSTOP)
                timer = threading.Timer(fault.for_s, _continue, (pid,))
                timer.start()
                self._timers.append(timer)
                return f"process {pid} for {fault.for_s} s"
            case _:
                pid = chosen(fault.pick, self._pids(_TITLES[fault.kind]))
                if pid is None:
                    return ""
                processes.kill_hard([pid])
                return f"process {pid}"

    def _kill_node(self, pick: float) -> str:
        workers = [node for node in self._cluster.alive_nodes if not node.is_head]
        node = chosen(pick, workers)
        if node is None:
            return ""
        self._cluster.kill_node(node.node_id)
        self._nodes += 1
        self._cluster.add_node(f"worker-{self._nodes}")
        return f"node {node.name}"

    def _cut(self, kind: FaultKind) -> str:
        assert self._proxy is not None
        if kind is FaultKind.CUT_STORE:
            self._proxy.cut_all()
            return "all connections"
        self._proxy.arm(Cut.BEFORE if kind is FaultKind.CUT_BEFORE_COMMIT else Cut.AFTER)
        return "the next commit"

    def _pids(self, titles: Sequence[str]) -> list[int]:
        return sorted(
            pid for pid in self._cluster.pids() if processes.command_line(pid).startswith(tuple(titles))
        )


def _continue(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return


def as_document(report: StormReport) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "seconds": report.config.seconds,
        "seed": report.config.seed,
        "store": "postgresql" if report.config.postgres else "sqlite",
        "placement": f"packed:{report.config.hosts}" if report.config.hosts else "dedicated",
        "planned": [fault.to_wire() for fault in report.planned],
        "injected": dict(report.injected),
        "nothing_to_harm": dict(report.idle),
        "executions": dict(report.executions),
        "errors_told_to_drivers": dict(report.errors),
        "settle_s": round(report.settle_s, 1),
        "violations": report.violations,
    }
