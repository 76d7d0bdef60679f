"""Encryption of what users say: every content-bearing column goes through one `ContentCodec`.

Without a key a codec is the identity. With one (Fernet: AES-128-CBC and HMAC-SHA256) contents, inputs, outputs,
arguments, results, errors and event payloads are ciphertext in the database, and the id of a content is an HMAC of its
hash, so that the database does not tell who stored the same text. Ids, statuses, tool names, counters and times stay
readable: queries and operators need them. Reading ciphertext without its key, or plain text with a key, is refused.
"""

from __future__ import annotations

import base64
import hmac
import os
from typing import Protocol

from phronomy_ray.canonical_json import clean_text, content_hash
from phronomy_ray.errors import ConfigurationError, ContentIntegrityError, SerializationError

ENV_CONTENT_KEY = "PHRONOMY_CONTENT_KEY"

#: How every Fernet token begins; no JSON text begins like this.
_TOKEN_PREFIX = "gAAAA"
#: Marks ciphertext in ``contents.body``, which otherwise may be any text.
_BODY_MARK = "fernet:"


class _Cipher(Protocol):
    def encrypt(self, data: bytes) -> bytes: ...

    def decrypt(self, token: bytes) -> bytes: ...


class ContentCodec:
    """Turns content text into what is stored, and back.

    Args:
        key: a Fernet key (``cryptography.fernet.Fernet.generate_key()``), or ``None`` for plain text.
    """

    def __init__(self, key: str | bytes | None = None) -> None:
        self._cipher: _Cipher | None = None
        self._id_key = b""
        self._invalid_token: type[Exception] = ValueError
        if key:
            self._cipher, self._invalid_token = _make_cipher(key)
            raw = base64.urlsafe_b64decode(key)
            self._id_key = hmac.digest(raw, b"phronomy content id", "sha256")

    @property
    def encrypted(self) -> bool:
        """Whether this codec has a key."""
        return self._cipher is not None

    @property
    def fingerprint(self) -> str:
        """What the database remembers of the key: ``plain``, or a digest from which the key cannot be found."""
        if self._cipher is None:
            return "plain"
        return "fernet:" + hmac.digest(self._id_key, b"phronomy key fingerprint", "sha256").hex()[:32]

    def seal(self, text: str) -> str:
        """Column form of a canonical JSON text."""
        if self._cipher is None:
            return text
        return self._cipher.encrypt(text.encode("utf-8")).decode("ascii")

    def unseal(self, stored: str) -> str:
        """Inverse of `seal`.

        Raises:
            ContentIntegrityError: the key is missing, is not the one that wrote this, or the value is damaged.
        """
        if self._cipher is None:
            if stored.startswith(_TOKEN_PREFIX):
                raise _missing_key()
            return stored
        if not stored.startswith(_TOKEN_PREFIX):
            raise ContentIntegrityError(
                "a content key is given, but this stored value is plain text: it was written without a key"
            )
        return self._decrypt(stored)

    def content_id(self, hash_: str) -> str:
        """Primary key in ``contents`` of the text whose `content_hash` is `hash_`."""
        if self._cipher is None:
            return hash_
        return "hmac:" + hmac.digest(self._id_key, hash_.encode("utf-8"), "sha256").hex()

    def seal_body(self, text: str) -> str:
        """Stored form of a content's text."""
        if "\x00" in text:
            raise SerializationError("a stored text holds a NUL character, which no database text can hold")
        if self._cipher is None:
            return text
        return _BODY_MARK + self._cipher.encrypt(text.encode("utf-8")).decode("ascii")

    def unseal_body(self, content_id: str, body: str) -> str:
        """The text of a content, verified against the id that it is stored under.

        Raises:
            ContentIntegrityError: wrong or missing key, or the text is not what its id says.
        """
        if self._cipher is None:
            if content_id.startswith("hmac:"):
                raise _missing_key()
            text = body
        else:
            if not body.startswith(_BODY_MARK):
                raise ContentIntegrityError(
                    f"a content key is given, but content {content_id} is plain text: it was written without a key"
                )
            text = self._decrypt(body.removeprefix(_BODY_MARK))
        actual = self.content_id(content_hash(clean_text(text)))
        if not hmac.compare_digest(actual, content_id):
            raise ContentIntegrityError(
                f"stored content {content_id} does not match its hash: it was changed or damaged",
                details={"content_id": content_id},
            )
        return text

    def _decrypt(self, token: str) -> str:
        assert self._cipher is not None
        try:
            return self._cipher.decrypt(token.encode("ascii", "replace")).decode("utf-8")
        except self._invalid_token as error:
            raise ContentIntegrityError(
                "stored content cannot be decrypted: the content key is not the one that it was written with, "
                f"or the value is damaged (argument content_key or {ENV_CONTENT_KEY})"
            ) from error


def resolve_key(argument: str | bytes | None) -> str | bytes | None:
    """The key in force: the argument, else the environment's; an empty one is none."""
    return argument or os.environ.get(ENV_CONTENT_KEY) or None


def _missing_key() -> ContentIntegrityError:
    return ContentIntegrityError(
        f"stored content is encrypted and no content key is given (argument content_key or {ENV_CONTENT_KEY})"
    )


def _make_cipher(key: str | bytes) -> tuple[_Cipher, type[Exception]]:
    try:
        from cryptography.fernet import Fernet, InvalidToken
    except ImportError as error:
        raise ConfigurationError(
            "a content key is given but the package cryptography is missing: install phronomy-ray[encryption]"
        ) from error
    try:
        return Fernet(key), InvalidToken
    except ValueError as error:
        raise ConfigurationError(
            "the content key is not a Fernet key (32 bytes in URL-safe base64); "
            "make one with cryptography.fernet.Fernet.generate_key()"
        ) from error


__all__ = ["ENV_CONTENT_KEY", "ContentCodec", "resolve_key"]
