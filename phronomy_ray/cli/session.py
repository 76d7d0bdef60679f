"""What one invocation of the command works with: its settings, its console, its store, its runtime."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console

if TYPE_CHECKING:
    from phronomy_ray.runtime.runtime import Runtime
    from phronomy_ray.store.port import Store


def _console(*, stderr: bool = False) -> Console:
    # No guesses about what looks like a number or a path; ids stay whole when the output is not a terminal.
    return Console(stderr=stderr, highlight=False, soft_wrap=False, emoji=False)


@dataclass
class Session:
    """Global options and what is opened by them; one for each invocation."""

    #: As given by ``--address``; empty when not given.
    address: str = ""
    #: As given by ``--namespace``; empty when not given.
    namespace: str = ""
    #: As given by ``--store``; empty when not given.
    store: str = ""
    #: Show tracebacks.
    debug: bool = False
    #: The Ray in use was started by this command and ends with it.
    owns_ray: bool = field(default=False, init=False)
    console: Console = field(default_factory=_console)
    error_console: Console = field(default_factory=lambda: _console(stderr=True))

    @property
    def store_url(self) -> str:
        """The store's URL: option, environment, default; SQLite paths absolute."""
        from phronomy_ray.runtime.config import DEFAULT_STORE, STORE_ENV, absolute_store_url

        return absolute_store_url(self.store or os.environ.get(STORE_ENV) or DEFAULT_STORE)

    def address_or(self, default: str) -> str:
        """The cluster's address: option, environment (``PHRONOMY_RAY_ADDRESS``, ``RAY_ADDRESS``), `default`."""
        from phronomy_ray.runtime.config import ADDRESS_ENV

        return self.address or os.environ.get(ADDRESS_ENV) or os.environ.get("RAY_ADDRESS") or default

    def command(self, text: str) -> str:
        """``phronomy <text>`` as it has to be typed to reach the same cluster and store as this command."""
        address = "local" if self.owns_ray else self.address
        options = (("--address", address), ("--namespace", self.namespace), ("--store", self.store))
        return " ".join(
            ["phronomy", text, *(f"{name} {shlex.quote(value)}" for name, value in options if value)]
        )

    @contextmanager
    def open_store(self) -> Iterator[Store]:
        """The store, for reading; it is never created. Ray is not imported."""
        from phronomy_ray.store.sql_store import open_store

        store = open_store(self.store_url, application_name="phronomy-cli")
        try:
            yield store
        finally:
            store.close()

    @contextmanager
    def open_runtime(self, default_address: str = "auto", **options: Any) -> Iterator[Runtime]:
        """A runtime; by default on a cluster that runs already, or with ``PHRONOMY_PLACEMENT=in-process`` in this process.

        Raises:
            ClusterUnavailableError: no cluster answers; one that does not let us in ends the process.
        """
        from phronomy_ray.cli.cluster import connecting, find_cluster
        from phronomy_ray.cli.present_folder import import_from_here
        from phronomy_ray.definition.placement import InProcess
        from phronomy_ray.hosting.wiring import NAMESPACE
        from phronomy_ray.runtime.config import placement_of_environment
        from phronomy_ray.runtime.runtime import Runtime

        placement = placement_of_environment()
        if isinstance(placement, InProcess):  # this command is the agents' process as long as it runs
            import_from_here()
            with Runtime(
                placement=placement, namespace=self.namespace or None, store=self.store_url, **options
            ) as runtime:
                yield runtime
            return
        wanted = self.address_or(default_address)
        address = find_cluster(wanted)
        if wanted == "auto":  # whichever runs here: another one may have been meant
            self.error_console.print(
                f"cluster {address}, namespace {self.namespace or NAMESPACE}", style="dim", markup=False
            )
        self.owns_ray = address == "local"
        quiet = {"logging_level": logging.ERROR, "log_to_driver": False}
        with connecting(address):
            runtime = Runtime(
                address, namespace=self.namespace or None, store=self.store_url, ray_options=quiet, **options
            )
        with runtime:
            yield runtime


def session_of(context: typer.Context) -> Session:
    """The session of the present invocation."""
    found = context.find_object(Session)
    assert isinstance(found, Session), "the command was called without its group"
    return found


__all__ = ["Session", "session_of"]
