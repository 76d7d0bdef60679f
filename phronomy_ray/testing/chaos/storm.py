"""A whole storm: a cluster, drivers, an adversary, and the checker afterwards."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy.engine import make_url

from phronomy_ray.store.migrate import Migrations
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.chaos import log, witness
from phronomy_ray.testing.chaos.adversary import Adversary
from phronomy_ray.testing.chaos.agents import MODEL_URL_ENV
from phronomy_ray.testing.chaos.checker import violations
from phronomy_ray.testing.chaos.load import ENOUGH, LoadConfig
from phronomy_ray.testing.chaos.proxy import CuttingProxy
from phronomy_ray.testing.chaos.schedule import (
    CLUSTER_FAULTS,
    MEAN_PAUSE_S,
    STORE_FAULTS,
    Fault,
    FaultKind,
    plan_faults,
)
from phronomy_ray.testing.local_cluster import LocalCluster
from phronomy_ray.testing.postgres import PostgresServer

NAMESPACE = "storm"
#: How long what was begun may take to end when the storm is over, in seconds.
SETTLE_S = 180.0


@dataclass(frozen=True, slots=True)
class StormConfig:
    """What kind of storm."""

    seconds: float
    seed: int
    postgres: bool = False
    #: Hosts for packed agents; 0 for an actor each.
    hosts: int = 0
    #: Agents live in their drivers, without Ray.
    in_process: bool = False
    drivers: int = 2
    agents_per_driver: int = 2
    #: Whether the first agent of every driver has a provider behind the model gateways.
    by_gateway: bool = True
    mean_pause_s: float = MEAN_PAUSE_S

    @property
    def without(self) -> frozenset[FaultKind]:
        """Faults that there is nothing for."""
        return frozenset(
            (
                *(STORE_FAULTS if not self.postgres else ()),
                *(CLUSTER_FAULTS if self.in_process else ()),
                *((FaultKind.KILL_GATEWAY, FaultKind.STOP_GATEWAY) if not self.has_gateways else ()),
            )
        )

    @property
    def has_gateways(self) -> bool:
        """Whether model gateways are used."""
        return self.by_gateway and not self.in_process

    def agents_of(self, number: int) -> tuple[str, ...]:
        """Ids of the agents of one driver."""
        return tuple(
            f"storm-{number}-{index}{'-by-gateway' if self.has_gateways and index == 0 else ''}"
            for index in range(self.agents_per_driver)
        )


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
    #: Logs of drivers and effects (and the SQLite database), kept when something is wrong; else empty.
    kept: str = ""


def run_storm(config: StormConfig, *, tell: Callable[[str], None] = lambda text: None) -> StormReport:
    """Let the storm run and look at what is left."""
    folder = Path(tempfile.mkdtemp(prefix="storm-"))
    os.environ[log.FOLDER_ENV] = str(folder)
    is_right = False
    try:
        with _database(config, folder) as (url, checked_url, proxy):
            witness.install(checked_url)
            planned = plan_faults(
                config.seed, config.seconds, without=config.without, mean_pause_s=config.mean_pause_s
            )
            report = StormReport(config, planned)
            with _provider(config):
                _Storm(config, folder, url, proxy, report, tell).run()
            store = open_store(checked_url)
            try:
                history = log.entries(log.HISTORY)
                report.violations += violations(
                    store, log.entries(log.EFFECTS), history, witness.testimony(checked_url)
                )
            finally:
                store.close()
            report.executions = Counter(e["status"] for e in history if e["kind"] == "ended")
            report.errors = Counter(entry["code"] for entry in log.entries("errors"))
            report.violations += [f"a driver failed: {entry['error']}" for entry in log.entries("failures")]
            is_right = not report.violations
            report.kept = "" if is_right else str(folder)
            return report
    finally:
        if is_right:
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


@contextmanager
def _provider(config: StormConfig) -> Iterator[None]:
    """A loopback model provider in a process of its own, which everything that starts from now on knows."""
    if not config.has_gateways:
        yield
        return
    server = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "phronomy_ray.testing.model_server",
            "--script",
            "phronomy_ray.testing.chaos.agents:obey",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert server.stdout is not None
        os.environ[MODEL_URL_ENV] = server.stdout.readline().strip()
        yield
    finally:
        os.environ.pop(MODEL_URL_ENV, None)
        server.kill()
        server.wait()


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
        self._report = report
        self._tell = tell
        self._drivers: list[subprocess.Popen[bytes]] = []
        path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", "")]))
        environment = {log.FOLDER_ENV: str(folder), **({"PYTHONPATH": path} if path else {})}
        if MODEL_URL_ENV in os.environ:
            environment[MODEL_URL_ENV] = os.environ[MODEL_URL_ENV]
        self._cluster = None if config.in_process else LocalCluster(workers=2, env=environment)
        self._adversary = Adversary(self._cluster, proxy, lambda: self._drivers)

    def run(self) -> None:
        with self._cluster or nullcontext():
            try:
                self._drivers = [self._start_driver(number) for number in range(self._config.drivers)]
                self._wait_for_load()
                begun = time.monotonic()
                for fault in self._report.planned:
                    time.sleep(max(0.0, begun + fault.at_s - time.monotonic()))
                    self._revive_drivers()
                    self._inject(fault)
                time.sleep(max(0.0, begun + self._config.seconds - time.monotonic()))
                self._adversary.finish()
                ended = time.monotonic()
                self._settle()
                self._report.settle_s = time.monotonic() - ended
            finally:
                self._adversary.let_go()
                for driver in self._drivers:
                    driver.kill()
                    driver.wait()

    # --- drivers -----------------------------------------------------------------------------------------------

    def _start_driver(self, number: int) -> subprocess.Popen[bytes]:
        config = LoadConfig(
            self._cluster.address if self._cluster is not None else "",
            self._url,
            NAMESPACE,
            self._config.hosts,
            number,
            self._config.agents_of(number),
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
        done = self._adversary.harm(fault)
        (self._report.injected if done else self._report.idle)[fault.kind.value] += 1
        self._tell(f"{fault.at_s:6.1f} s {fault.kind.value}: {done or 'nothing to harm'}")


def as_document(report: StormReport) -> dict[str, Any]:
    """The report as JSON."""
    return {
        "seconds": report.config.seconds,
        "seed": report.config.seed,
        "store": "postgresql" if report.config.postgres else "sqlite",
        "placement": _placement_of(report.config),
        "planned": [fault.to_wire() for fault in report.planned],
        "injected": dict(report.injected),
        "nothing_to_harm": dict(report.idle),
        "executions": dict(report.executions),
        "errors_told_to_drivers": dict(report.errors),
        "settle_s": round(report.settle_s, 1),
        "violations": report.violations,
        "kept": report.kept,
    }


def _placement_of(config: StormConfig) -> str:
    if config.in_process:
        return "in_process"
    return f"packed:{config.hosts}" if config.hosts else "dedicated"
