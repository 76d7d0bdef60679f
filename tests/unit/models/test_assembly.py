"""Assembly of streamed tool calls: every way of cutting that was ever reported, and random ones."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phronomy_ray.messages import ToolCallRequest
from phronomy_ray.models.assembly import (
    BROKEN_PREFIX,
    ToolCallAssembler,
    is_json_object,
    with_unique_ids,
)
from phronomy_ray.models.script import fragment


def assemble(
    *chunks: dict[str, Any] | list[dict[str, Any]], truncated: bool = False
) -> list[tuple[str, str, str]]:
    assembler = ToolCallAssembler()
    for chunk in chunks:
        assembler.add(chunk if isinstance(chunk, list) else [chunk])
    return [(c.id, c.name, c.arguments) for c in assembler.finish(seed="ex:m1", truncated=truncated)]


def f(index: int | None, call_id: str | None, part: str | None, name: str | None = None) -> dict[str, Any]:
    return fragment(index, call_id, part, name=name)


TWO = [("a", "t", '{"x":1}'), ("b", "u", '{"y":2}')]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            [f(0, "a", '{"x":', "t"), f(1, "b", '{"y":', "u"), f(0, None, "1}"), f(1, None, "2}")],
            id="interleaved by index",
        ),
        pytest.param(
            [f(0, "a", '{"x":', "t"), f(0, None, "1}"), f(0, "b", '{"y":', "u"), f(0, None, "2}")],
            id="all index 0, one after the other",
        ),
        pytest.param(
            [f(0, "a", '{"x":', "t"), f(0, "b", '{"y":', "u"), f(0, "a", "1}"), f(0, "b", "2}")],
            id="all index 0, interleaved, ids on all",
        ),
        pytest.param([f(0, "a", '{"x":1}', "t"), f(0, "b", '{"y":2}', "u")], id="two ids both index 0"),
        pytest.param([[f(0, "a", '{"x":1}', "t"), f(0, "b", '{"y":2}', "u")]], id="the same in one chunk"),
        pytest.param(
            [
                f(None, "a", '{"x":', "t"),
                f(None, None, "1}"),
                f(None, "b", '{"y":', "u"),
                f(None, None, "2}"),
            ],
            id="index missing, one after the other",
        ),
        pytest.param(
            [f(None, "a", '{"x":', "t"), f(None, "b", '{"y":', "u"), f(None, "a", "1}"), f(None, "b", "2}")],
            id="index missing, interleaved, ids on all",
        ),
        pytest.param(
            [f(0, "a", '{"x":'), f(1, "b", '{"y":'), f(0, None, "1}", "t"), f(1, None, "2}", "u")],
            id="name in a later part",
        ),
        pytest.param(
            [f(0, None, '{"x":', "t"), f(1, None, '{"y":', "u"), f(0, "a", "1}"), f(1, "b", "2}")],
            id="id late",
        ),
        pytest.param(
            [f(0, None, '{"x":1}', "t"), f(1, None, '{"y":2}', "u"), f(0, "a", None), f(1, "b", "")],
            id="id after all arguments",
        ),
        pytest.param(
            [f(0, "a", '{"x":1}', "t"), f(1, "b", '{"y":2}', "u")], id="single parts with full JSON"
        ),
        pytest.param(
            [f(0, "a", "", "t"), f(0, None, '{"x":1}'), f(1, "b", "", "u"), f(1, None, '{"y":2}')],
            id="empty first part",
        ),
        pytest.param(
            [f(0, "a", '{"x":', "t"), f(0, "a", "1}", "t"), f(1, "b", '{"y":', "u"), f(1, "b", "2}", "u")],
            id="id and name in every part",
        ),
        pytest.param(
            [
                f(0, "a", '{"x', "t"),
                [f(0, "a", '{"x":1}', "t"), f(1, "b", '{"y":', "u")],
                [f(0, "a", '{"x":1}', "t"), f(1, "b", '{"y":2}', "u")],
            ],
            id="list and arguments sent again, growing",
        ),
        pytest.param(
            [
                f(0, "a", '{"x":1}', "t"),
                f(1, "b", '{"y":2}', "u"),
                f(1, None, "  "),
                f(0, None, None),
                f(0, "a", ""),
            ],
            id="blank tails",
        ),
    ],
)
def test_Y01_two_calls_however_they_are_cut(script: list[Any]) -> None:
    found = assemble(*script)
    assert [(i, n, a.strip()) for i, n, a in found] == TWO


def test_Y01_ids_may_be_missing_altogether() -> None:
    found = assemble(f(0, None, '{"x":1}', "t"), f(0, None, '{"y":2}', "u"))
    assert [(n, a) for _, n, a in found] == [("t", '{"x":1}'), ("u", '{"y":2}')]
    ids = [i for i, _, _ in found]
    assert all(ids)
    assert len(set(ids)) == 2
    assert ids == [i for i, _, _ in assemble(f(0, None, '{"x":1}', "t"), f(0, None, '{"y":2}', "u"))]


def test_Y01_zero_argument_calls_with_index_0() -> None:
    assert assemble(f(0, "a", "", "t"), f(0, "b", "", "u")) == [("a", "t", ""), ("b", "u", "")]
    assert assemble(f(0, "a", None, "t")) == [("a", "t", "")]
    assert [(n, a) for _, n, a in assemble(f(None, None, "", "t"), f(None, None, "{}", "u"))] == [
        ("t", ""),
        ("u", "{}"),
    ]


@pytest.mark.parametrize(
    "script",
    [
        pytest.param(
            [f(0, "a", '{"x":', "t"), f(0, "b", '{"y":', "u"), f(0, None, "1}"), f(0, None, "2}")],
            id="interleaved, all index 0, id once",
        ),
        pytest.param(
            [
                f(None, "a", '{"x":', "t"),
                f(None, "b", '{"y":', "u"),
                f(None, None, "1}"),
                f(None, None, "2}"),
            ],
            id="interleaved, no index, id once",
        ),
        pytest.param(
            [f(0, "a", '{"x":', "t"), f(0, "b", '{"y":2}', "u"), f(0, None, "1}")],
            id="tail of the first after the second",
        ),
        pytest.param([f(0, "a", "", "t"), f(0, "b", "", "u"), f(0, None, '{"x":1}')], id="whose arguments?"),
        pytest.param(
            [f(None, None, '{"x":', "t"), f(None, None, '{"y":', "u"), f(None, "a", "1}")],
            id="whose late id?",
        ),
        pytest.param(
            [f(None, None, '{"a":', "t"), f(None, None, '{"b":1}', "t"), f(None, None, "}", "t")],
            id="name again without id or index",
        ),
        pytest.param([f(None, None, '{"a":1}', "t"), f(None, None, '{"a":1}', "t")], id="twice or again?"),
        pytest.param(
            [f(0, "a", '{"x":1}', "t"), f(0, "a", '{"x":2}', "t")], id="one id, two whole arguments"
        ),
        pytest.param([f(0, "a", '{"x":1}')], id="never named"),
        pytest.param([f(0, "a", '{"x":', "t"), f(0, "b", "1}")], id="id changes from part to part"),
        pytest.param([f(0, "a", '{"x":', "t"), f(0, "a", "1}", "u")], id="two names"),
        pytest.param([f(0, "a", "", "get_"), f(0, "a", '{"x":1}', "weather")], id="name in pieces"),
    ],
)
def test_Y01_ambiguous_input_never_runs(script: list[Any]) -> None:
    found = assemble(*script)
    assert found
    assert not any(is_json_object(arguments) for _, _, arguments in found), found
    assert all(name for _, name, _ in found)


def test_Y01_a_good_call_beside_a_broken_one_is_kept() -> None:
    found = assemble(f(0, "a", '{"x":1}', "t"), f(1, "b", '{"y":2}'))
    assert found[0] == ("a", "t", '{"x":1}')
    assert found[1][2].startswith(BROKEN_PREFIX)


def test_Y02_a_list_that_is_sent_again_counts_once() -> None:
    whole = [f(n, call_id, json.dumps({"n": n}), "t") for n, call_id in enumerate("abc")]
    expected = [(call_id, "t", json.dumps({"n": n})) for n, call_id in enumerate("abc")]
    assert assemble(whole[:1], whole[:2], whole) == expected
    assert assemble(whole, whole, whole) == expected
    without_id = [f(n, None, json.dumps({"n": n}), "t") for n in range(3)]
    without_index = [f(None, call_id, json.dumps({"n": n}), "t") for n, call_id in enumerate("abc")]
    bare = [f(None, None, json.dumps({"n": n}), "t") for n in range(3)]
    assert assemble(without_index[:1], without_index[:2], without_index) == expected
    for variant in (without_id, bare):
        found = assemble(variant[:1], variant[:2], variant)
        assert [(n, a) for _, n, a in found] == [(n, a) for _, n, a in expected]
    empty = [f(n, call_id, "", "t") for n, call_id in enumerate("abc")]
    assert assemble(empty[:1], empty[:2], empty) == [(i, "t", "") for i in "abc"]


def test_Y02_a_cut_answer_is_not_read_as_growing_arguments() -> None:
    parts = [f(0, "a", '{"x":', "t"), f(0, "a", '{"x":1}', "t")]
    assert assemble(*parts) == [("a", "t", '{"x":1}')]
    assert assemble(*parts, truncated=True) == [("a", "t", '{"x":{"x":1}')]


def test_odd_fragments_never_raise() -> None:
    found = assemble(["junk", None, 3, {"function": None}, {"id": 7, "function": {"name": 1}}])  # type: ignore[list-item]
    assert len(found) == 3
    assert all(arguments.startswith(BROKEN_PREFIX) for _, _, arguments in found)
    assert assemble({"index": 0, "id": "a", "function": {"name": "t", "arguments": {"x": 1}}}) == [
        ("a", "t", '{"x": 1}')
    ]


def test_T13_surrogates_are_cleaned_where_they_enter() -> None:
    ((call_id, name, arguments),) = assemble(f(0, "a\ud835", '{"x":"\ud83c', "t"), f(0, None, '\udf78"}'))
    assert (call_id, name, arguments) == ("a\ufffd", "t", '{"x":"\U0001f378"}')


def test_ids_are_unique_within_the_answer() -> None:
    given_ids = ["x", "x", "", "x_2", ""]
    fixed = with_unique_ids([ToolCallRequest(i, "t", "") for i in given_ids], seed="ex:m1")
    ids = [c.id for c in fixed]
    assert ids[0] == "x"
    assert ids[3] == "x_2"
    assert len(set(ids)) == len(ids)
    assert all(ids)
    other = with_unique_ids([ToolCallRequest("", "t", "")], seed="ex:m2")
    assert other[0].id not in ids


# --- properties ------------------------------------------------------------------------------------------------

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
ARGUMENTS = st.dictionaries(st.text(max_size=4), JSON, max_size=3).map(
    lambda value: json.dumps(value, ensure_ascii=False)
)
CALLS = st.lists(st.tuples(st.sampled_from(["t", "u", "search"]), ARGUMENTS), min_size=1, max_size=4)


def cut(data: st.DataObject, text: str) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=5)))
    edges = [0, *places, len(text)]
    return [text[start:end] for start, end in itertools.pairwise(edges)]


def shuffle(data: st.DataObject, queues: list[list[Any]]) -> list[Any]:
    """Interleave, keeping the order within each queue."""
    queues = [list(queue) for queue in queues]
    merged = []
    while any(queues):
        live = [queue for queue in queues if queue]
        merged.append(live[data.draw(st.integers(0, len(live) - 1))].pop(0))
    return merged


@given(CALLS, st.data(), st.booleans(), st.booleans())
def test_any_fragments_with_an_index_give_the_calls_back(
    wanted: list[tuple[str, str]], data: st.DataObject, repeat_ids: bool, all_index_0: bool
) -> None:
    """By index with the id once, or with the id on every part (then the index may be 0 or missing everywhere)."""
    queues = []
    for position, (name, arguments) in enumerate(wanted):
        index = (
            (data.draw(st.sampled_from([0, None])) if all_index_0 else position) if repeat_ids else position
        )
        parts = cut(data, arguments)
        queues.append(
            [
                f(index, f"id{position}" if repeat_ids or n == 0 else None, part, name if n == 0 else None)
                for n, part in enumerate(parts)
            ]
        )
    found = assemble(*shuffle(data, queues))
    assert sorted(found) == sorted((f"id{n}", name, text) for n, (name, text) in enumerate(wanted))


@given(CALLS, st.data(), st.sampled_from([0, None]))
def test_fragments_one_call_after_the_other_need_no_index(
    wanted: list[tuple[str, str]], data: st.DataObject, index: int | None
) -> None:
    script = []
    for position, (name, arguments) in enumerate(wanted):
        for n, part in enumerate(cut(data, arguments)):
            script.append(f(index, f"id{position}" if n == 0 else None, part, name if n == 0 else None))
    assert assemble(*script) == [(f"id{n}", name, text) for n, (name, text) in enumerate(wanted)]


@given(CALLS, st.data())
def test_a_growing_list_with_growing_arguments_gives_the_calls_once(
    wanted: list[tuple[str, str]], data: st.DataObject
) -> None:
    script = []
    done: list[dict[str, Any]] = []
    for position, (name, arguments) in enumerate(wanted):
        seen = ""
        for part in cut(data, arguments):
            seen += part
            script.append([*done, f(position, f"id{position}", seen, name)])
        done.append(f(position, f"id{position}", arguments, name))
    assert assemble(*script) == [(f"id{n}", name, text) for n, (name, text) in enumerate(wanted)]


@given(CALLS, st.data())
def test_whatever_is_lost_never_gives_other_arguments_than_the_model_wrote(
    wanted: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Ids and indexes missing or wrong at random: a call that parses is one of those that were sent."""
    queues = []
    for position, (name, arguments) in enumerate(wanted):
        index = data.draw(st.sampled_from([position, 0, None]))
        identified = data.draw(st.sampled_from(["always", "first", "never"]))
        queues.append(
            [
                f(
                    index,
                    f"id{position}" if identified == "always" or (identified == "first" and n == 0) else None,
                    part,
                    name if n == 0 else None,
                )
                for n, part in enumerate(cut(data, arguments))
            ]
        )
    sent = [(name, json.loads(text)) for name, text in wanted]
    for _, name, arguments in assemble(*shuffle(data, queues)):
        if is_json_object(arguments):
            assert (name, json.loads(arguments)) in sent
