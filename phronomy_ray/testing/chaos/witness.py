"""A witness inside the database: triggers that write down every change of an agent's root and every journal record, in the same
transaction and without the runtime's help. The runtime cannot forget to tell it, and what was rolled back it has not seen.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from sqlalchemy import Connection, create_engine, text

_SQLITE = (
    """CREATE TABLE chaos_roots (seq INTEGER PRIMARY KEY AUTOINCREMENT, agent_id TEXT, old_epoch INTEGER, epoch INTEGER,
       old_revision INTEGER, revision INTEGER, old_position INTEGER, position INTEGER, commit_id TEXT)""",
    """CREATE TABLE chaos_records (seq INTEGER PRIMARY KEY AUTOINCREMENT, agent_id TEXT, position INTEGER, verb TEXT,
       epoch INTEGER)""",
    """CREATE TRIGGER chaos_root_made AFTER INSERT ON agents BEGIN INSERT INTO chaos_roots (agent_id, old_epoch, epoch,
       old_revision, revision, old_position, position, commit_id) VALUES (NEW.agent_id, NULL, NEW.epoch, NULL,
       NEW.agent_revision, 0, NEW.journal_position, NEW.last_commit_id); END""",
    """CREATE TRIGGER chaos_root_changed AFTER UPDATE ON agents WHEN OLD.epoch <> NEW.epoch
       OR OLD.agent_revision <> NEW.agent_revision OR OLD.journal_position <> NEW.journal_position
       BEGIN INSERT INTO chaos_roots (agent_id, old_epoch, epoch, old_revision, revision, old_position, position, commit_id)
       VALUES (NEW.agent_id, OLD.epoch, NEW.epoch, OLD.agent_revision, NEW.agent_revision, OLD.journal_position,
       NEW.journal_position, NEW.last_commit_id); END""",
    *(
        f"""CREATE TRIGGER chaos_record_{verb} AFTER {verb} ON journal BEGIN INSERT INTO chaos_records
            (agent_id, position, verb, epoch) SELECT {row}.agent_id, {row}.position, '{verb}', epoch FROM agents
            WHERE agent_id = {row}.agent_id; END"""
        for verb, row in (("insert", "NEW"), ("update", "OLD"), ("delete", "OLD"))
    ),
)
_POSTGRES = (
    """CREATE TABLE chaos_roots (seq BIGSERIAL PRIMARY KEY, agent_id TEXT, old_epoch BIGINT, epoch BIGINT,
       old_revision BIGINT, revision BIGINT, old_position BIGINT, position BIGINT, commit_id TEXT)""",
    """CREATE TABLE chaos_records (seq BIGSERIAL PRIMARY KEY, agent_id TEXT, position BIGINT, verb TEXT, epoch BIGINT)""",
    """CREATE FUNCTION chaos_root() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
       IF TG_OP = 'INSERT' THEN
         INSERT INTO chaos_roots (agent_id, old_epoch, epoch, old_revision, revision, old_position, position, commit_id)
         VALUES (NEW.agent_id, NULL, NEW.epoch, NULL, NEW.agent_revision, 0, NEW.journal_position, NEW.last_commit_id);
       ELSIF OLD.epoch <> NEW.epoch OR OLD.agent_revision <> NEW.agent_revision
             OR OLD.journal_position <> NEW.journal_position THEN
         INSERT INTO chaos_roots (agent_id, old_epoch, epoch, old_revision, revision, old_position, position, commit_id)
         VALUES (NEW.agent_id, OLD.epoch, NEW.epoch, OLD.agent_revision, NEW.agent_revision, OLD.journal_position,
                 NEW.journal_position, NEW.last_commit_id);
       END IF;
       RETURN NULL; END $$""",
    "CREATE TRIGGER chaos_root AFTER INSERT OR UPDATE ON agents FOR EACH ROW EXECUTE FUNCTION chaos_root()",
    """CREATE FUNCTION chaos_record() RETURNS trigger LANGUAGE plpgsql AS $$ DECLARE it RECORD; BEGIN
       IF TG_OP = 'INSERT' THEN it := NEW; ELSE it := OLD; END IF;
       INSERT INTO chaos_records (agent_id, position, verb, epoch)
         SELECT it.agent_id, it.position, lower(TG_OP), epoch FROM agents WHERE agent_id = it.agent_id;
       RETURN NULL; END $$""",
    """CREATE TRIGGER chaos_record AFTER INSERT OR UPDATE OR DELETE ON journal
       FOR EACH ROW EXECUTE FUNCTION chaos_record()""",
)


class Verb(enum.StrEnum):
    """What was done to a journal record."""

    INSERT = "insert"
    UPDATE = "update"
    DELETE = "delete"


@dataclass(frozen=True, slots=True)
class RootChange:
    """One durable change of an agent's epoch, revision or journal position; a claim changes the first only."""

    agent_id: str
    #: ``None`` in the first one, which made the agent.
    old_epoch: int | None
    epoch: int
    old_revision: int | None
    revision: int
    old_position: int
    position: int
    commit_id: str | None


@dataclass(frozen=True, slots=True)
class RecordChange:
    """One durable change of the journal, and the epoch of the agent's root in its transaction."""

    agent_id: str
    position: int
    verb: Verb
    epoch: int


@dataclass(frozen=True, slots=True)
class Testimony:
    """Everything that the witness has seen, in the order of the commits of each agent."""

    roots: tuple[RootChange, ...] = ()
    records: tuple[RecordChange, ...] = ()


def install(url: str) -> None:
    """Begin to watch a migrated database, before its first agent."""
    engine = create_engine(url)
    try:
        with engine.begin() as connection:
            for statement in _POSTGRES if connection.dialect.name == "postgresql" else _SQLITE:
                connection.exec_driver_sql(statement)
    finally:
        engine.dispose()


def testimony(url: str) -> Testimony:
    """What was seen so far."""
    engine = create_engine(url)
    try:
        with engine.connect() as connection:
            return Testimony(tuple(_roots(connection)), tuple(_records(connection)))
    finally:
        engine.dispose()


def _roots(connection: Connection) -> list[RootChange]:
    columns = "agent_id, old_epoch, epoch, old_revision, revision, old_position, position, commit_id"
    rows = connection.execute(text(f"SELECT {columns} FROM chaos_roots ORDER BY seq"))
    return [RootChange(*row) for row in rows]


def _records(connection: Connection) -> list[RecordChange]:
    rows = connection.execute(text("SELECT agent_id, position, verb, epoch FROM chaos_records ORDER BY seq"))
    return [RecordChange(agent_id, position, Verb(verb), epoch) for agent_id, position, verb, epoch in rows]
