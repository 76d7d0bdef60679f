"""Live observers of executions: a bounded buffer that readers poll, so that no reader can hold up an agent.

Each execution has a buffer of events, durable and live, numbered by a position of this process. A reader that comes
with a cursor goes on where it was; one without, or with the cursor of a lost process, first reads durable events from
the store (the engine does that) and then the buffer. A reader that falls too far behind is told how many live events it
lost; durable ones are read from the store again, so it loses none of those.
"""

from __future__ import annotations

import asyncio
import copy
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from typing import NamedTuple

from phronomy_ray.events import Event, EventType
from phronomy_ray.frozen import replace
from phronomy_ray.worker_inputs import WorkerInputRestricted

BUFFER_EVENTS = 10_000
BUFFERED_EXECUTIONS = 16
#: Live text is joined up to this many characters while nobody has read it.
JOIN_CHARS = 2_000


class Place(NamedTuple):
    """How far a reader has come in one execution's events."""

    #: Position of the last event that it has.
    position: int = 0
    #: How many live ones there were up to there.
    live: int = 0


class Reading(NamedTuple):
    """What a reader is given."""

    events: list[Event]
    #: Where it goes on.
    place: Place
    #: Live events between its place and the first of `events` that the buffer holds no more.
    lost_live: int = 0
    #: Seq of the last durable event before the first of `events`, when there is a gap before it; ``None`` without a gap.
    gap_until: int | None = None


@dataclass
class _Buffer:
    events: deque[tuple[Place, Event]] = field(default_factory=lambda: deque(maxlen=BUFFER_EVENTS))
    #: Where the newest event is.
    last: Place = field(default_factory=Place)
    #: Highest position that a reader has taken.
    read_position: int = 0

    @property
    def has_ended(self) -> bool:
        """Whether its last event is there."""
        return bool(self.events) and self.events[-1][1].is_terminal


class Signal(WorkerInputRestricted):
    """Wakes whoever waits for a change of something."""

    __slots__ = ("_changed",)

    def __init__(self) -> None:
        #: Made when somebody wants to wait.
        self._changed: asyncio.Event | None = None

    def wake(self) -> None:
        """Wake everybody who waits for a change."""
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    @property
    def changed(self) -> asyncio.Event:
        """Set at the next change; take it before looking."""
        if self._changed is None:
            self._changed = asyncio.Event()
        return self._changed


class EventHub(Signal):
    """The buffers of one agent; its change is an event, or that there will be none."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: OrderedDict[str, _Buffer] = OrderedDict()

    def forget(self) -> None:
        """Drop all buffers: the store may hold events that were never published here, and readers must not miss them."""
        self._buffers.clear()
        self.wake()

    def publish(self, event: Event) -> None:
        """Add an event and wake the readers."""
        buffer = self._buffers.get(event.execution_id)
        if buffer is None:
            buffer = self._buffers[event.execution_id] = _Buffer()
            self._evict()
        if event.type is EventType.TOKEN and buffer.events:
            place, last = buffer.events[-1]
            text = last.payload.get("text", "") if last.type is EventType.TOKEN else None
            if text is not None and place.position > buffer.read_position and len(text) < JOIN_CHARS:
                joined = Event(
                    event.execution_id,
                    event.seq,
                    EventType.TOKEN,
                    {"text": text + event.payload["text"]},
                    False,
                )
                buffer.events[-1] = (place, joined)
                return
        buffer.last = Place(buffer.last.position + 1, buffer.last.live + (not event.durable))
        buffer.events.append((buffer.last, event))
        self.wake()

    def _evict(self) -> None:
        """Keep the number of buffers bounded. What has ended goes first: while an execution runs, any number of requests that
        waited for it can be withdrawn, and the positions of its readers are worth nothing without its buffer.
        """
        while len(self._buffers) > BUFFERED_EXECUTIONS:
            ended = (id_ for id_, buffer in self._buffers.items() if buffer.has_ended)
            del self._buffers[next(ended, next(iter(self._buffers)))]

    def read(self, execution_id: str, after: Place) -> Reading:
        """Events behind `after`; their payloads belong to the caller."""
        buffer = self._buffers.get(execution_id)
        if buffer is None:
            return Reading([], after)
        found = [(place, event) for place, event in buffer.events if place.position > after.position]
        events = [replace(event, payload=copy.deepcopy(event.payload)) for _, event in found]
        buffer.read_position = max(buffer.read_position, buffer.last.position)
        going_on = max(buffer.last, after)
        if not found or found[0][0].position == after.position + 1:
            return Reading(events, going_on)
        place, first = found[0]
        lost_live = place.live - (not first.durable) - after.live
        return Reading(events, going_on, lost_live, first.seq - first.durable)

    def last_seq(self, execution_id: str) -> int:
        """Seq of the last durable event in the buffer, 0 without one."""
        buffer = self._buffers.get(execution_id)
        events = reversed(buffer.events) if buffer is not None else ()
        return next((event.seq for _, event in events if event.durable), 0)

    def oldest(self, execution_id: str) -> Place:
        """The place before the first event that the buffer holds."""
        buffer = self._buffers.get(execution_id)
        if buffer is None or not buffer.events:
            return Place()
        place, event = buffer.events[0]
        return Place(place.position - 1, place.live - (not event.durable))

    def place_after_seq(self, execution_id: str, seq: int) -> Place | None:
        """Where the durable event `seq` is in the buffer; ``None`` when the buffer does not reach back to it."""
        buffer = self._buffers.get(execution_id)
        if buffer is None:
            return None
        if seq == 0 and buffer.events and buffer.events[0][0].position == 1 and buffer.events[0][1].seq <= 1:
            return Place()
        for place, event in buffer.events:
            if event.durable and event.seq == seq:
                return place
        return None
