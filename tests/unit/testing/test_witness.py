"""The witness in the database, and the check of what it has seen: each planted violation is found."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "actors" / "importable"))

import ray_testbed.session
from ray_testbed.agents import Puppet, turn
from ray_testbed.effects import PATIENCE_S

from phronomy_ray import InProcess, Runtime
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.chaos import witness
from phronomy_ray.testing.chaos.checker import violations
from phronomy_ray.testing.chaos.ownership import check_records, check_roots
from phronomy_ray.testing.chaos.witness import RecordChange, RootChange, Verb

MADE = RootChange("a", None, 0, None, 0, 0, 0, None)
FIRST = RootChange("a", 0, 1, 0, 0, 0, 0, None)
ONE = RootChange("a", 1, 1, 0, 1, 0, 2, "a:1:1")
TAKEN = RootChange("a", 1, 2, 1, 1, 2, 2, "a:1:1")
TWO = RootChange("a", 2, 2, 1, 2, 2, 3, "a:2:1")
GOOD = (MADE, FIRST, ONE, TAKEN, TWO)
RECORDS = tuple(
    RecordChange("a", position, Verb.INSERT, epoch) for position, epoch in ((1, 1), (2, 1), (3, 2))
)


def test_one_owner_after_the_other_is_right() -> None:
    assert check_roots("a", GOOD) == []
    assert check_records("a", GOOD, RECORDS, [1, 2, 3]) == []


@pytest.mark.parametrize(
    ("changes", "wrong"),
    [
        ((*GOOD, RootChange("a", 2, 1, 2, 2, 3, 3, "a:2:1")), "the epoch went back"),
        ((MADE, FIRST, ONE, TAKEN, replace(TWO, commit_id="a:1:2")), "after epoch 2 had begun"),
        ((MADE, FIRST, ONE, TAKEN, replace(TWO, commit_id="a:1:1")), "was committed 2 times"),
        ((MADE, FIRST, ONE, TWO), "does not build on"),
        ((MADE, FIRST, ONE, TAKEN, replace(TWO, old_position=1)), "does not build on"),
        ((MADE, FIRST, ONE, TAKEN, replace(TWO, position=1)), "the journal went back"),
        ((MADE, FIRST, ONE, TAKEN, replace(TWO, revision=3)), "revision 3 follows 1"),
        ((MADE, FIRST, ONE, replace(TWO, old_epoch=1)), "a commit has changed the epoch"),
        ((MADE, FIRST, ONE, replace(TAKEN, position=3)), "grew without a commit"),
    ],
)
def test_a_second_owner_is_found(changes: Sequence[RootChange], wrong: str) -> None:
    assert wrong in " ".join(check_roots("a", changes))


@pytest.mark.parametrize(
    ("records", "stored", "wrong"),
    [
        (RECORDS[:2], [1, 2], "committed and never written"),
        (RECORDS, [1, 3], "gaps, repeats or strangers at [2]"),
        (RECORDS, [1, 2, 3, 4], "gaps, repeats or strangers at [4]"),
        ((*RECORDS, RECORDS[1]), [1, 2, 3], "position 2 was written 2 times"),
        ((*RECORDS, replace(RECORDS[0], verb=Verb.UPDATE)), [1, 2, 3], "lost or changed afterwards: update"),
        (
            (*RECORDS[:2], replace(RECORDS[2], epoch=1)),
            [1, 2, 3],
            "position 3 is of epoch 1, its commit of 2",
        ),
        ((replace(RECORDS[0], epoch=2), *RECORDS[1:]), [1, 2, 3], "epoch 2 wrote position 1, and epoch 1"),
    ],
)
def test_a_lost_or_foreign_record_is_found(
    records: Sequence[RecordChange], stored: Sequence[int], wrong: str
) -> None:
    assert wrong in " ".join(check_records("a", GOOD, records, stored))


# --- on a database -----------------------------------------------------------------------------------------------

PLANTED = (
    ("DELETE FROM journal WHERE position = 2", "gaps, repeats or strangers at [2]"),
    ("UPDATE journal SET role = 'user' WHERE position = 2", "lost or changed afterwards: update"),
    ("UPDATE agents SET epoch = epoch - 1", "the epoch went back"),
    (
        "UPDATE agents SET agent_revision = agent_revision + 1, last_commit_id = agent_id || ':1:99'",
        "was committed after epoch 2 had begun",
    ),
    ("UPDATE agents SET journal_position = journal_position + 1", "grew without a commit"),
)


def watched(url: str, violate: Callable[[], None]) -> list[str]:
    """Two owners work one after the other under the eyes of the witness, `violate`, and what the checker says."""
    witness.install(url)
    agent_id = ray_testbed.session.fresh_name("watched")
    for _ in range(2):
        with Runtime(placement=InProcess(), store=url) as runtime:
            agent = runtime.load_or_create(Puppet, agent_id)
            assert agent.invoke(turn([("note", {"text": "x"})]), timeout=PATIENCE_S).output == "done"
    violate()
    store = open_store(url)
    try:
        return violations(store, [], [], witness.testimony(url))
    finally:
        store.close()


@pytest.mark.parametrize(("statement", "wrong"), [("", ""), *PLANTED])
def test_what_is_planted_in_sqlite_is_found(
    sqlite_template: Path, tmp_path: Path, statement: str, wrong: str
) -> None:
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    check(f"sqlite:///{tmp_path}/agents.db", statement, wrong)


def check(url: str, statement: str, wrong: str) -> None:
    def violate() -> None:
        engine = create_engine(url)
        with engine.begin() as connection:
            if statement:
                connection.execute(text(statement))
        engine.dispose()

    # the tool of these agents leaves its effects elsewhere
    found = [item for item in watched(url, violate) if "succeeded without an effect" not in item]
    assert (wrong in " ".join(found)) if wrong else found == []
