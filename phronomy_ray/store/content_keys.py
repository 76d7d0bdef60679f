"""Content keys: one that writes, and older ones that still read.

A key ring is text, so that it fits an environment variable: keys separated by commas, the one that writes first. A key is 32
random bytes in URL-safe base64, with an id of its own in front (``2027:...``) or without one, and then its id is taken from
the key itself. To rotate, put a new key in front and keep the old ones behind it for as long as anything is stored that
they have written: ``PHRONOMY_CONTENT_KEY=2027:<new>,2026:<old>``.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import re
import secrets
from dataclasses import dataclass, field

from phronomy_ray.errors import ConfigurationError

_KEY_BYTES = 32
_ID = re.compile(r"[A-Za-z0-9_-]{1,32}")


@dataclass(frozen=True, slots=True)
class ContentKey:
    """One key."""

    #: Stands in front of everything that the key has sealed.
    key_id: str
    #: 32 bytes.
    secret: bytes = field(repr=False)

    def derive(self, purpose: bytes) -> bytes:
        """Another secret, for another purpose."""
        return hmac.digest(self.secret, b"phronomy " + purpose, "sha256")

    @property
    def fingerprint(self) -> str:
        """What a database remembers of it, from which it cannot be found."""
        return "aes-gcm:" + self.derive(b"key fingerprint").hex()[:32]


def generate_content_key(key_id: str = "") -> str:
    """A new key as text. Raises `ConfigurationError` for an id that cannot be used."""
    text = base64.urlsafe_b64encode(secrets.token_bytes(_KEY_BYTES)).decode("ascii")
    return f"{key_id}:{text}" if _checked_id(key_id) else text


def parse_content_keys(text: str | bytes | None) -> tuple[ContentKey, ...]:
    """The keys of a ring, the writing one first; none for no text.

    Raises:
        ConfigurationError: a key is not 32 bytes in URL-safe base64, or an id is not usable or stands twice; the message
            does not quote a key.
    """
    if not text:
        return ()
    ring = text.decode("ascii", "replace") if isinstance(text, bytes) else text
    keys = tuple(_parse(number, item.strip()) for number, item in enumerate(ring.split(","), start=1))
    ids = [key.key_id for key in keys]
    twice = next((key_id for key_id in ids if ids.count(key_id) > 1), None)
    if twice is not None:
        raise ConfigurationError(f"two content keys have the id {twice!r}")
    return keys


def _parse(number: int, item: str) -> ContentKey:
    key_id, _, encoded = item.rpartition(":")
    _checked_id(key_id)
    try:
        secret = base64.b64decode(encoded.encode("ascii"), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        secret = b""
    if len(secret) != _KEY_BYTES:
        raise ConfigurationError(
            f"content key {key_id or number} is not 32 bytes in URL-safe base64; make one with "
            "phronomy_ray.store.content_keys.generate_content_key()"
        )
    return ContentKey(key_id or hmac.digest(secret, b"phronomy key id", "sha256").hex()[:8], secret)


def _checked_id(key_id: str) -> str:
    if key_id and not _ID.fullmatch(key_id):
        raise ConfigurationError(
            f"the content key id {key_id!r} is not allowed: 1 to 32 letters, digits, '_' or '-'"
        )
    return key_id


__all__ = ["ContentKey", "generate_content_key", "parse_content_keys"]
