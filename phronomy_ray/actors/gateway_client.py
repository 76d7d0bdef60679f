"""The way from an agent to its model gateway: a `ModelPort` and `EmbeddingPort` that survives the death of a gateway.

An agent has a home gateway by the hash of its id. When that one died, is restarting or does not answer a ping, the call
is made again on the next one: a model call has no effect but its cost. Text that was already streamed is voided by a
`StreamReset`. Cancelling the awaiting task cancels the call in the gateway, which closes the provider's connection.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from phronomy_ray.actors.answer_stream import StreamGroup
from phronomy_ray.actors.model_gateway import ModelGateway, gateway_options
from phronomy_ray.actors.ray_calls import answer_of, first_line, live_actor
from phronomy_ray.clock import utc_now
from phronomy_ray.embedding import EmbeddingAnswer, EmbeddingRequest
from phronomy_ray.errors import ErrorRecord, ModelError, PhronomyError, TransportError
from phronomy_ray.models.port import (
    ModelAnswer,
    ModelAttempt,
    ModelInfo,
    ModelRequest,
    StreamItem,
    StreamReset,
    TextDelta,
)

logger = logging.getLogger(__name__)
#: How long one gateway is looked for under its name before the next one is asked, in seconds.
START_PATIENCE_S = 10.0
#: How long a gateway may take to answer its first ping at least, in seconds: its process may only be starting.
START_TIMEOUT_S = 60.0


class _GatewayLostError(Exception):
    """The gateway cannot answer this call; another one may."""


class GatewayModel:
    """A `ModelPort` and `EmbeddingPort` over the model gateways of a namespace. Use it on one event loop, in a process connected to Ray."""

    def __init__(
        self,
        *,
        namespace: str,
        gateways: int = 2,
        patience_s: float = 120.0,
        ping_interval_s: float = 10.0,
        ping_timeout_s: float = 20.0,
    ) -> None:
        """
        Args:
            namespace: Ray namespace of the gateways.
            gateways: how many there are.
            patience_s: how long to look for a living gateway before a call fails with a `TransportError` (code
                ``gateway_unavailable``).
            ping_interval_s: a call that has not answered for so long is accompanied by a ping ...
            ping_timeout_s: ... and given up on this gateway when the ping is not answered (Ray does not notice a hung
                process).
        """
        self._namespace = namespace
        self._gateways = max(1, gateways)
        self._patience_s = patience_s
        self._ping_interval_s = ping_interval_s
        self._ping_timeout_s = ping_timeout_s
        self._handles: dict[int, Any] = {}
        self._locks: dict[int, asyncio.Lock] = {}
        self._spares: asyncio.Task[None] | None = None

    async def complete(self, request: ModelRequest) -> ModelAnswer:
        """Answer `request` in one piece through a gateway."""
        search = self._search(request)
        answer = await self._answer("complete", request, search)
        if isinstance(answer, ModelAnswer):
            return search.with_lost(answer)
        raise _cancelled_elsewhere()

    async def embed(self, request: EmbeddingRequest) -> EmbeddingAnswer:
        """Embed the texts of `request` through a gateway."""
        answer = await self._answer("embed", request, self._search(request))
        if isinstance(answer, EmbeddingAnswer):
            return answer
        raise _cancelled_elsewhere()

    async def _answer(self, method: str, request: ModelRequest | EmbeddingRequest, search: _Search) -> object:
        """What the first gateway that lives answers to `method`."""
        while True:
            number, started = search.next_gateway(), utc_now().isoformat()
            ticket = _ticket(request)
            handle: Any = None
            try:
                handle = await self._handle(number)
                return await self._guarded(handle, getattr(handle, method).remote(request, ticket))
            except _GatewayLostError as lost:
                self._handles.pop(number, None)
                _cancel(handle, ticket)  # it may only have been slow
                await search.lost(lost, started)
            except PhronomyError as error:
                raise search.numbered(error) from None
            except BaseException:
                _cancel(handle, ticket)
                raise

    async def stream(self, request: ModelRequest) -> AsyncIterator[StreamItem]:
        """Answer `request` piece by piece through a gateway."""
        search = self._search(request)
        sent_text = False
        while True:
            number, started = search.next_gateway(), utc_now().isoformat()
            ticket = _ticket(request)
            handle: Any = None
            finished = False
            if sent_text:
                yield StreamReset(search.attempt)
                sent_text = False
            try:
                handle = await self._handle(number)
                told = handle.stream.remote(request, ticket)
                while True:
                    group: StreamGroup | None = await self._guarded(handle, told)
                    if group is None:
                        raise _GatewayLostError(f"gateway {number} does not know the stream any more")
                    for item in group.items:
                        if isinstance(item, ModelAnswer):
                            finished = True
                            yield search.with_lost(item)
                            return
                        sent_text = isinstance(item, TextDelta) or (
                            sent_text and not isinstance(item, StreamReset)
                        )
                        yield search.shifted(item)
                    if group.is_over:
                        finished = True
                        raise _cancelled_elsewhere()
                    told = handle.more.remote(ticket)
            except _GatewayLostError as lost:
                finished = True
                self._handles.pop(number, None)
                _cancel(handle, ticket)
                await search.lost(lost, started)
            except PhronomyError as error:
                finished = True
                raise search.numbered(error) from None
            finally:
                if not finished:
                    _cancel(handle, ticket)

    async def info(self, model: str) -> ModelInfo:
        """Limits of `model` as a gateway knows them.

        Raises:
            TransportError: no gateway answers.
        """
        for number in range(self._gateways):
            try:
                handle = await self._handle(number)
                found = await self._guarded(handle, handle.info.remote(model))
            except (_GatewayLostError, PhronomyError):
                self._handles.pop(number, None)
                continue
            return found if isinstance(found, ModelInfo) else ModelInfo()
        raise TransportError(
            f"none of the {self._gateways} model gateways answers; see `phronomy doctor`",
            code="gateway_unavailable",
        )

    def home(self, agent_id: str) -> int:
        """Number of the gateway that an agent asks first."""
        return (
            int.from_bytes(hashlib.sha256(agent_id.encode("utf-8", "replace")).digest()[:8]) % self._gateways
        )

    def _search(self, request: ModelRequest | EmbeddingRequest) -> _Search:
        return _Search(self.home(request.agent_id), self._gateways, self._patience_s)

    # --- gateways ----------------------------------------------------------------------------------------------

    async def _handle(self, number: int) -> Any:
        """A gateway that has answered a ping; made when there is none.

        Raises:
            _GatewayLostError: it does not come up in time.
        """
        found = self._handles.get(number)
        if found is not None:
            return found
        async with self._locks.setdefault(number, asyncio.Lock()):
            if number not in self._handles:
                try:
                    self._handles[number] = await live_actor(
                        lambda: _create(number, self._namespace),
                        patience_s=min(START_PATIENCE_S, self._patience_s),
                        ping_timeout_s=max(START_TIMEOUT_S, self._ping_timeout_s),
                    )
                except (RayActorError, TimeoutError, ValueError) as error:
                    raise _GatewayLostError(f"gateway {number}: {first_line(error)}") from None
        if self._spares is None:
            # The others are started now: when this one dies, a spare that has litellm loaded must be there.
            self._spares = asyncio.create_task(self._start_spares(number))
        return self._handles[number]

    async def _start_spares(self, first: int) -> None:
        for number in range(self._gateways):
            if number != first and number not in self._handles:
                try:
                    await asyncio.to_thread(_create, number, self._namespace)
                except (RayActorError, ValueError) as error:
                    logger.warning("model gateway %d was not started: %s", number, first_line(error))

    async def _guarded(self, handle: Any, reference: Any) -> Any:
        """The result of a remote call, given up when the gateway died or does not answer a ping meanwhile.

        Raises:
            _GatewayLostError: the gateway is lost.
            PhronomyError: what the gateway raised.
        """
        try:
            return await answer_of(
                handle,
                reference,
                ping_interval_s=self._ping_interval_s,
                ping_timeout_s=self._ping_timeout_s,
            )
        except RayTaskError as error:
            raise _unwrapped(error) from None
        except PhronomyError:
            raise
        except (RayActorError, TimeoutError) as error:
            raise _GatewayLostError(first_line(error)) from None


class _Search:
    """Which gateway one call tries next, and what was lost on the way."""

    def __init__(self, first: int, count: int, patience_s: float) -> None:
        self._first = first
        self._count = count
        self._deadline = time.monotonic() + patience_s
        self._lost: list[ModelAttempt] = []

    @property
    def attempt(self) -> int:
        """Number of the attempt that comes next."""
        return len(self._lost) + 1

    def next_gateway(self) -> int:
        """The home gateway, then the others in order, round and round."""
        return (self._first + len(self._lost)) % self._count

    async def lost(self, error: _GatewayLostError, started_at: str) -> None:
        """Remember a lost gateway; after each full round wait a little, and give up when patience is over."""
        failure = TransportError(f"the model gateway was lost: {error}", code="gateway_unavailable")
        record = ErrorRecord.from_exception(failure)
        self._lost.append(ModelAttempt(self.attempt, started_at, utc_now().isoformat(), record))
        if time.monotonic() >= self._deadline:
            failure.details["attempts"] = [entry.to_wire() for entry in self._lost]
            raise failure from None
        rounds, rest = divmod(len(self._lost), self._count)
        if rest == 0:
            await asyncio.sleep(min(2.0, 0.1 * 2**rounds))

    def with_lost(self, answer: ModelAnswer) -> ModelAnswer:
        """`answer` with the lost attempts before its own."""
        if not self._lost:
            return answer
        own = (replace(entry, number=entry.number + len(self._lost)) for entry in answer.attempts)
        return replace(answer, attempts=(*self._lost, *own))

    def shifted(self, item: StreamItem) -> StreamItem:
        """A reset with its number counted over all gateways; other items as they are."""
        return StreamReset(item.attempt + len(self._lost)) if isinstance(item, StreamReset) else item

    def numbered(self, error: PhronomyError) -> PhronomyError:
        """`error` with the lost attempts before its own."""
        own = error.details.get("attempts")
        if self._lost and isinstance(own, list):
            later = [{**entry, "number": entry["number"] + len(self._lost)} for entry in own]
            error.details["attempts"] = [entry.to_wire() for entry in self._lost] + later
        return error


def _create(number: int, namespace: str) -> Any:
    return ray.remote(ModelGateway).options(**gateway_options(number, namespace)).remote()


def _ticket(request: ModelRequest | EmbeddingRequest) -> str:
    return f"{request.call_id}#{uuid.uuid4().hex}"


def _cancel(handle: Any, ticket: str) -> None:
    if handle is not None:
        try:
            handle.cancel.remote(ticket)
        except RayActorError:
            pass  # a dead gateway has no upstream connection to close


def _cancelled_elsewhere() -> ModelError:
    """The gateway says that the ticket was cancelled, and it was not by us: the same call was made by a newer owner."""
    return ModelError("the model call was replaced by a newer one with the same id", code="superseded")


def _unwrapped(error: RayTaskError) -> PhronomyError:
    cause = error.cause
    if isinstance(cause, PhronomyError):
        return cause
    return ModelError(f"the model gateway failed: {type(cause).__name__}: {cause}", code="gateway_failed")
