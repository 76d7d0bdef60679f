"""A random folder for ``demo --random``: names and contents that break careless counting. The same seed, the same tree."""

from __future__ import annotations

import random
from pathlib import Path

_WORDS = ("ray", "agent", "naïve", "日本語", "x" * 300, "don't", "--", "|", "\\n", "0")
_SPACES = (" ", "  ", "\n", "\r\n", "\t", "\x0b", "\x0c", "\u00a0")
_FOLDERS = ("src", "with space", "ünïcode", "-dash", "pipe|name", "a.b", "total", "(top)", "deep")
_MAX_FILE_BYTES = 60_000


def make_tree(folder: Path, seed: int) -> int:
    """Fill an empty folder; returns the number of files that a survey must find."""
    rng = random.Random(seed)
    folder.mkdir(parents=True, exist_ok=True)
    places = [folder]
    for _ in range(rng.randint(5, 14)):
        place = rng.choice(places) / rng.choice(_FOLDERS)
        place.mkdir(exist_ok=True)
        places.append(place)
    written = 0
    for number in range(rng.randint(30, 70)):
        path = rng.choice(places) / f"{rng.choice(('file', 'ein Name', 'größe', '#', 'a|b'))} {number}.txt"
        path.write_bytes(_content(rng))
        written += 1
    _add_what_does_not_count(rng, folder, places)
    return written


def _content(rng: random.Random) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return b""
    if kind < 0.25:
        return rng.randbytes(rng.randint(1, _MAX_FILE_BYTES))
    text = "".join(rng.choice(_WORDS) + rng.choice(_SPACES) for _ in range(rng.randint(1, 3_000)))
    return text.encode()[:_MAX_FILE_BYTES]


def _add_what_does_not_count(rng: random.Random, folder: Path, places: list[Path]) -> None:
    (rng.choice(places) / ".hidden").write_bytes(b"not counted\n")
    cache = rng.choice(places) / "__pycache__"
    cache.mkdir(exist_ok=True)
    (cache / "module.pyc").write_bytes(b"not counted\n")
    (rng.choice(places) / "loop").symlink_to(folder, target_is_directory=True)
    (rng.choice(places) / "nowhere").symlink_to(folder / "missing")


__all__ = ["make_tree"]
