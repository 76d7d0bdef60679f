"""Sharing out a batch's room, cutting, and the status of a result for code."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_ray.canonical_json import content_hash
from phronomy_ray.journal import ToolCallRow, ToolCallStatus
from phronomy_ray.kernel.shown import fit_batch, result_status, share_out
from phronomy_ray.tool_results import cut_within

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def row(status: ToolCallStatus = ToolCallStatus.SUCCEEDED, result: Any = None, **changes: Any) -> ToolCallRow:
    return ToolCallRow(
        "t", "e", "a", "m", 0, "c", "look", {}, status, "safe", False, "", NOW, result=result, **changes
    )


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=20), st.integers(0, 5000))
def test_shares_are_fair_and_use_what_there_is(sizes: list[int], limit: int) -> None:
    shares = share_out(sizes, limit)
    assert all(share <= size for share, size in zip(shares, sizes, strict=True))
    assert sum(shares) == min(limit, sum(sizes))
    cut = [share for share, size in zip(shares, sizes, strict=True) if share < size]
    if cut:
        assert max(cut) - min(cut) <= 1, "whoever is cut gets the same"
        assert max(shares) <= max(cut) + 1 or min(cut) >= max(shares) - 1


def test_a_cut_result_names_what_is_missing_and_the_whole_fits_the_limit() -> None:
    texts = ["short", "y" * 5_000, "z" * 9_000]
    rows = [row(result=text) for text in texts]
    shown = fit_batch(rows, texts, 2_000)
    assert shown[0] == "short"
    assert sum(map(len, shown)) <= 2_000
    assert content_hash('"' + "z" * 9_000 + '"') in shown[2], "as the store keeps it: of its JSON"
    assert "of 9000 characters left out" in shown[2]
    assert abs(len(shown[1]) - len(shown[2])) <= 2


def test_a_result_that_its_tool_has_cut_is_cut_again_from_the_whole() -> None:
    whole = {"k": "v" * 10_000}
    shown = fit_batch([row(result=whole)], ["v" * 3_000], 1_000)
    assert "of 10008 characters left out" in shown[0]


def test_without_a_limit_and_below_it_nothing_changes() -> None:
    texts = ["a", "b" * 100]
    assert fit_batch([row(), row()], texts, None) == texts
    assert fit_batch([row(), row()], texts, 101) == texts


@given(st.text(alphabet="ab", min_size=0, max_size=900), st.integers(1, 1000))
def test_a_text_cut_within_a_limit_keeps_it_where_the_marker_has_room(text: str, limit: int) -> None:
    shown = cut_within(text, limit)
    if len(text) <= limit:
        assert shown == text
    elif limit >= 160:
        assert len(shown) <= limit
        assert content_hash(text) in shown


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (ToolCallStatus.SUCCEEDED, "ok"),
        (ToolCallStatus.FAILED, "error"),
        (ToolCallStatus.TIMED_OUT, "timeout"),
        (ToolCallStatus.REJECTED, "denied"),
        (ToolCallStatus.CANCELLED, "cancelled"),
        (ToolCallStatus.NOT_PERFORMED, "cancelled"),
        (ToolCallStatus.UNKNOWN, "unknown"),
    ],
)
def test_every_outcome_has_a_status_for_code(status: ToolCallStatus, expected: str) -> None:
    assert result_status(row(status)) == expected
    assert result_status(row(status), cut=True) == ("truncated" if expected == "ok" else expected)


def test_a_result_cut_by_its_tool_is_truncated() -> None:
    assert result_status(row(attempts=[{"number": 1, "truncated": True}])) == "truncated"
