"""What the demo runs on: work folder, store, model server, cluster. Everything is taken down again, whatever happens."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, TextIO

from phronomy_ray.cli.demo.agent import API_BASE_ENV, MODEL_ENV
from phronomy_ray.errors import ConfigurationError

if TYPE_CHECKING:
    from phronomy_ray.testing.local_cluster import LocalCluster

#: Custom resource of the workers: binds the agent to them, so that it never sits on the head.
AGENT_NODE = "demo_agents"
WORKER_RESOURCES = {AGENT_NODE: 100}
STORE_FILE = "demo.db"


@dataclass(frozen=True, slots=True)
class Stage:
    """A running set-up."""

    work: Path
    cluster: LocalCluster
    store_url: str
    #: How the store is called for people.
    store_name: str
    #: How the model is called for people.
    model_name: str

    @property
    def effects(self) -> Path:
        """The effect log."""
        return self.work / "effects.jsonl"

    @property
    def gate(self) -> Path:
        """The gate's file."""
        return self.work / "gate"


@contextlib.contextmanager
def work_folder() -> Iterator[Path]:
    """A folder for the time of the block."""
    folder = Path(tempfile.mkdtemp(prefix="phronomy-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def set_up(
    *, work: Path, output: Path, store: str, model: str, say: Callable[[str], None]
) -> Iterator[Stage]:
    """Start everything, and end everything when the block ends.

    Args:
        store: ``sqlite``, ``postgres`` or a store URL.
        model: a litellm model name; empty for the scripted one behind a loopback server.
        say: called with a line about each part that has started.
    """
    with _signals_as_interrupts():
        stack = contextlib.ExitStack()
        try:
            yield _build(stack, work=work, output=output, store=store, model=model, say=say)
        finally:
            with _undisturbed():
                stack.close()


def _build(
    stack: contextlib.ExitStack,
    *,
    work: Path,
    output: Path,
    store: str,
    model: str,
    say: Callable[[str], None],
) -> Stage:
    from phronomy_ray.testing.local_cluster import LocalCluster

    url, store_name = _open_store(stack, store, output)
    say(f"store: {store_name}")
    environment = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    if model:
        environment |= {MODEL_ENV: model, API_BASE_ENV: ""}
        model_name = model
    else:
        base = _start_model(stack)
        environment |= {
            MODEL_ENV: "openai/demo",
            API_BASE_ENV: base,
            "OPENAI_API_KEY": "loopback",  # a real key of the user's must not even reach the loopback server
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }
        model_name = f"a script behind {base}, reached through litellm"
    say(f"model: {model_name}")
    # One worker node at first: agent and tool processes start there, and are lost with it. The second joins in `Story`.
    cluster = LocalCluster(
        workers=1, worker_resources=WORKER_RESOURCES, num_cpus=1, head_num_cpus=0, env=environment
    )
    stack.callback(cluster.shutdown)
    cluster.start()
    say(f"cluster: {', '.join(node.name for node in cluster.nodes)} at {cluster.address}")
    return Stage(work, cluster, url, store_name, model_name)


def _open_store(stack: contextlib.ExitStack, store: str, output: Path) -> tuple[str, str]:
    if store == "postgres":
        from phronomy_ray.testing.postgres import PostgresServer

        server = PostgresServer(durable=True)
        stack.callback(server.stop)
        server.start()
        return server.create_database(prefix="phronomy_demo"), "a private PostgreSQL"
    if store == "sqlite":
        # Several Ray nodes, but one machine: the file's locks hold, so SQLite is right here.
        output.mkdir(parents=True, exist_ok=True)
        path = output / STORE_FILE
        for leftover in (path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))):
            leftover.unlink(missing_ok=True)
        return f"sqlite:///{path}", f"SQLite, {path.name} in the output folder"
    from phronomy_ray.store.locations import parse_location

    return store, parse_location(store).identity


def _start_model(stack: contextlib.ExitStack) -> str:
    try:
        from phronomy_ray.testing.model_server import ModelServer
    except ImportError as error:
        raise ConfigurationError(
            f"the demo's loopback model needs {error.name}: pip install 'phronomy-ray[testing]', or name a model with --model"
        ) from error
    from phronomy_ray.cli.demo.script import answer

    return stack.enter_context(ModelServer(answer)).base_url


def take_signals() -> dict[int, Any]:
    """Make SIGTERM and SIGHUP end the demo as Ctrl-C does; one that is ignored (nohup) stays ignored.

    To be repeated after a driver has connected: Ray installs a handler of its own, which aborts the process.
    Returns the former handlers.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    wanted = [
        number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is not signal.SIG_IGN
    ]
    return {number: signal.signal(number, interrupt) for number in wanted}


@contextlib.contextmanager
def _signals_as_interrupts() -> Iterator[None]:
    previous = take_signals()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _undisturbed() -> Iterator[None]:
    """Nothing interrupts the block: it cleans up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    previous = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _writer(number: int) -> TextIO:
    return os.fdopen(os.dup(number), "w", encoding="utf-8", errors="replace")


@contextlib.contextmanager
def quiet_ray(log: Path) -> Iterator[tuple[TextIO, TextIO]]:
    """Ray and its children write to standard output and error as they like: send that to `log`.

    Yields the real standard output and error.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    real = (os.dup(1), os.dup(2))
    outputs = (_writer(real[0]), _writer(real[1]))
    with open(log, "ab", buffering=0) as sink:
        os.dup2(sink.fileno(), 1)
        os.dup2(sink.fileno(), 2)
    try:
        yield outputs
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in zip((1, 2), real, strict=True):
            os.dup2(original, number)
            os.close(original)
        for output in outputs:
            output.close()


__all__ = ["AGENT_NODE", "WORKER_RESOURCES", "Stage", "quiet_ray", "set_up", "take_signals", "work_folder"]
