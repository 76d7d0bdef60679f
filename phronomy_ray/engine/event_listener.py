"""``on_event``: the user's function that hears of an agent's events in the process that owns it, and can never hold it up.

One call at a time, in order, on a thread of its own, behind a bounded queue. A function that is too slow for the queue loses
live events, of which it is told; durable ones are read from the store again when it has caught up. What it raises, and that it
does not return, is logged and counted and changes nothing else. Follows Phronomy's listener, whose failure is reported
(`stream_callback_error_policy`); there is no policy that fails the turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import inspect
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable
from typing import Any

from phronomy_ray.errors import HookError, StoreError, safe_message
from phronomy_ray.events import Event, EventType
from phronomy_ray.frozen import replace
from phronomy_ray.redaction import redact_text
from phronomy_ray.worker_inputs import WorkerInputRestricted

_LOG = logging.getLogger("phronomy_ray.engine")
#: Events that wait for the function.
MAX_WAITING = 1_000
#: Executions whose last event is remembered, to know where to read on.
REMEMBERED_EXECUTIONS = 64
#: How long an agent that leaves its process waits for the function to hear what has happened, in seconds.
LAST_WORDS_S = 2.0
#: Live text that waits is joined up to this many characters.
JOIN_CHARS = 2_000

StoredEvents = Callable[[str, int], Awaitable[list[Event]]]


class EventListener(WorkerInputRestricted):
    """One function and the events that wait for it. Use it on one event loop."""

    def __init__(
        self,
        agent_id: str,
        hook: Callable[..., Any],
        *,
        live: bool,
        timeout_s: float,
        stored_events: StoredEvents,
    ) -> None:
        """
        Args:
            agent_id: whose events.
            hook: the function, plain or async.
            live: whether it hears of live events too.
            timeout_s: how long one call may take; no other call is made while one that took longer still runs.
            stored_events: durable events of an execution behind a seq, a page of them.
        """
        self._agent_id = agent_id
        self._hook = hook
        self._live = live
        self._timeout_s = timeout_s
        self._stored_events = stored_events
        self._waiting: deque[Event] = deque()
        #: Seq of the last durable event of an execution that was put into the queue or heard.
        self._taken: OrderedDict[str, int] = OrderedDict()
        #: Executions of which durable events found no room: up to which seq they have to be read from the store.
        self._unread: OrderedDict[str, int] = OrderedDict()
        #: Live events that found no room, by execution.
        self._lost: OrderedDict[str, int] = OrderedDict()
        self._task: asyncio.Task[None] | None = None
        #: When an agent that leaves waits no longer, in seconds of the loop's clock.
        self._until_s: float | None = None
        #: Of the call that is under way.
        self._limit: asyncio.Timeout | None = None
        #: Set while no call is under way, also none that was given up.
        self._is_free = asyncio.Event()
        self._is_free.set()
        self._counts = {"heard": 0, "failed": 0, "lost_live": 0, "lost_durable": 0}

    @property
    def counts(self) -> dict[str, int]:
        """Calls that went well and that failed, and events that it never heard of."""
        return dict(self._counts)

    def publish(self, event: Event) -> None:
        """Let the function hear of an event, soon; never waits, never raises."""
        if self._until_s is not None or not (event.durable or self._live):
            return
        if event.durable:
            self._take_durable(event)
        else:
            self._take_live(event)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._tell())

    def close(self) -> None:
        """Take no more events; what waits is heard within `LAST_WORDS_S` seconds or never."""
        if self._until_s is None:
            self._until_s = asyncio.get_running_loop().time() + LAST_WORDS_S
            if self._limit is not None and not self._limit.expired():
                self._limit.reschedule(min(self._until_s, self._limit.when() or self._until_s))

    async def closed(self) -> None:
        """Wait, after `close`, until the function has heard what it will hear."""
        if self._task is not None:
            await asyncio.wait([self._task])

    # --- the queue ---------------------------------------------------------------------------------------------

    def _take_durable(self, event: Event) -> None:
        id_ = event.execution_id
        if id_ in self._unread:
            self._unread[id_] = event.seq
            return
        if len(self._waiting) >= MAX_WAITING:
            self._make_room()
        if len(self._waiting) >= MAX_WAITING:
            self._taken.setdefault(id_, event.seq - 1)
            self._unread[id_] = event.seq
            return
        self._waiting.append(event)
        self._has_taken(event)

    def _take_live(self, event: Event) -> None:
        if len(self._waiting) >= MAX_WAITING or event.execution_id in self._unread:
            self._lose(event)
            return
        last = self._waiting[-1] if self._waiting else None
        if event.type is EventType.TOKEN and last is not None and last.type is EventType.TOKEN:
            text = last.payload.get("text", "")
            if last.execution_id == event.execution_id and len(text) < JOIN_CHARS:
                self._waiting[-1] = replace(event, payload={"text": text + event.payload.get("text", "")})
                return
        self._waiting.append(event)

    def _make_room(self) -> None:
        """Live events go before durable ones."""
        for event in self._waiting:
            if not event.durable:
                self._lose(event)
        self._waiting = deque(event for event in self._waiting if event.durable)

    def _lose(self, event: Event) -> None:
        self._lost[event.execution_id] = self._lost.get(event.execution_id, 0) + 1
        self._counts["lost_live"] += 1

    def _has_taken(self, event: Event) -> None:
        self._taken[event.execution_id] = event.seq
        self._taken.move_to_end(event.execution_id)
        while len(self._taken) > REMEMBERED_EXECUTIONS:
            oldest = next(iter(self._taken))
            if oldest in self._unread:
                break
            del self._taken[oldest]

    # --- calls -------------------------------------------------------------------------------------------------

    async def _tell(self) -> None:
        while True:
            if self._lost:
                id_, count = self._lost.popitem(last=False)
                await self._call(
                    Event(id_, self._taken.get(id_, 0), EventType.LOST, {"events": count}, False)
                )
            elif self._waiting:
                await self._call(self._waiting.popleft())
            elif self._unread:
                await self._read_on(next(iter(self._unread)))
            else:
                return
            if self._until_s is not None and asyncio.get_running_loop().time() >= self._until_s:
                self._give_up()
                return

    async def _read_on(self, execution_id: str) -> None:
        """Durable events that found no room, from the store; those that come meanwhile are read with them."""
        after = self._taken.get(execution_id, 0)
        try:
            found = await self._stored_events(execution_id, after)
        except Exception as error:  # noqa: BLE001 - whatever it is: an observer is behind, and the agent goes on
            code = error.code if isinstance(error, StoreError) else "on_event_lost"
            self._give_up_on(execution_id, f"they cannot be read ({code}): {safe_message(error)}")
            return
        for event in found:
            self._has_taken(event)
            await self._call(event)
        if self._taken.get(execution_id, 0) >= self._unread[execution_id]:
            del self._unread[execution_id]
        elif not found:
            self._give_up_on(execution_id, "they are not stored any more")

    async def _call(self, event: Event) -> None:
        try:
            async with asyncio.timeout_at(self._until_s) as self._limit:
                await self._is_free.wait()  # for a call that was given up and still runs
        except TimeoutError:
            self._count_unheard(event)
            return
        finally:
            self._limit = None
        error = await self._call_on_thread(replace(event, payload=copy.deepcopy(event.payload)))
        if error is None:
            self._counts["heard"] += 1
            return
        self._counts["failed"] += 1
        failed = self._counts["failed"]
        if (
            failed & (failed - 1) == 0
        ):  # the first, second, fourth, ...: a function that always fails fills no log
            _LOG.warning(
                "agent %s: on_event failed at %s of execution %s (%s, %d so far): %s",
                self._agent_id,
                event.type.value,
                event.execution_id,
                error.code,
                failed,
                redact_text(str(error)),
            )

    async def _call_on_thread(self, event: Event) -> HookError | None:
        loop = asyncio.get_running_loop()
        until_s = loop.time() + self._timeout_s
        if self._until_s is not None:
            until_s = min(until_s, self._until_s)
        ended: asyncio.Future[BaseException | None] = loop.create_future()

        def settle(error: BaseException | None) -> None:
            self._is_free.set()
            if not ended.done():
                ended.set_result(error)

        def work() -> None:
            error: BaseException | None = None
            try:
                value = self._hook(event)
                if inspect.isawaitable(value):
                    asyncio.run(_within(value, self._timeout_s))
            except BaseException as raised:  # noqa: BLE001 - a user's function may raise anything; it is logged
                error = raised
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(settle, error)

        self._is_free.clear()
        threading.Thread(target=work, daemon=True, name="phronomy-on-event").start()
        try:
            async with asyncio.timeout_at(until_s) as self._limit:
                error = await ended
        except TimeoutError:
            return HookError("on_event did not return in time", code="on_event_timeout")
        finally:
            self._limit = None
        if error is None:
            return None
        text = safe_message(error) if isinstance(error, Exception) else str(error)
        return HookError(f"{type(error).__name__}: {text}", code="on_event_failed")

    def _give_up(self) -> None:
        """The agent leaves: nobody hears the rest."""
        for event in self._waiting:
            self._count_unheard(event)
        unheard = len(self._waiting) + len(self._unread)
        self._waiting.clear()
        for id_ in list(self._unread):
            self._counts["lost_durable"] += max(0, self._unread.pop(id_) - self._taken.get(id_, 0))
        if unheard:
            _LOG.warning(
                "agent %s left before on_event had heard of all its events (on_event_lost): %s",
                self._agent_id,
                self._counts,
            )

    def _count_unheard(self, event: Event) -> None:
        self._counts["lost_durable" if event.durable else "lost_live"] += 1

    def _give_up_on(self, execution_id: str, why: str) -> None:
        until = self._unread.pop(execution_id)
        missed = max(0, until - self._taken.get(execution_id, 0))
        self._counts["lost_durable"] += missed
        _LOG.warning(
            "agent %s: on_event never hears of %d events of execution %s (on_event_lost): %s",
            self._agent_id,
            missed,
            execution_id,
            redact_text(why),
        )


async def _within(value: Awaitable[Any], limit_s: float) -> Any:
    async with asyncio.timeout(limit_s):
        return await value


__all__ = ["EventListener"]
