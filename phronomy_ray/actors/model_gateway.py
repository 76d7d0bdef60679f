"""The model gateway: the one process that imports litellm, as an async Ray actor around a `ModelPort` and an
`EmbeddingPort`.

Every call carries a *ticket*, unique to one sending of one request, beside the request's ``call_id``, which is the same for
every repetition. `cancel` works on tickets and is remembered, so it also holds for a call that arrives after it; a new
call with a ``call_id`` that is still running replaces the old one, whose caller must be dead. Nothing here survives the
process, and nothing needs to: a model call can be made again.

A streamed answer is asked for group by group (`stream`, then `more`) rather than sent: Ray holds up a whole actor whose
stream of results is not taken by a stopped process.

The class is plain Python. `gateway_options` says how it becomes an actor.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
import warnings
from collections.abc import Coroutine
from typing import Any, TypeVar

from phronomy_ray.actors.answer_stream import AnswerStream, StreamGroup
from phronomy_ray.actors.ray_calls import service_options
from phronomy_ray.actors.signals import die_at_sigterm
from phronomy_ray.actors.tickets import CancelledTickets
from phronomy_ray.embedding import EmbeddingAnswer, EmbeddingPort, EmbeddingRequest
from phronomy_ray.models.litellm_embeddings import LitellmEmbeddingPort
from phronomy_ray.models.litellm_model import LitellmModel, import_litellm
from phronomy_ray.models.port import (
    ModelAnswer,
    ModelInfo,
    ModelPort,
    ModelRequest,
)

T = TypeVar("T")

#: A stream that nobody has asked for so long is ended, in seconds.
FORGOTTEN_AFTER_S = 60.0

logger = logging.getLogger(__name__)


def gateway_name(number: int) -> str:
    """Ray name of the gateway with this number."""
    return f"models:{number}"


def gateway_options(number: int, namespace: str) -> dict[str, Any]:
    """Options of the actor; the gateways stand on different nodes where there are several."""
    return service_options(gateway_name(number), namespace) | {"scheduling_strategy": "SPREAD"}


class ModelGateway:
    """Model calls for many agents on one event loop."""

    def __init__(self, model: ModelPort | None = None, embeddings: EmbeddingPort | None = None) -> None:
        die_at_sigterm()
        self._model = model if model is not None else LitellmModel()
        self._embeddings = embeddings if embeddings is not None else LitellmEmbeddingPort()
        self._tasks: dict[str, asyncio.Task[Any]] = {}
        #: Ticket in force of each running ``call_id``.
        self._running: dict[str, str] = {}
        self._cancelled = CancelledTickets()
        #: Streams that were not read to their end, by ticket, and when each that nobody waits for is forgotten.
        self._streams: dict[str, AnswerStream] = {}
        self._leases: dict[str, asyncio.TimerHandle] = {}
        self._started = time.monotonic()
        if model is None:
            # An answer with odd fields makes litellm's own dump warn; we normalise them.
            warnings.filterwarnings("ignore", message="Pydantic serializer warnings", category=UserWarning)
            threading.Thread(target=import_litellm, name="import-litellm", daemon=True).start()

    async def complete(self, request: ModelRequest, ticket: str) -> ModelAnswer | None:
        """Answer in one piece; ``None`` when the ticket was cancelled. Raises `ModelError`."""
        return await self._answer(request.call_id, ticket, self._model.complete(request))

    async def embed(self, request: EmbeddingRequest, ticket: str) -> EmbeddingAnswer | None:
        """Embed texts; ``None`` when the ticket was cancelled. Raises `ModelError`."""
        return await self._answer(request.call_id, ticket, self._embeddings.embed(request))

    async def stream(self, request: ModelRequest, ticket: str) -> StreamGroup | None:
        """Begin a streamed answer; returns its first group, and `more` the others."""
        stream = AnswerStream(self._model.stream(request))
        self._streams[ticket] = stream
        self._register(request.call_id, ticket, stream.task)
        stream.task.add_done_callback(lambda _: self._unregister(request.call_id, ticket))
        return await self.more(ticket)

    async def more(self, ticket: str) -> StreamGroup | None:
        """The next group of a streamed answer, as soon as there is one; ``None`` when there is no such stream (any more): it
        belonged to a former life of this process, or nobody asked for it for a long time. Raises `ModelError`.
        """
        stream = self._streams.get(ticket)
        if stream is None:
            return None
        lease = self._leases.pop(ticket, None)
        if lease is not None:
            lease.cancel()
        is_over = True
        try:
            group = await stream.next()
            is_over = group.is_over
        finally:
            if is_over:
                self._streams.pop(ticket, None)
            elif ticket in self._streams:
                loop = asyncio.get_running_loop()
                self._leases[ticket] = loop.call_later(FORGOTTEN_AFTER_S, self._forget, ticket)
        return group

    async def cancel(self, ticket: str) -> bool:
        """Cancel the call with this ticket, now or when it arrives; tells whether it was running."""
        task = self._tasks.get(ticket)
        if task is not None:
            task.cancel()
            return True
        self._cancelled.add(ticket)
        return False

    async def info(self, model: str) -> ModelInfo:
        """Limits of a model."""
        return await self._model.info(model)

    async def ping(self) -> dict[str, Any]:
        """Sign of life: process id, running calls, seconds since the start."""
        return {"pid": os.getpid(), "running": len(self._tasks), "uptime_s": time.monotonic() - self._started}

    # --- inside ------------------------------------------------------------------------------------------------

    async def _answer(self, call_id: str, ticket: str, call: Coroutine[Any, Any, T]) -> T | None:
        """What `call` gives, ``None`` when its ticket was cancelled; raises what it raises."""
        task = asyncio.create_task(call)
        self._register(call_id, ticket, task)
        try:
            await asyncio.wait({task})
        finally:
            task.cancel()
            self._unregister(call_id, ticket)
        return None if task.cancelled() else task.result()

    def _forget(self, ticket: str) -> None:
        """The reader of this stream is gone or stopped."""
        self._leases.pop(ticket, None)
        stream = self._streams.pop(ticket, None)
        if stream is not None:
            stream.task.cancel()

    def _register(self, call_id: str, ticket: str, task: asyncio.Task[Any]) -> None:
        former = self._running.get(call_id)
        if former is not None and former in self._tasks:
            logger.warning("model call %s is made again while it runs; the former one is cancelled", call_id)
            self._tasks[former].cancel()
        self._running[call_id] = ticket
        self._tasks[ticket] = task
        if self._cancelled.take(ticket):
            task.cancel()

    def _unregister(self, call_id: str, ticket: str) -> None:
        self._tasks.pop(ticket, None)
        if self._running.get(call_id) == ticket:
            del self._running[call_id]
