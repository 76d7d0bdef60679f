"""Encryption of what users say: every content-bearing column goes through one `ContentCodec`.

Without a key a codec is the identity. With one (AES-256 in GCM) contents, inputs, outputs, arguments, results, errors and event
payloads are ciphertext in the database, each with the id of its key in front, and the id of a content is an HMAC of its
hash, so that the database does not tell who stored the same text. Ids, statuses, tool names, counters and times stay
readable: queries and operators need them. Reading ciphertext without its key, or plain text with a key, is refused.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import os
from typing import Protocol

from phronomy_ray.canonical_json import clean_text, content_hash
from phronomy_ray.errors import ConfigurationError, ContentIntegrityError, SerializationError
from phronomy_ray.store.content_keys import ContentKey, parse_content_keys

ENV_CONTENT_KEY = "PHRONOMY_CONTENT_KEY"

#: Marks ciphertext: ``pc1.<key id>.<nonce and ciphertext>``. No JSON text begins like this; ``contents.body`` may hold any
#: text, but is ciphertext whenever there is a key.
_MARK = "pc1."
_KEYED_ID = "hmac:"
_NONCE_BYTES = 12


class _Cipher(Protocol):
    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes: ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes: ...


class ContentCodec:
    """Turns content text into what is stored, and back.

    Args:
        key: a key ring (`store.content_keys`), or ``None`` for plain text.
    """

    def __init__(self, key: str | bytes | None = None) -> None:
        self._keys = parse_content_keys(key)
        self._ciphers: dict[str, _Cipher] = {}
        self._invalid: type[Exception] = ValueError
        if self._keys:
            self._ciphers, self._invalid = _make_ciphers(self._keys)
        self._id_keys = {item.key_id: item.derive(b"content id") for item in self._keys}

    @property
    def encrypted(self) -> bool:
        """Whether this codec has a key."""
        return bool(self._keys)

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """What a database can know of the keys, the writing one first: ``plain`` for none."""
        return tuple(key.fingerprint for key in self._keys) or ("plain",)

    @property
    def key_id(self) -> str:
        """Id of the writing key; empty for none."""
        return self._keys[0].key_id if self._keys else ""

    @property
    def value_prefix(self) -> str:
        """How everything begins that the writing key has sealed."""
        return f"{_MARK}{self.key_id}."

    @property
    def id_prefix(self) -> str:
        """How the id of every content begins that is kept under the writing key."""
        return f"{_KEYED_ID}{self.key_id}:"

    def seal(self, text: str) -> str:
        """Column form of a canonical JSON text."""
        if not self._keys:
            return text
        key_id = self._keys[0].key_id
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._ciphers[key_id].encrypt(nonce, text.encode("utf-8"), key_id.encode("ascii"))
        return f"{_MARK}{key_id}.{base64.urlsafe_b64encode(sealed).decode('ascii')}"

    def unseal(self, stored: str) -> str:
        """Inverse of `seal`.

        Raises:
            ContentIntegrityError: the key is missing, is not the one that wrote this, or the value is damaged.
        """
        if not self._keys:
            if stored.startswith(_MARK):
                raise _missing_key()
            return stored
        if not stored.startswith(_MARK):
            raise ContentIntegrityError(
                "a content key is given, but this stored value is plain text: it was written without a key"
            )
        return self._decrypt(stored)

    def content_id(self, hash_: str) -> str:
        """Primary key in ``contents`` under which the text whose `content_hash` is `hash_` is written."""
        return self.content_ids(hash_)[0]

    def content_ids(self, hash_: str) -> tuple[str, ...]:
        """Every primary key under which that text may be stored: one for each key, the writing one's first."""
        if not self._keys:
            return (hash_,)
        return tuple(self._keyed_id(key.key_id, hash_) for key in self._keys)

    def seal_body(self, text: str) -> str:
        """Stored form of a content's text."""
        if "\x00" in text:
            raise SerializationError("a stored text holds a NUL character, which no database text can hold")
        return self.seal(text)

    def unseal_body(self, content_id: str, body: str) -> str:
        """The text of a content, verified against the id that it is stored under.

        Raises:
            ContentIntegrityError: wrong or missing key, or the text is not what its id says.
        """
        keyed = content_id.startswith(_KEYED_ID)
        if not self._keys:
            if keyed:
                raise _missing_key()
            text = body
        else:
            if not body.startswith(_MARK):
                raise ContentIntegrityError(
                    f"a content key is given, but content {content_id} is plain text: it was written without a key"
                )
            text = self._decrypt(body)
        hash_ = content_hash(clean_text(text))
        if keyed:
            key_id = content_id.removeprefix(_KEYED_ID).partition(":")[0]
            if key_id not in self._id_keys:
                raise self._unknown_key(key_id)
            hash_ = self._keyed_id(key_id, hash_)
        if not hmac.compare_digest(hash_, content_id):
            raise ContentIntegrityError(
                f"stored content {content_id} does not match its hash: it was changed or damaged",
                details={"content_id": content_id},
            )
        return text

    def rekey(self, content_id: str, body: str) -> tuple[str, str]:
        """Id and stored form of the same content under the writing key. Raises as `unseal_body`."""
        text = self.unseal_body(content_id, body)
        return self.content_id(content_hash(clean_text(text))), self.seal_body(text)

    def _keyed_id(self, key_id: str, hash_: str) -> str:
        digest = hmac.digest(self._id_keys[key_id], hash_.encode("utf-8"), "sha256")
        return f"{_KEYED_ID}{key_id}:{digest.hex()}"

    def _decrypt(self, stored: str) -> str:
        key_id, _, encoded = stored.removeprefix(_MARK).partition(".")
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise self._unknown_key(key_id)
        try:
            sealed = base64.urlsafe_b64decode(encoded.encode("ascii", "replace"))
            nonce, data = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
            return cipher.decrypt(nonce, data, key_id.encode("ascii")).decode("utf-8")
        except (self._invalid, ValueError, binascii.Error) as error:
            raise ContentIntegrityError(
                "stored content cannot be decrypted: the content key is not the one that it was written with, "
                f"or the value is damaged (argument content_key or {ENV_CONTENT_KEY})"
            ) from error

    def _unknown_key(self, key_id: str) -> ContentIntegrityError:
        given = ", ".join(repr(key.key_id) for key in self._keys)
        return ContentIntegrityError(
            f"stored content was written with the content key {key_id!r}, which is not among the given ones ({given}): "
            f"add it behind them in content_key or {ENV_CONTENT_KEY}",
            details={"key_id": key_id},
        )


def resolve_key(argument: str | bytes | None) -> str | bytes | None:
    """The key ring in force: the argument, else the environment's; an empty one is none."""
    return argument or os.environ.get(ENV_CONTENT_KEY) or None


def _missing_key() -> ContentIntegrityError:
    return ContentIntegrityError(
        f"stored content is encrypted and no content key is given (argument content_key or {ENV_CONTENT_KEY})"
    )


def _make_ciphers(keys: tuple[ContentKey, ...]) -> tuple[dict[str, _Cipher], type[Exception]]:
    try:
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    except ImportError as error:
        raise ConfigurationError(
            "a content key is given but the package cryptography is missing: install phronomy-ray[encryption]"
        ) from error
    return {key.key_id: AESGCM(key.secret) for key in keys}, InvalidTag


__all__ = ["ENV_CONTENT_KEY", "ContentCodec", "resolve_key"]
