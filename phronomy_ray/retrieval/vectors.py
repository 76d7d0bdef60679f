"""Vectors as the stores keep them: float32, scaled to length 1, so that the dot product is the cosine of the angle.

A vector of zeros has no direction: it is kept as it is and is at 0 to everything.
"""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Iterable, Sequence
from operator import mul

from phronomy_ray.errors import DimensionMismatchError, InvalidInputError

#: Most numbers of one vector; what pgvector's type can hold.
MAX_DIMENSIONS = 16_000


def unit(values: Sequence[float]) -> array[float]:
    """`values` scaled to length 1, as float32.

    Raises:
        InvalidInputError: empty, longer than `MAX_DIMENSIONS`, or with something that is no finite number.
    """
    try:
        numbers = [float(value) for value in values]
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidInputError("an embedding must be a sequence of numbers") from error
    if not 0 < len(numbers) <= MAX_DIMENSIONS:
        raise InvalidInputError(
            f"an embedding has 1 to {MAX_DIMENSIONS} numbers, this one has {len(numbers)}"
        )
    if not all(map(math.isfinite, numbers)):
        raise InvalidInputError("an embedding holds finite numbers only")
    largest = max(map(abs, numbers))
    if largest == 0.0:
        return array("f", numbers)
    # scaled by the largest first: the squares of very large or very small numbers leave the range of a float
    scaled = [number / largest for number in numbers]
    length = math.sqrt(sum(map(mul, scaled, scaled)))
    return array("f", (number / length for number in scaled))


def similarity(one: array[float], other: array[float]) -> float:
    """Cosine of the angle between two `unit` vectors of equal length, from -1 to 1."""
    product: float = sum(map(mul, one, other))
    return max(-1.0, min(1.0, product)) + 0.0  # never -0.0


def to_bytes(vector: array[float]) -> bytes:
    """A vector as little-endian float32."""
    if sys.byteorder == "little":
        return vector.tobytes()
    swapped = array("f", vector)
    swapped.byteswap()
    return swapped.tobytes()


def from_bytes(data: bytes) -> array[float]:
    """Inverse of `to_bytes`."""
    vector = array("f")
    vector.frombytes(data)
    if sys.byteorder != "little":
        vector.byteswap()
    return vector


def check_dimensions(expected: int, vectors: Iterable[array[float]], *, where: str) -> None:
    """Refuse a vector of another length than `expected`.

    Raises:
        DimensionMismatchError: with both lengths in its details.
    """
    for vector in vectors:
        if len(vector) != expected:
            raise DimensionMismatchError(
                f"{where} holds vectors of {expected} numbers, this one has {len(vector)}: was it made by another "
                "embedding model?",
                details={"expected": expected, "found": len(vector)},
            )
