"""The calls to Ray that several modules share: names, options, and what Ray's errors mean to us."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import ray
import tenacity
from ray.actor import ActorHandle
from ray.exceptions import (
    ActorDiedError,
    ActorUnavailableError,
    GetTimeoutError,
    RayActorError,
    RayError,
    RayTaskError,
)

from phronomy_ray.errors import (
    AgentUnloadedError,
    AgentUnreachableError,
    OwnershipLostError,
    PhronomyError,
)
from phronomy_ray.hosting.agent_port import NoAnswer

T = TypeVar("T")

#: How long Ray may take to end an actor that asks for its own end, in seconds.
EXIT_S = 20.0
#: Async actors take long polls; each holds one of these.
MAX_CONCURRENCY = 1_000


def pool_actor_name(pool: str) -> str:
    """Ray name of a pool's actor."""
    return f"pool:{pool}"


def service_options(name: str, namespace: str, *, max_concurrency: int = MAX_CONCURRENCY) -> dict[str, Any]:
    """Options of an actor that is found by its name and outlives whoever started it: it reserves no CPU, is restarted for
    ever, and Ray never repeats a call by itself.
    """
    return {
        "name": name,
        "namespace": namespace,
        "lifetime": "detached",
        "get_if_exists": True,
        "num_cpus": 0,
        "max_restarts": -1,
        "max_task_retries": 0,
        "max_concurrency": max_concurrency,
    }


def find_actor(name: str, namespace: str) -> ActorHandle[Any] | None:
    """The live actor of that name, or ``None``; it may be dying."""
    try:
        return ray.get_actor(name, namespace=namespace)
    except ValueError:
        return None


async def call(handle: ActorHandle[Any], method: str, *args: Any, timeout_s: float, **kwargs: Any) -> Any:
    """Call a remote method and await its answer.

    Raises:
        our own typed errors as themselves (not wrapped in Ray's); `TimeoutError`; Ray's `RayActorError` family.
    """
    reference = getattr(handle, method).remote(*args, **kwargs)
    try:
        return await asyncio.wait_for(result_of(reference), timeout_s)
    except RayTaskError as error:
        raise unwrap(error) from None


async def ask(handle: ActorHandle[Any], method: str, *args: Any, timeout_s: float) -> Any | NoAnswer:
    """`call`, with the loss of the actor as a value.

    Raises:
        our own typed errors, except `AgentUnloadedError` and `OwnershipLostError`; what else a remote method raised; `AgentUnreachableError` for a fault
        of Ray.
    """
    try:
        return await call(handle, method, *args, timeout_s=timeout_s)
    except (AgentUnloadedError, OwnershipLostError):
        return NoAnswer.GONE
    except (RayError, TimeoutError) as error:
        if is_gone(error):
            return NoAnswer.GONE
        if is_unreachable(error):
            return NoAnswer.SILENT
        if isinstance(error, PhronomyError):
            raise
        raise AgentUnreachableError(f"{method} failed in Ray: {first_line(error)}") from error


async def result_of(reference: Awaitable[T]) -> T:
    """What a remote call gives, as a coroutine: for `asyncio.wait_for` and for tasks. Raises Ray's errors as they are."""
    return await reference


async def answer_of(
    handle: ActorHandle[Any], reference: Awaitable[T], *, ping_interval_s: float, ping_timeout_s: float
) -> T:
    """The answer of a call that may wait for long, as long as its actor answers a ping every `ping_interval_s` seconds.

    Raises:
        TimeoutError: it does not, for `ping_timeout_s` seconds: Ray never declares a stopped process dead.
        RayError: as the call raises it.
    """
    task = asyncio.ensure_future(result_of(reference))
    try:
        while True:
            done, _ = await asyncio.wait({task}, timeout=ping_interval_s)
            if done:
                return task.result()
            await asyncio.wait_for(result_of(handle.ping.remote()), ping_timeout_s)
    finally:
        task.cancel()
        task.add_done_callback(_retrieved)


def _retrieved(task: asyncio.Future[Any]) -> None:
    """Look at the outcome of a task that nobody waits for any more, so that asyncio does not report it."""
    if not task.cancelled():
        task.exception()


async def live_actor(
    create: Callable[[], ActorHandle[Any]], *, patience_s: float, ping_timeout_s: float
) -> ActorHandle[Any]:
    """An actor that `create` gives (get or make) and that has answered a ping.

    Ray can hand out one that is just dying, and keeps its name for a moment: then it is asked for again.

    Raises:
        RayActorError, ValueError: none came up within `patience_s` seconds.
        TimeoutError: it did not answer the ping within `ping_timeout_s` seconds.
    """

    async def create_and_ping() -> Any:
        # naming an actor asks the cluster's control service, which is a blocking call
        handle: Any = await asyncio.to_thread(create)
        await asyncio.wait_for(result_of(handle.ping.remote()), ping_timeout_s)
        return handle

    retrying = tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception_type((RayActorError, ValueError)),
        stop=tenacity.stop_after_delay(patience_s),
        wait=tenacity.wait_random_exponential(multiplier=0.1, max=1.0),
        reraise=True,
    )
    actor: ActorHandle[Any] = await retrying(create_and_ping)
    return actor


def first_line(error: BaseException) -> str:
    """Class and first line of an error; Ray's own go on for many."""
    return ": ".join((type(error).__name__, *str(error).splitlines()[:1]))


def unwrap(error: RayTaskError) -> BaseException:
    """The exception that a remote method raised, without Ray's wrapper."""
    cause = error.cause
    if isinstance(cause, PhronomyError):
        return cause
    return cause if isinstance(cause, BaseException) else error


def is_gone(error: BaseException) -> bool:
    """Whether the actor is dead for good (its name may still be taken for a moment)."""
    return isinstance(error, ActorDiedError) or (
        isinstance(error, RayActorError) and not isinstance(error, ActorUnavailableError)
    )


def is_unreachable(error: BaseException) -> bool:
    """Whether nobody knows if the call ran: the actor is restarting, its node is lost, or it did not answer."""
    return isinstance(error, ActorUnavailableError | GetTimeoutError | TimeoutError) and not isinstance(
        error, PhronomyError
    )


def kill(handle: ActorHandle[Any]) -> None:
    """End an actor for good, without restart."""
    ray.kill(handle, no_restart=True)


def end_this_actor() -> None:
    """End the present actor for good, and its process; returns at once.

    Where the cluster has given this node up, the actor has been started elsewhere under the same Ray id: ending it by its handle would
    hit the successor, so this process ends itself and nothing else. It does so as well when Ray has not ended it in `EXIT_S`.
    """
    context = ray.get_runtime_context()
    actor, node = context.current_actor, context.get_node_id()

    def end() -> None:
        try:
            if not _is_given_up(node):
                kill(actor)
                time.sleep(EXIT_S)
        finally:
            os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=end, name="exit", daemon=True).start()


def _is_given_up(node: str) -> bool:
    """Whether the cluster counts a node as lost; not, when it does not say."""
    try:
        nodes = ray.nodes()  # type: ignore[no-untyped-call]
    except Exception:  # noqa: BLE001 - whatever Ray has against the question, its answer is missing
        return False
    return any(item["NodeID"] == node and not item["Alive"] for item in nodes)


def node_id() -> str:
    """Id of the present node, shortened for people."""
    return str(ray.get_runtime_context().get_node_id())[:12]


def cluster_name(namespace: str) -> str:
    """Name of this cluster and namespace, another one after every start of the cluster: what owners write into the store."""
    return f"{ray.get_runtime_context().get_session_name()}/{namespace}"


def pickle_by_value(value: Any) -> bytes:
    """`value` as bytes, classes of a driver's own script included; `pickle.loads` reads it."""
    data: bytes = ray.cloudpickle.dumps(value)  # type: ignore[no-untyped-call]
    return data


def runtime_env_text() -> str:
    """The runtime environment of the present process, as JSON."""
    text: str = ray.get_runtime_context().get_runtime_env_string()  # type: ignore[no-untyped-call]
    return text
