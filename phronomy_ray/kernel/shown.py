"""What a model is told of the results of one batch, and how each result is classed for code.

An agent's ``max_batch_result_chars`` is shared out fairly: results shorter than their share leave the rest to the longer
ones. A result over its share is cut again, from the whole one, with the marker that names what is left out and the hash of the
whole; the ledger keeps each result whole and untouched.
"""

from __future__ import annotations

from collections.abc import Sequence

from phronomy_ray.canonical_json import dumps_plain
from phronomy_ray.journal import ResultStatus, ToolCallRow, ToolCallStatus
from phronomy_ray.tool_results import cut_within, reference_of, result_text

#: Values of records with more characters of JSON are certainly moved to a content of their own by a store.
LARGE_CHARS = 65_536

_STATUS = {
    ToolCallStatus.SUCCEEDED: ResultStatus.OK,
    ToolCallStatus.FAILED: ResultStatus.ERROR,
    ToolCallStatus.TIMED_OUT: ResultStatus.TIMEOUT,
    ToolCallStatus.REJECTED: ResultStatus.DENIED,
    ToolCallStatus.CANCELLED: ResultStatus.CANCELLED,
    ToolCallStatus.NOT_PERFORMED: ResultStatus.CANCELLED,
}


def result_status(row: ToolCallRow, *, cut: bool = False) -> ResultStatus:
    """How the result of a call is classed; `cut`: whether the batch's limit has shortened it."""
    found = _STATUS.get(row.status, ResultStatus.UNKNOWN)
    if found is ResultStatus.OK and (cut or (row.attempts and row.attempts[-1].get("truncated"))):
        return ResultStatus.TRUNCATED
    return found


def fit_batch(rows: Sequence[ToolCallRow], texts: Sequence[str], limit: int | None) -> list[str]:
    """`texts` of the calls `rows`, so that all together have at most `limit` characters.

    The marker of a cut result is never left out, so many tiny shares can go beyond the limit by their markers.
    """
    if limit is None or sum(map(len, texts)) <= limit:
        return list(texts)
    shares = share_out([len(text) for text in texts], limit)
    return [
        text if len(text) <= share else _cut(row, text, share)
        for row, text, share in zip(rows, texts, shares, strict=True)
    ]


def share_out(sizes: Sequence[int], limit: int) -> list[int]:
    """Divide `limit` among those who want `sizes`: nobody gets more than it wants, and the rest goes to the others in equal
    parts; what cannot be divided goes to the first.
    """
    shares = [0] * len(sizes)
    left = limit
    waiting = sorted(range(len(sizes)), key=lambda index: sizes[index])
    while waiting:
        part = left // len(waiting)
        if sizes[waiting[0]] <= part:
            index = waiting.pop(0)
            shares[index] = sizes[index]
            left -= sizes[index]
            continue
        for number, index in enumerate(sorted(waiting)):
            shares[index] = part + (1 if number < left % len(waiting) else 0)
        break
    return shares


def _cut(row: ToolCallRow, text: str, share: int) -> str:
    if row.status is not ToolCallStatus.SUCCEEDED:
        return cut_within(text, share)
    return cut_within(result_text(row.result), share, digest=reference_of(row.result))


def content_of_cut(row: ToolCallRow) -> str | None:
    """The JSON of a result that was cut, to be kept under the hash that its marker names; ``None`` when the store keeps
    it there anyway, as it does with every large value of a record.
    """
    if row.status is not ToolCallStatus.SUCCEEDED:
        return None
    text = dumps_plain(row.result)
    return text if len(text) <= LARGE_CHARS else None
