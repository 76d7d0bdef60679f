"""A process that owns an agent is stopped (SIGSTOP), another one takes the agent, and the first is let go on.

Both are drivers whose agents live in their own processes: to each other they are two clusters on one store.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import make_url

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "actors" / "importable"))

import ray_testbed.session  # noqa: F401  sets the environment that agents are declared with
from ray_testbed import checks, effects, local_drives, other_driver
from ray_testbed.agents import Puppet, asked, turn
from ray_testbed.effects import PATIENCE_S
from ray_testbed.local_drives import Where
from ray_testbed.other_driver import OtherDriver
from ray_testbed.session import fresh_name

from phronomy_ray import AgentHandle, InProcess, Runtime
from phronomy_ray.clock import utc_now
from phronomy_ray.errors import StoreUnavailableError
from phronomy_ray.store.engines import StoreOptions
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.processes import is_stopped

#: The server closes a session of a stopped owner after that long, in milliseconds; 5 s where nobody sets it.
IDLE_LIMIT_MS = 300


@pytest.fixture(scope="module")
def other() -> Iterator[OtherDriver]:
    """Another driver, without Ray; every commit of its agents is noted."""
    made = other_driver.without_ray()
    made.run(local_drives.note_commits)
    yield made
    made.close()


class Contest:
    """One agent that two processes own one after the other."""

    def __init__(self, other: OtherDriver, url: str) -> None:
        self.other, self.url = other, url
        self.here = Runtime(placement=InProcess(), store=url)
        self.agent_id = fresh_name("contested")
        self.execution_id = f"ex-{self.agent_id}"
        other.run(local_drives.create, url, Puppet, self.agent_id)

    @property
    def agent(self) -> AgentHandle:
        return self.here.agent(self.agent_id)

    def there(self, function: Any, *arguments: Any) -> Any:
        return self.other.run(function, self.url, *arguments)

    def start_there(self, gate: str) -> None:
        """A turn that waits at the gate in its second model call, with one effect behind it."""
        message = turn([("pay", {"amount": 1})], model_gates={2: gate})
        self.there(local_drives.start, self.agent_id, message, self.execution_id)
        effects.until(lambda: len(asked(self.agent_id)) == 2, "the second model call")

    def stop(self) -> None:
        os.kill(self.other.pid, signal.SIGSTOP)
        self.until_stopped()

    def until_stopped(self) -> None:
        effects.until(lambda: is_stopped(self.other.pid), "the other process to be stopped")

    def resume(self) -> None:
        os.kill(self.other.pid, signal.SIGCONT)

    def refused(self) -> list[str]:
        """What became of the commits of the other process that did not count."""
        found = effects.recorded(self.agent_id, "commit")
        return [entry["outcome"] for entry in found if entry["outcome"] != "done"]

    def close(self) -> None:
        self.resume()
        self.there(local_drives.forget)
        self.here.close()
        store = open_store(self.url)
        checks.check_agent(store, self.agent_id)
        store.close()


@pytest.fixture
def url(request: pytest.FixtureRequest, sqlite_template: Path, tmp_path: Path) -> str:
    if getattr(request, "param", "sqlite") == "postgres":
        database = request.getfixturevalue("postgres_database")
        limit = f"-c idle_in_transaction_session_timeout={IDLE_LIMIT_MS}"
        return (
            make_url(database.url).update_query_dict({"options": limit}).render_as_string(hide_password=False)
        )
    shutil.copyfile(sqlite_template, tmp_path / "agents.db")
    return f"sqlite:///{tmp_path / 'agents.db'}"


@pytest.fixture
def contest(other: OtherDriver, url: str) -> Iterator[Contest]:
    made = Contest(other, url)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("url", "where"),
    [("postgres", Where.INSIDE), ("postgres", Where.EDGE), ("sqlite", Where.EDGE)],
    indirect=["url"],
)
def test_R07_an_owner_stopped_in_a_commit_loses_it_to_the_next(contest: Contest, where: Where) -> None:
    gate = fresh_name("gate")
    contest.start_there(gate)
    before = contest.here.store.load_root(contest.agent_id)
    contest.there(local_drives.stop_in_next_commit, contest.agent_id, where)
    waiting = contest.other.begin(local_drives.result, contest.url, contest.execution_id)
    effects.open_gate(gate)
    contest.until_stopped()
    begun = time.monotonic()
    result = contest.here.execution(contest.execution_id).result(timeout=PATIENCE_S)
    assert time.monotonic() - begun < 15, "the lock of the stopped one is waited for, and not for ever"
    assert result.output == "done"
    root = contest.here.store.load_root(contest.agent_id)
    assert (root.epoch, root.owner["pid"]) == (before.epoch + 1, os.getpid())
    position = root.journal_position
    contest.resume()
    assert waiting.result(PATIENCE_S).output == "done", "whoever waited at the first owner has the result too"
    effects.until(lambda: contest.refused() == ["OwnershipLostError"], "the commit to be refused")
    assert contest.here.store.load_root(contest.agent_id).journal_position == position
    assert len(effects.recorded(contest.agent_id, "pay")) == 1
    assert contest.agent.invoke("again").output == "you said: again"
    assert contest.refused() == ["OwnershipLostError"]


def test_R07_on_sqlite_an_owner_stopped_inside_holds_the_file_and_nobody_waits_for_ever(
    contest: Contest,
) -> None:
    """The file has one writer: nobody can take the agent before the transaction is over, so there is one owner all the time."""
    gate = fresh_name("gate")
    contest.start_there(gate)
    contest.there(local_drives.stop_in_next_commit, contest.agent_id, Where.INSIDE)
    effects.open_gate(gate)
    contest.until_stopped()
    impatient = open_store(contest.url, options=StoreOptions(busy_timeout_s=0.2))
    begun = time.monotonic()
    with pytest.raises(StoreUnavailableError):
        impatient.claim(contest.agent_id, owner={"pid": os.getpid()}, now=utc_now())
    assert time.monotonic() - begun < 5
    assert impatient.load_execution(contest.execution_id).status.value == "active", "reads go on"
    impatient.close()
    contest.resume()
    assert contest.there(local_drives.result, contest.execution_id).output == "done"
    assert contest.refused() == []
    assert contest.agent.invoke("mine").output == "you said: mine"
    assert contest.there(local_drives.invoke, contest.agent_id, "and mine").output == "you said: and mine"
    assert len(effects.recorded(contest.agent_id, "pay")) == 1


@pytest.mark.full
def test_R07_on_sqlite_the_next_owner_goes_on_once_the_stopped_one_is_ended(url: str) -> None:
    other = other_driver.without_ray()
    here = Runtime(placement=InProcess(), store=url)
    try:
        agent_id, gate = fresh_name("ended"), fresh_name("gate")
        other.run(local_drives.create, url, Puppet, agent_id)
        other.run(local_drives.start, url, agent_id, turn(model_gates={1: gate}), f"ex-{agent_id}")
        other.run(local_drives.stop_in_next_commit, url, agent_id, Where.INSIDE)
        effects.open_gate(gate)
        effects.until(lambda: is_stopped(other.pid), "the other process to be stopped")
        other.kill()
        assert here.execution(f"ex-{agent_id}").result(timeout=PATIENCE_S).output == "done"
    finally:
        here.close()
        other.close()


def test_R07_an_owner_stopped_in_a_model_call_changes_nothing_when_it_comes_back(contest: Contest) -> None:
    gate = fresh_name("gate")
    contest.start_there(gate)
    waiting = contest.other.begin(local_drives.result, contest.url, contest.execution_id)
    contest.stop()
    effects.open_gate(gate)
    assert contest.here.execution(contest.execution_id).result(timeout=PATIENCE_S).output == "done"
    after = contest.here.store.load_root(contest.agent_id)
    contest.resume()
    effects.until(lambda: contest.refused() == ["OwnershipLostError"], "the late answer to be refused")
    assert waiting.result(PATIENCE_S).output == "done"
    now = contest.here.store.load_root(contest.agent_id)
    assert (now.journal_position, now.agent_revision) == (after.journal_position, after.agent_revision)
    assert len(effects.recorded(contest.agent_id, "pay")) == 1


def test_R07_an_owner_stopped_while_idle_takes_no_request_when_it_comes_back(contest: Contest) -> None:
    contest.stop()
    assert contest.agent.invoke("one").output == "you said: one"
    epoch = contest.here.store.load_root(contest.agent_id).epoch
    contest.resume()
    assert contest.there(local_drives.invoke, contest.agent_id, "two").output == "you said: two"
    assert contest.refused() == ["OwnershipLostError"], "it did not know; the store did"
    root = contest.here.store.load_root(contest.agent_id)
    assert root.epoch == epoch + 1, "and it has taken the agent anew for what was asked of it"
    said = [message.content for message in contest.agent.transcript_messages()]
    assert said == ["one", "you said: one", "two", "you said: two"]
