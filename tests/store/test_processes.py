"""Several processes on one store: opening races, write races, pickles, forks and threads."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import subprocess
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from typing import Any

import pytest

from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import Owner, owned


def _pool(workers: int) -> ProcessPoolExecutor:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["phronomy_ray.testing.store_samples", "phronomy_ray.store.sql_store", "phronomy_ray.store.migrate",
         "alembic.command", "alembic.ddl.sqlite"]
    )  # fmt: skip
    return ProcessPoolExecutor(workers, mp_context=context)


def _race_on_fresh_files(folder: Any, *, processes: int, files: int) -> None:
    with _pool(processes) as pool:
        pending = [
            pool.submit(samples.append_in_process, f"sqlite:///{folder}/store{file}.db", f"agent{process}", 1)
            for file in range(files)
            for process in range(processes)
        ]
        assert [future.result(timeout=120) for future in pending] == [1] * (processes * files)
    for file in range(files):
        store = open_store(f"sqlite:///{folder}/store{file}.db")
        assert len(store.list_agents()) == processes
        store.close()


def test_S01_processes_opening_fresh_files_at_once(tmp_path: Any) -> None:
    _race_on_fresh_files(tmp_path, processes=8, files=3)


@pytest.mark.full
def test_S01_full_size(tmp_path: Any) -> None:
    _race_on_fresh_files(tmp_path, processes=8, files=20)


def _read_then_write(url: str, *, processes: int, commits: int) -> None:
    with _pool(processes) as pool:
        pending = [
            pool.submit(samples.append_in_process, url, f"agent{number}", commits)
            for number in range(processes)
        ]
        assert [future.result(timeout=300) for future in pending] == [commits] * processes


def test_S02_read_then_write_from_many_processes(database: Any) -> None:
    _read_then_write(database.url, processes=5, commits=20)


@pytest.mark.full
def test_S02_full_size(database: Any) -> None:
    _read_then_write(database.url, processes=10, commits=1500)


def test_S11_a_used_store_travels_as_url_and_options(database: Any) -> None:
    store = database.open(application_name="traveller")
    owner = owned(store)
    owner.append("before")
    copies = [pickle.loads(pickle.dumps(store)) for _ in range(3)]
    for number, copy in enumerate(copies):
        second = Owner(copy, "alice")
        second.claim()
        second.append(f"copy {number}")
        copy.close()
    assert len(store.read_journal("alice")) == 4
    assert copies[0].identity == store.identity


def test_S11_pickle_holds_no_connection_and_no_environment_key(database: Any, monkeypatch: Any) -> None:
    key = "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY="
    monkeypatch.setenv("PHRONOMY_CONTENT_KEY", key)
    store = database.open()
    owned(store)
    assert key.encode() not in pickle.dumps(store)


def test_S11_fork_makes_connections_of_its_own(database: Any) -> None:
    store = database.open()
    owner = owned(store)
    owner.append("parent")
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # 3.12 warns of forks beside threads: that is the test
        child = os.fork()
    if child == 0:
        answer = b"failed"
        try:
            stranger = owned(store, "child")
            stranger.append("child")
            answer = str(len(store.read_journal("alice"))).encode()
            store.close()
        finally:
            os.write(write, answer)
            os._exit(0)
    os.waitpid(child, 0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        assert pipe.read() == b"1"
    owner.append("parent again")
    assert len(store.read_journal("alice")) == 2
    assert store.load_root("child").journal_position == 1


def test_S11_one_store_from_many_threads(database: Any) -> None:
    store = database.open()

    def work(number: int) -> int:
        owner = owned(store, f"agent{number}")
        for step in range(5):
            owner.append(step)
        return len(store.read_journal(f"agent{number}"))

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [5] * 8


def test_opening_a_store_imports_nothing_heavy(sqlite_database: Any) -> None:
    script = (
        "import sys\n"
        "from phronomy_ray.store.sql_store import open_store\n"
        f"store = open_store({sqlite_database.url!r}, create=True)\n"
        "store.list_agents()\n"
        "print([name for name in ('alembic', 'ray', 'litellm', 'psycopg', 'cryptography') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
