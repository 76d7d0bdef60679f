"""Declaring filters and hooks: what is accepted, in which order they stand, and what is refused when the class is made."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.filters import Filter, FilterContext, block, name_of
from phronomy_ray.definition.hooks import LLMInputBuildContext, LLMInputHook, LLMInputPatch, frozen
from phronomy_ray.definition.options import InstanceOptions, RuntimeDefaults
from phronomy_ray.errors import ConfigurationError, FilterBlockError, InvalidInputError, SerializationError
from phronomy_ray.messages import Message


def first(value: Any, context: FilterContext) -> Any:
    return value


async def second(value: Any, context: FilterContext) -> Any:
    return value


class Third:
    def __call__(self, value: Any, context: FilterContext) -> Any:
        return value


def hook(context: LLMInputBuildContext) -> None:
    return None


def test_filters_of_bases_come_first_and_stay() -> None:
    class Base(Agent):
        model = "m/m"
        input_filters = [first]

    class Child(Base):
        input_filters = [Third, first, second]
        before_llm_input = [hook]

    class Silent(Child):
        pass

    assert Base.definition().input_filters == (first,)
    for cls in (Child, Silent):
        found = cls.definition().input_filters
        assert [getattr(item, "__name__", type(item).__name__) for item in found] == [
            "first",
            "Third",
            "second",
        ]
        assert cls.definition().before_llm_input == (hook,)
    assert all(isinstance(item, Filter) for item in Child.definition().input_filters)
    assert isinstance(hook, LLMInputHook)


class NeedsArguments:
    def __init__(self, limit: int) -> None:
        self.limit = limit

    def __call__(self, value: Any, context: FilterContext) -> Any:
        return value


@pytest.mark.parametrize(
    ("field", "given", "words"),
    [
        ("input_filters", first, "must be a list"),
        ("input_filters", "first", "must be a list"),
        ("output_filters", [lambda value: value], "a value and its context"),
        ("output_filters", [3], "cannot be called"),
        ("result_filters", [NeedsArguments], "without arguments"),
        ("before_llm_input", [first], "one context"),
        ("hook_timeout_s", 0, "hook_timeout_s"),
        ("max_tool_repeats", -1, "max_tool_repeats"),
        ("max_batch_result_chars", 0, "max_batch_result_chars"),
        ("deduplicate_tool_calls", 1, "deduplicate_tool_calls"),
    ],
)
def test_a_mistake_is_an_error_when_the_class_is_made(field: str, given: Any, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        type("Clerk", (Agent,), {"model": "m/m", field: given})
    assert "Clerk" in str(caught.value)


def test_blocking_raises_the_reason() -> None:
    with pytest.raises(FilterBlockError, match="too rude"):
        block("too rude")


def test_options_are_checked_named_and_travel() -> None:
    options = InstanceOptions(input_filters=[first, Third], before_llm_input=[hook])
    assert InstanceOptions().names() == {}
    assert options.names()["input_filters"] == [name_of(first), name_of(Third())]
    again = pickle.loads(pickle.dumps(options))
    assert again.names() == options.names()
    with pytest.raises(ConfigurationError, match="output_filters"):
        InstanceOptions(output_filters=[3])
    with pytest.raises(ConfigurationError, match="tool_approval_policy"):
        InstanceOptions(tool_approval_policy="allow")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="max_result_chars"):
        RuntimeDefaults(max_result_chars=0)


@pytest.mark.parametrize(
    "given",
    [
        {"model_settings": {"api_key": "x"}},
        {"model_settings": {"extra-headers": {}}},
        {"model_settings": {"model": "other"}},
        {"model_settings": {"temperature": float("nan")}},
        {"model_settings": 3},
        {"candidates": "text"},
        {"candidates": [Message.assistant("no")]},
        {"candidates": [{"role": "tool", "content": "no", "tool_call_id": "1"}]},
        {"candidates": [""]},
    ],
)
def test_a_patch_that_cannot_be_kept_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises((InvalidInputError, SerializationError)):
        LLMInputPatch(**given)


def test_a_patch_takes_text_messages_and_mappings() -> None:
    patch = LLMInputPatch(candidates=["now", Message.user("u"), {"role": "system", "content": "s"}])
    assert [(m.role.value, m.content) for m in patch.candidates] == [
        ("system", "now"),
        ("user", "u"),
        ("system", "s"),
    ]


def test_frozen_json_cannot_be_changed() -> None:
    value = frozen({"a": [{"b": 1}]})
    with pytest.raises(TypeError):
        value["a"] = 1
    with pytest.raises(TypeError):
        value["a"][0]["b"] = 2
