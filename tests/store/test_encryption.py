"""Content encryption: nothing readable in the database, and clear words when the key is wrong."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from phronomy_ray.canonical_json import content_hash
from phronomy_ray.errors import ConfigurationError, ContentIntegrityError, NotFoundError
from phronomy_ray.store.content_codec import ContentCodec
from phronomy_ray.store.content_keys import generate_content_key, parse_content_keys
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import Owner, owned

# The same in every process of a test run, since tests are named after them.
KEY = base64.urlsafe_b64encode(bytes(range(32))).decode()
OTHER_KEY = base64.urlsafe_b64encode(bytes(range(32, 64))).decode()
CANARY = "CANARY-7f3a"


@pytest.mark.parametrize("key", [KEY, None])
def test_canary_is_nowhere_in_the_database(database: Any, key: str | None) -> None:
    store = database.open(content_key=key)
    store.create_agent(samples.new_agent("alice", CANARY, metadata={"who": CANARY}))
    owner = Owner(store, "alice")
    owner.claim()
    samples.write_everything(owner, CANARY)
    stored = database.dump()
    hashes = [content_hash(CANARY), content_hash(CANARY * 1000)]
    found = [needle for needle in (CANARY, *hashes) if needle.removeprefix("sha256:") in stored]
    assert found == ([] if key else [CANARY, *hashes])
    reader = database.open(content_key=key)
    assert reader.load_root("alice").metadata == {"who": CANARY}
    assert [call.result for call in reader.tool_calls("e2")] == [{"r": CANARY * 1000}]
    assert reader.load_execution("e1").input_hash == content_hash(CANARY)
    assert reader.load_execution("e2").output == CANARY * 1000
    assert reader.read_content(content_hash(CANARY)) == CANARY
    assert reader.approvals(execution_id="e1")[0].reason == CANARY
    assert reader.read_journal("alice")[0].content == CANARY


@pytest.mark.parametrize(
    ("reading", "words"), [(OTHER_KEY, "another key"), (None, "give the key")], ids=["another", "none"]
)
def test_wrong_or_missing_key_is_refused_at_once(database: Any, reading: str | None, words: str) -> None:
    owner = owned(database.open(content_key=KEY), "alice", "secret")
    stranger = database.open(content_key=reading)
    for call in (
        lambda: stranger.read_journal("alice"),
        lambda: stranger.claim("alice", owner={}, now=samples.START),
        lambda: stranger.create_agent(samples.new_agent("bob")),
    ):
        with pytest.raises(ContentIntegrityError, match=words):
            call()
    assert owner.claim().root.epoch == 2, "the refused claim took nothing"


def test_a_key_is_rotated_without_a_stop(database: Any) -> None:
    """The new key writes, the old one still reads; a process that was not told of the new one cannot misread."""
    old, new = f"2026:{KEY}", f"2027:{OTHER_KEY}"
    text = "x" * 5000
    owner = owned(database.open(content_key=old), "alice", text)
    owner.append("first", contents=((content_hash("named"), "named"),))
    both = database.open(content_key=f"{new},{old}")
    assert [record.content for record in both.read_journal("alice")][:2] == [text, "first"]
    assert both.read_content(content_hash("named")) == "named"
    owned(both, "bob", text).append("second", contents=((content_hash("late"), "late"),))
    assert both.read_content(content_hash("late")) == "late"
    assert [record.content for record in both.read_journal("bob")] == [text, "second"]
    with pytest.raises(ContentIntegrityError, match="'2027', which is not among"):
        database.open(content_key=old).read_journal("bob")
    with pytest.raises(ContentIntegrityError, match="another key"):
        database.open(content_key=new).read_journal("bob")


def test_key_for_a_plain_store_is_refused(database: Any) -> None:
    owned(database.open())
    with pytest.raises(ContentIntegrityError, match="plain text"):
        database.open(content_key=KEY).load_root("alice")


def test_key_from_the_environment(database: Any, monkeypatch: Any) -> None:
    monkeypatch.setenv("PHRONOMY_CONTENT_KEY", KEY)
    owned(database.open(), "alice", "secret")
    monkeypatch.delenv("PHRONOMY_CONTENT_KEY")
    assert database.open(content_key=KEY).read_journal("alice")[0].content == "secret"


def test_changed_content_is_noticed(database: Any) -> None:
    owner = owned(database.open())
    owner.append("z" * 5000, contents=((content_hash("text"), "text"),))
    database.sql("UPDATE contents SET body = 'other'")
    with pytest.raises(ContentIntegrityError, match="does not match its hash"):
        owner.store.read_content(content_hash("text"))
    with pytest.raises(ContentIntegrityError, match="does not match its hash"):
        owner.store.read_journal("alice")
    database.sql("DELETE FROM contents")
    with pytest.raises(ContentIntegrityError, match="not stored"):
        owner.store.read_journal("alice")
    with pytest.raises(NotFoundError):
        owner.store.read_content(content_hash("text"))


def test_content_with_a_wrong_hash_is_refused(database: Any) -> None:
    owner = owned(database.open())
    with pytest.raises(ContentIntegrityError):
        owner.append(contents=((content_hash("a"), "b"),))


class TestContentCodec:
    """Value by value, without a database."""

    def test_round_trip_and_wrong_keys(self) -> None:
        codec, other, plain = ContentCodec(KEY), ContentCodec(OTHER_KEY), ContentCodec()
        sealed = codec.seal('"text"')
        assert codec.unseal(sealed) == '"text"'
        with pytest.raises(ContentIntegrityError, match="not among the given"):
            other.unseal(sealed)
        with pytest.raises(ContentIntegrityError, match="not the one"):
            ContentCodec(f"{parse_content_keys(KEY)[0].key_id}:{OTHER_KEY}").unseal(sealed)
        with pytest.raises(ContentIntegrityError, match="no content key"):
            plain.unseal(sealed)
        with pytest.raises(ContentIntegrityError, match="plain text"):
            codec.unseal('"text"')
        with pytest.raises(ContentIntegrityError):
            codec.unseal(sealed[:-8] + "AAAAAAA=")

    def test_content_ids_are_keyed(self) -> None:
        codec, other, plain = ContentCodec(KEY), ContentCodec(OTHER_KEY), ContentCodec()
        hash_ = content_hash("text")
        assert plain.content_id(hash_) == hash_
        assert len({codec.content_id(hash_), other.content_id(hash_), hash_}) == 3
        body = codec.seal_body("text")
        assert codec.unseal_body(codec.content_id(hash_), body) == "text"
        with pytest.raises(ContentIntegrityError, match="hash"):
            codec.unseal_body(codec.content_id(content_hash("other")), body)
        with pytest.raises(ContentIntegrityError, match="no content key"):
            plain.unseal_body(codec.content_id(hash_), body)

    def test_fingerprint_tells_keys_apart_and_keeps_them_secret(self) -> None:
        prints = {ContentCodec(key).fingerprints for key in (KEY, OTHER_KEY, None, KEY.encode(), f"a:{KEY}")}
        assert len(prints) == 3
        assert all(KEY[:10] not in text for found in prints for text in found)

    @pytest.mark.parametrize(
        ("ring", "words"),
        [
            ("too short", "content key 1 is not 32 bytes"),
            (f"{KEY},short", "content key 2 is not 32 bytes"),
            (f"new:{KEY},new:{OTHER_KEY}", "two content keys have the id 'new'"),
            (f"{KEY},{KEY}", "two content keys"),
            (f"bad id:{KEY}", "'bad id' is not allowed"),
            (f"{KEY},", "content key 2 is not 32 bytes"),
        ],
        ids=["short", "second-short", "id-twice", "key-twice", "bad-id", "empty-second"],
    )
    def test_a_bad_ring_is_a_configuration_error_that_quotes_no_key(self, ring: str, words: str) -> None:
        with pytest.raises(ConfigurationError, match=words) as caught:
            ContentCodec(ring)
        assert KEY[:10] not in str(caught.value)

    def test_a_generated_key_is_a_ring_of_its_own(self) -> None:
        key, other = generate_content_key("2026"), generate_content_key()
        assert [item.key_id for item in parse_content_keys(key)] == ["2026"]
        codec = ContentCodec(key)
        assert codec.unseal(codec.seal('"x"')) == '"x"'
        assert len({key, other, generate_content_key()}) == 3
        with pytest.raises(ConfigurationError, match="not allowed"):
            generate_content_key("a:b")

    def test_the_same_text_is_sealed_differently_each_time(self) -> None:
        codec = ContentCodec(KEY)
        assert len({codec.seal('"text"') for _ in range(100)}) == 100

    def test_a_sealed_value_cannot_be_moved_under_another_key_id(self) -> None:
        """The id is authenticated: the same secret under another name does not open it."""
        sealed = ContentCodec(f"a:{KEY}").seal('"text"')
        with pytest.raises(ContentIntegrityError):
            ContentCodec(f"b:{KEY}").unseal(sealed.replace("pc1.a.", "pc1.b."))
