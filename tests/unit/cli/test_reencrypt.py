"""``phronomy db reencrypt``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from phronomy_ray.cli.app import app
from phronomy_ray.store.content_keys import generate_content_key
from phronomy_ray.store.reencryption import Reencryption
from phronomy_ray.store.sql_store import open_store
from phronomy_ray.testing.store_samples import owned

OLD, NEW = generate_content_key("2026"), generate_content_key("2027")


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/agents.db"
    store = open_store(url, content_key=OLD, create=True)
    owned(store, "alice", "a secret")
    store.close()
    return url


def run(url: str, *words: str, key: str) -> Result:
    return CliRunner().invoke(
        app, ["db", "reencrypt", "--store", url, *words], env={"PHRONOMY_CONTENT_KEY": key}
    )


def test_the_new_key_is_enough_afterwards(url: str) -> None:
    done = run(url, key=f"{NEW},{OLD}")
    assert done.exit_code == 0, done.output
    assert "2 rows written anew under the key '2027'" in done.stdout
    store = open_store(url, content_key=NEW)
    assert store.read_journal("alice")[0].content == "a secret"
    store.close()


def test_the_document_says_what_was_done(url: str) -> None:
    done = run(url, "--json", "--batch", "1", key=f"{NEW},{OLD}")
    assert json.loads(done.stdout) == {
        "store": url,
        "key": "2027",
        "rows": {"agents": 1, "journal": 1},
        "left": 0,
    }
    assert json.loads(run(url, "--json", key=NEW).stdout)["rows"] == {}


def test_what_is_left_is_a_failure(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reencryption, "_rewrite", lambda self, sealed, rows: 0)
    monkeypatch.setattr("phronomy_ray.store.reencryption._PAUSE_S", 0.0)
    done = run(url, key=f"{NEW},{OLD}")
    assert done.exit_code == 1
    assert "2 rows are under another key" in done.stdout


@pytest.mark.parametrize(
    ("key", "words"), [(NEW, "another key"), ("", "no content key is given"), ("nonsense", "not 32 bytes")]
)
def test_a_wrong_ring_is_one_line(url: str, key: str, words: str) -> None:
    done = run(url, key=key)
    assert done.exit_code == (1 if key == NEW else 2)
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_store_in_plain_text_has_nothing_to_write_anew(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path}/plain.db", create=True)
    owned(store)
    store.close()
    assert "no content key is given" in run(f"sqlite:///{tmp_path}/plain.db", key="").stderr
