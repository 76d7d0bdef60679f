"""Rendezvous hashing: which of several names an id belongs to, so that a lost name moves only its own ids."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def ranked(key: str, names: Iterable[str]) -> list[str]:
    """`names`, the one that `key` belongs to first, then the one that it would belong to without that, and so on."""
    return sorted(names, key=lambda name: (_weight(key, name), name), reverse=True)


def _weight(key: str, name: str) -> bytes:
    material = f"{len(name)}:{name}:{key}".encode("utf-8", "surrogatepass")
    return hashlib.blake2b(material, digest_size=8).digest()
