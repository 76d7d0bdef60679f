"""The one cluster of a pytest session, with its folder of effects, its databases and its other drivers.

Made on first use and taken down when pytest ends, whichever folders of tests took part. The environment that its
processes and drivers need is set here, before any of them starts.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import pytest
import ray

from phronomy_ray.store.migrate import Migrations
from phronomy_ray.testing.local_cluster import LocalCluster
from phronomy_ray.testing.postgres import PostgresServer
from ray_testbed.effects import FOLDER_ENV
from ray_testbed.other_driver import OtherDriver

#: Resource of the worker nodes, which can be killed; the head has none of it.
SPOT = "spot"

_FOLDER = Path(tempfile.mkdtemp(prefix="ray-testbed-"))
os.environ[FOLDER_ENV] = str(_FOLDER)
atexit.register(shutil.rmtree, _FOLDER, ignore_errors=True)
_IMPORTABLE = Path(__file__).resolve().parents[1]


def fresh_name(word: str) -> str:
    """A name that no other test uses."""
    return f"{word}-{uuid.uuid4().hex[:8]}"


class Session:
    """What the tests of one pytest run share."""

    def __init__(self) -> None:
        self.folder = _FOLDER
        self.faults = _FOLDER / "faults"
        self.faults.mkdir()
        self._drivers: list[OtherDriver] = []
        self._nodes = 1

    @cached_property
    def environment(self) -> dict[str, str]:
        """What every process beside this one is started with."""
        path = os.pathsep.join(filter(None, [str(_IMPORTABLE), os.environ.get("PYTHONPATH")]))
        return {FOLDER_ENV: str(_FOLDER), "PYTHONPATH": path}

    @cached_property
    def cluster(self) -> LocalCluster:
        """A head and one worker; idle tool workers are kept, since the start of one costs more than most tests."""
        return LocalCluster(
            workers=1,
            worker_resources={SPOT: 100},
            env=self.environment,
            system_config={"num_workers_soft_limit": 8},
        ).start()

    def connect(self) -> str:
        """Make this process a driver of the cluster; returns its address."""
        address = self.cluster.address
        if ray.is_initialized() and ray.get_runtime_context().gcs_address != address:
            ray.shutdown()  # another test file left its own
        if not ray.is_initialized():
            ray.init(address, namespace="phronomy", log_to_driver=False)
        return address

    def disconnect(self) -> None:
        """Leave the cluster, for tests that start a Ray of their own in this process."""
        if "cluster" in self.__dict__ and ray.is_initialized():
            ray.shutdown()

    def add_worker(self) -> str:
        """One more worker node that can be killed; returns its name."""
        self._nodes += 1
        return self.cluster.add_node(f"worker-{self._nodes}", {SPOT: 100}).name

    @cached_property
    def postgres(self) -> PostgresServer:
        return PostgresServer().start()

    @cached_property
    def _postgres_template(self) -> str:
        url = self.postgres.create_database()
        Migrations(url).upgrade()
        return url

    @cached_property
    def _sqlite_template(self) -> Path:
        path = _FOLDER / "template.db"
        Migrations(f"sqlite:///{path}").upgrade()
        return path

    def new_store(self, engine: str) -> str:
        """URL of a fresh database with the schema."""
        if engine == "postgres":
            return self.postgres.create_database(template=self._postgres_template)
        path = Path(tempfile.mkdtemp(prefix="store-", dir=_FOLDER)) / "store.db"
        shutil.copyfile(self._sqlite_template, path)
        return f"sqlite:///{path}"

    def driver(self, number: int = 0) -> OtherDriver:
        """The `number`-th other driver process, started on first use; a dead one is replaced."""
        while len(self._drivers) <= number:
            self._drivers.append(self._start_driver())
        if not self._drivers[number].is_alive:
            self._drivers[number].close()
            self._drivers[number] = self._start_driver()
        return self._drivers[number]

    def _start_driver(self) -> OtherDriver:
        return OtherDriver(self.cluster.address, self.environment)

    def forget(self, function: Callable[[str], None], store: str) -> None:
        """Have the other drivers close what they hold of a store."""
        for driver in self._drivers:
            if driver.is_alive:
                driver.run(function, store)

    def close(self) -> None:
        for driver in self._drivers:
            driver.close()
        if "cluster" in self.__dict__:
            self.cluster.shutdown()
        if "postgres" in self.__dict__:
            self.postgres.stop()


_session: Session | None = None


def shared(config: pytest.Config) -> Session:
    """The session of this pytest run, closed at its end."""
    global _session
    if _session is None:
        _session = Session()
        config.add_cleanup(_session.close)
    return _session
