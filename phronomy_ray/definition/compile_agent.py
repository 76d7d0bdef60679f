"""From an agent class to its definition: the checks of every attribute, and the tools under the names that a model sees."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.busy import BusyRule
from phronomy_ray.definition.callables import takes
from phronomy_ray.definition.filters import callables_of, inherited
from phronomy_ray.definition.importing import class_path_of
from phronomy_ray.definition.migrations import migrations_of
from phronomy_ray.definition.tool import Tool, is_number, is_tool_name, is_whole
from phronomy_ray.definition.tool_set import BoundTool, ToolSet, bind_tool
from phronomy_ray.definition.tool_source import ToolSource
from phronomy_ray.errors import ConfigurationError, SerializationError

if TYPE_CHECKING:
    from phronomy_ray.definition.agent import Agent


#: Whole numbers that have no "unlimited".
_NEVER_NONE = ("max_iterations", "max_queued_requests", "max_starts_without_progress")


def compile_agent(cls: type[Agent], own_aliases: frozenset[str]) -> AgentDefinition:
    """Check the class and compile it; `own_aliases` are those that it declares itself. Raises `ConfigurationError`."""

    def wrong(field: str, value: Any, expected: str) -> ConfigurationError:
        return ConfigurationError(f"agent {cls.__name__}: {field} must be {expected}, not {value!r}")

    is_port = all(callable(getattr(cls.model, name, None)) for name in ("complete", "stream"))
    if not (isinstance(cls.model, str) or (is_port and not isinstance(cls.model, type))):
        raise wrong("model", cls.model, "a litellm model name or an object with complete() and stream()")
    instructions = cls.__dict__.get("instructions", cls.instructions)
    if isinstance(instructions, staticmethod | classmethod):
        instructions = instructions.__get__(None, cls)
    if not (isinstance(instructions, str) or callable(instructions)):
        raise wrong("instructions", instructions, "text or a function of the input")
    if callable(instructions) and not takes(instructions, 1):
        raise wrong("instructions", instructions, "a function of one argument, the input")
    policy = cls.__dict__.get("tool_approval_policy", cls.tool_approval_policy)
    if isinstance(policy, staticmethod | classmethod):
        policy = policy.__get__(None, cls)
    if policy is not None and not (callable(policy) and takes(policy, 1)):
        raise wrong("tool_approval_policy", policy, "a function of one argument, the request")
    listener = cls.__dict__.get("on_event", cls.on_event)
    if isinstance(listener, staticmethod | classmethod):
        listener = listener.__get__(None, cls)
    if listener is not None and not (callable(listener) and takes(listener, 1)):
        raise wrong("on_event", listener, "a function of one argument, the event")
    for field in (
        "max_iterations",
        "max_output_tokens",
        "context_window",
        "max_parallel_tools",
        "max_batch_result_chars",
        "max_queued_requests",
        "max_starts_without_progress",
    ):
        value = getattr(cls, field)
        optional = value is None and field not in _NEVER_NONE
        if not optional and not (is_whole(value) and value > 0):
            raise wrong(field, value, "a positive whole number")
    for field in (
        "model_timeout_s",
        "quiescence_timeout_s",
        "authorization_timeout_s",
        "tool_timeout_s",
        "turn_timeout_s",
        "hook_timeout_s",
    ):
        value = getattr(cls, field)
        if value is None and field in ("tool_timeout_s", "turn_timeout_s"):
            continue
        if not (is_number(value) and value > 0):
            raise wrong(field, value, "a positive number of seconds")
    for field in ("model_retries", "empty_answer_retries", "max_tool_repeats"):
        value = getattr(cls, field)
        if not (is_whole(value) and value >= 0):
            raise wrong(field, value, "0 or more")
    for field in ("cache_instructions", "allow_empty_answer", "deduplicate_tool_calls", "on_event_live"):
        if not isinstance(getattr(cls, field), bool):
            raise wrong(field, getattr(cls, field), "True or False")
    try:
        on_busy = BusyRule(cls.on_busy)
    except ValueError:
        raise wrong("on_busy", cls.on_busy, "'reject', 'queue' or 'interrupt'") from None
    if not isinstance(cast("object", cls.definition_id), str):
        raise wrong("definition_id", cls.definition_id, "text")
    version: object = cls.definition_version
    if not (isinstance(version, str) and version):
        raise wrong("definition_version", version, "non-empty text")
    try:
        settings = to_json_value(dict(cls.model_settings))
    except (SerializationError, TypeError, ValueError) as error:
        raise ConfigurationError(
            f"agent {cls.__name__}: model_settings must be plain JSON: {error}"
        ) from error
    owner = f"agent {cls.__name__}"
    filters = {
        name: callables_of(owner, name, inherited(cls, name), arguments=2)
        for name in ("input_filters", "output_filters", "result_filters")
    }
    definition_id = cls.definition_id or f"{cls.__module__}:{cls.__qualname__}"
    tools = _bind_tools(cls, own_aliases, filters["result_filters"])
    return AgentDefinition(
        cls=cls,
        definition_id=definition_id,
        definition_version=cls.definition_version,
        class_path=class_path_of(cls),
        model=cls.model,
        instructions=instructions,
        tool_set=ToolSet.of(tools),
        max_iterations=cls.max_iterations,
        max_output_tokens=cls.max_output_tokens,
        model_settings=settings if isinstance(settings, dict) else {},
        model_timeout_s=cls.model_timeout_s,
        model_retries=cls.model_retries,
        cache_instructions=cls.cache_instructions,
        context_window=cls.context_window,
        empty_answer_retries=cls.empty_answer_retries,
        allow_empty_answer=cls.allow_empty_answer,
        quiescence_timeout_s=cls.quiescence_timeout_s,
        tool_approval_policy=policy,
        authorization_timeout_s=cls.authorization_timeout_s,
        sources=_sources_of(cls),
        tool_timeout_s=cls.tool_timeout_s,
        turn_timeout_s=cls.turn_timeout_s,
        max_parallel_tools=cls.max_parallel_tools,
        max_tool_repeats=cls.max_tool_repeats,
        deduplicate_tool_calls=cls.deduplicate_tool_calls,
        max_batch_result_chars=cls.max_batch_result_chars,
        input_filters=filters["input_filters"],
        output_filters=filters["output_filters"],
        result_filters=filters["result_filters"],
        before_llm_input=callables_of(
            owner, "before_llm_input", inherited(cls, "before_llm_input"), arguments=1
        ),
        hook_timeout_s=cls.hook_timeout_s,
        on_event=listener,
        on_event_live=cls.on_event_live,
        on_busy=on_busy,
        max_queued_requests=cls.max_queued_requests,
        max_starts_without_progress=cls.max_starts_without_progress,
        migrations=migrations_of(
            f"agent {cls.__name__}", cls.definition_migrations, (definition_id, cls.definition_version)
        ),
        **_assembly_fields(cls),
    )


def _assembly_fields(cls: type[Agent]) -> dict[str, Any]:
    names: dict[str, tuple[str, ...]] = {}
    for field in ("capabilities", "tools_allow", "tools_deny"):
        given: object = getattr(cls, field)
        if given is None and field != "tools_deny":
            continue
        if isinstance(given, str) or not isinstance(given, Sequence | Set):
            raise ConfigurationError(f"agent {cls.__name__}: {field} must be a list of names, not {given!r}")
        found = tuple(str(item.value) if isinstance(item, Enum) else item for item in given)
        for name in found:
            if not (isinstance(name, str) and name):
                raise ConfigurationError(f"agent {cls.__name__}: {field} must hold names, not {name!r}")
            if field == "capabilities" and not is_tool_name(name):
                raise ConfigurationError(
                    f"agent {cls.__name__}: the capability {name!r} cannot be a tool's name: 1 to 64 letters, digits, "
                    "'_' or '-'"
                )
            if found.count(name) > 1:
                raise ConfigurationError(f"agent {cls.__name__}: {field} names {name!r} twice")
        names[field] = found
    sources: object = cls.tool_sources
    if not isinstance(sources, str) and (not callable(sources) or inspect.iscoroutinefunction(sources)):
        raise ConfigurationError(
            f"agent {cls.__name__}: tool_sources must be 'module:function' or a plain function, not {sources!r}"
        )
    return {
        "capabilities": names.get("capabilities", ()),
        "tools_allow": names.get("tools_allow"),
        "tools_deny": names["tools_deny"],
        "tool_sources": sources,
    }


def _sources_of(cls: type[Agent]) -> tuple[ToolSource, ...]:
    sources: dict[str, ToolSource] = {}
    for item in cls.tools:
        if isinstance(item, ToolSource) and sources.setdefault(item.source_name, item) is not item:
            raise ConfigurationError(f"agent {cls.__name__}: two tool sources are named {item.source_name!r}")
    return tuple(sources.values())


def _bind_tools(
    cls: type[Agent], own_aliases: frozenset[str], filters: tuple[Callable[..., Any], ...]
) -> dict[str, BoundTool]:
    listed: list[tuple[Any, str | None]]
    given: object = cls.tools
    if isinstance(given, Mapping):
        listed = list(given.items())
    elif isinstance(given, Sequence) and not isinstance(given, str):
        listed = [(item, None) for item in given]
    else:
        raise ConfigurationError(
            f"agent {cls.__name__}: tools must be a list or a mapping, not {cls.tools!r}"
        )
    bound: dict[str, BoundTool] = {}
    own_names: set[str] = set()
    for item, alias in listed:
        if isinstance(item, ToolSource):
            if alias:
                raise ConfigurationError(
                    f"agent {cls.__name__}: the tool source {item.source_name!r} cannot have an alias; its tools can"
                )
            continue
        if isinstance(item, type) and issubclass(item, Tool):
            item = item()
        if not isinstance(item, Tool):
            hint = " (decorate it with @tool)" if callable(item) else ""
            raise ConfigurationError(f"agent {cls.__name__}: {item!r} is not a tool{hint}")
        spec = item.spec
        own_names.add(spec.name)
        if spec.name in cls.tools_deny:
            continue
        name = alias or cls.tool_aliases.get(spec.name)
        try:
            made = bind_tool(item, name=name or "", timeout_s=cls.tool_timeout_s)
        except ConfigurationError as error:
            raise ConfigurationError(f"agent {cls.__name__}: {error.message}") from None
        if made.spec.name in bound:
            raise ConfigurationError(
                f"agent {cls.__name__}: two tools are named {made.spec.name!r}; give one an alias"
            )
        bound[made.spec.name] = made.filtered_by(filters)
    unused = own_aliases - own_names  # an inherited alias may be for a tool that this class leaves out
    if unused and cls.tools and not _sources_of(cls):  # or it is for a tool that a source offers
        raise ConfigurationError(
            f"agent {cls.__name__}: tool_aliases names {sorted(unused)[0]!r}, which is no tool of it"
        )
    return bound
