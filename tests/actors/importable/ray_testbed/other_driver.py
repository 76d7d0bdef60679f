"""A second driver: a process of its own that runs functions for a test, connected to the same cluster or without Ray.

Functions are those of `ray_testbed.drives` or, without Ray, of `ray_testbed.local_drives`, sent by name; arguments, results
and exceptions travel by pickle.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from concurrent.futures import Future
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

from ray_testbed.effects import PATIENCE_S, folder


class OtherDriver:
    """A driver process. Its calls run side by side, each on a thread there.

    Args:
        address: of the cluster; empty for a driver without Ray.
        environment: what is added to this process's.
    """

    def __init__(self, address: str, environment: dict[str, str]) -> None:
        socket = tempfile.mktemp(prefix="driver-", dir=folder())
        self._listener = Listener(socket, family="AF_UNIX")
        self._log = open(f"{socket}.log", "wb")  # noqa: SIM115 - closed with the driver
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ray_testbed.other_driver", socket, address],
            env=os.environ | environment,
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )
        self._connection: Connection = self._listener.accept()
        self._waiting: dict[int, Future[Any]] = {}
        self._number = 0
        self._lock = threading.Lock()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def terminate(self) -> None:
        """SIGTERM, as a rolling restart sends it."""
        self._process.send_signal(signal.SIGTERM)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def begin(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Future[Any]:
        """Start a call."""
        future: Future[Any] = Future()
        with self._lock:
            self._number += 1
            self._waiting[self._number] = future
            self._connection.send((self._number, function, arguments, options))
        return future

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Make a call and wait for its answer."""
        return self.begin(function, *arguments, **options).result(PATIENCE_S)

    def kill(self) -> None:
        """SIGKILL, as when a driver's machine is lost."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(PATIENCE_S)

    def close(self) -> None:
        self._process.kill()
        self._process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        self._connection.close()
        self._listener.close()
        self._log.close()

    def _read(self) -> None:
        try:
            while True:
                number, succeeded, value = self._connection.recv()
                future = self._waiting.pop(number)
                if succeeded:
                    future.set_result(value)
                else:
                    future.set_exception(value)
        except (EOFError, OSError):
            for future in self._waiting.values():
                future.set_exception(ConnectionError("the other driver is gone"))
            self._waiting.clear()


def without_ray() -> OtherDriver:
    """A driver that runs functions of `ray_testbed.local_drives`."""
    importable = str(Path(__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [importable, os.environ.get("PYTHONPATH")]))
    return OtherDriver("", {"PYTHONPATH": path})


def serve(socket: str, address: str) -> None:
    """What the process does."""
    faulthandler.register(signal.SIGUSR1)  # for whoever looks why it hangs
    connection: Connection = Client(socket, family="AF_UNIX")
    if address:
        import ray

        ray.init(address, namespace="phronomy", log_to_driver=False)
    else:  # a thread of `local_drives.drain_on_sigterm` waits for it: the main thread, which reads, may not hear of it
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    answering = threading.Lock()

    def work(number: int, function: Callable[..., Any], arguments: Any, options: Any) -> None:
        answer: tuple[int, bool, Any]
        try:
            answer = (number, True, function(*arguments, **options))
        except BaseException as error:  # the test that asked decides what it means
            traceback.print_exc()
            answer = (number, False, error)
        with answering:
            connection.send(answer)

    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        threading.Thread(target=work, args=job, daemon=True).start()


if __name__ == "__main__":
    serve(*sys.argv[1:])
