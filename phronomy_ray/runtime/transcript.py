"""An agent's messages, read from the store."""

from __future__ import annotations

from phronomy_ray.engine.reading import messages_of
from phronomy_ray.journal import JournalRecord
from phronomy_ray.messages import Message
from phronomy_ray.store.port import Store

#: Records that are read at once.
PAGE = 1_000


def read_transcript(store: Store, agent_id: str) -> tuple[Message, ...]:
    """The messages of the present generation, in order. Raises `NotFoundError`."""
    generation = store.load_root(agent_id).transcript_generation
    found: list[JournalRecord] = []
    before: int | None = None
    while True:
        page = store.read_journal(agent_id, before=before, limit=PAGE, newest_first=True)
        found += (record for record in page if record.generation == generation)
        if len(page) < PAGE or page[-1].generation < generation:
            return tuple(Message.from_wire(message) for message in messages_of(reversed(found)))
        before = page[-1].position
