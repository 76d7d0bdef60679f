"""Values to columns and back: times, plain text, canonical JSON, and contents that are kept by hash.

A canonical JSON text of more than `INLINE_CHARS` characters is moved to ``contents`` under the hash of the text, once
for equal texts; the row keeps its id. Reading fetches all contents that a result needs with one query and gives whole
values back, so nobody outside this package can tell the two forms apart.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from phronomy_ray.canonical_json import clean_text, content_hash, dumps, loads
from phronomy_ray.errors import ContentIntegrityError, SerializationError
from phronomy_ray.store.content_codec import ContentCodec

#: Longest canonical JSON text that is kept in its own row.
INLINE_CHARS = 4096

#: The last moment and its text: nearly all rows of a commit carry the commit's own.
_last_time: tuple[datetime | None, str] = (None, "")


def encode_time(moment: datetime) -> str:
    """Fixed-width UTC ISO text, microseconds; its order is the order of time.

    Raises:
        SerializationError: `moment` has no time zone.
    """
    global _last_time
    known, text = _last_time
    if moment is known:
        return text
    if moment.tzinfo is None:
        raise SerializationError(f"{moment!r} has no time zone; stored times are aware")
    text = moment.astimezone(UTC).isoformat(timespec="microseconds")
    _last_time = moment, text
    return text


def encode_optional_time(moment: datetime | None) -> str | None:
    """`encode_time`, and ``None`` for ``None``."""
    return None if moment is None else encode_time(moment)


def decode_time(text: str) -> datetime:
    """Inverse of `encode_time`.

    Raises:
        SerializationError: the stored text is not such a time.
    """
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise SerializationError(f"the store holds {text!r} where a time belongs") from error
    if moment.tzinfo is None:
        raise SerializationError(f"the store holds {text!r}, a time without zone")
    return moment


def decode_optional_time(text: str | None) -> datetime | None:
    """Inverse of `encode_optional_time`."""
    return None if text is None else decode_time(text)


def plain_text(text: str) -> str:
    """`text` as a text column can hold it on both engines.

    Lone surrogates and NUL become U+FFFD: a model may put either into a tool name or a call id.
    """
    if text.isascii() and "\x00" not in text:
        return text
    return clean_text(text).replace("\x00", "�")


def optional_text(text: str | None) -> str | None:
    """`plain_text`, and ``None`` for ``None``."""
    return None if text is None else plain_text(text)


def plain_json(value: Any) -> str:
    """Canonical JSON for a column that is never encrypted."""
    return dumps(value)


class RowEncoder:
    """Encodes the rows of one transaction and collects the contents that they refer to."""

    __slots__ = ("_codec", "chars", "contents")

    def __init__(self, codec: ContentCodec) -> None:
        self._codec = codec
        #: Characters of what was encoded so far.
        self.chars = 0
        #: ``content_id -> body`` of everything that must be in ``contents`` before the transaction ends.
        self.contents: dict[str, str] = {}

    def sealed(self, value: Any) -> str | None:
        """Canonical JSON of a small content-bearing value; ``None`` stays ``None``."""
        if value is None:
            return None
        text = dumps(value)
        self.chars += len(text)
        return self._codec.seal(text)

    def content(self, value: Any) -> tuple[str | None, str | None]:
        """``(in line, reference)`` of a value that can be large."""
        if value is None:
            return None, None
        text = dumps(value)
        self.chars += len(text)
        if len(text) <= INLINE_CHARS:
            return self._codec.seal(text), None
        return None, self._keep(content_hash(text), text)

    def named_content(self, hash_: str, text: str) -> None:
        """Keep `text` under the hash that the caller computed.

        Raises:
            ContentIntegrityError: the hash is not that of the text.
        """
        try:
            actual = content_hash(text)
        except UnicodeEncodeError as error:
            raise SerializationError(
                "a content text holds lone surrogates; clean it before it is hashed"
            ) from error
        if hash_ != actual:
            raise ContentIntegrityError(f"content {hash_} was given with a text whose hash is {actual}")
        self._keep(hash_, text)

    def content_rows(self) -> list[dict[str, str]]:
        """Rows for ``contents`` in id order: two commits that share contents lock them in the same order."""
        return [{"content_id": key, "body": self.contents[key]} for key in sorted(self.contents)]

    def _keep(self, hash_: str, text: str) -> str:
        content_id = self._codec.content_id(hash_)
        if content_id not in self.contents:
            self.contents[content_id] = self._codec.seal_body(text)
        return content_id


class RowDecoder:
    """Decodes rows, given the bodies of the contents that they refer to."""

    __slots__ = ("_bodies", "_codec", "is_whole")

    def __init__(self, codec: ContentCodec, bodies: Mapping[str, str], *, is_whole: bool = True) -> None:
        self._codec = codec
        self._bodies = bodies
        #: Whether all contents that the rows refer to were found.
        self.is_whole = is_whole

    def sealed(self, stored: str | None) -> Any:
        """Inverse of `RowEncoder.sealed`."""
        return None if stored is None else loads(self._codec.unseal(stored))

    def content(self, inline: str | None, reference: str | None) -> Any:
        """Inverse of `RowEncoder.content`.

        Raises:
            ContentIntegrityError: the referenced content is missing, damaged, or under another key.
        """
        if reference is None:
            return None if inline is None else loads(self._codec.unseal(inline))
        body = self._bodies.get(reference)
        if body is None:
            raise ContentIntegrityError(
                f"content {reference} is referred to but not stored", details={"content_id": reference}
            )
        return loads(self._codec.unseal_body(reference, body))


__all__ = [
    "INLINE_CHARS",
    "RowDecoder",
    "RowEncoder",
    "decode_optional_time",
    "decode_time",
    "encode_optional_time",
    "encode_time",
    "optional_text",
    "plain_json",
    "plain_text",
]
