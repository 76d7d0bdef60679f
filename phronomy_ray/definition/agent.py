"""Agents: what a user declares, and the definition that it compiles to.

```python
class Clerk(Agent):
    model = "openai/gpt-4o"
    instructions = "You file reports."
    tools = [read_file, SendMail]
```

A mistake in the declaration is a `ConfigurationError` when the class is made. Class items follow Phronomy's agent DSL.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum
from typing import Any, ClassVar, cast

from phronomy_ray.canonical_json import to_json_value
from phronomy_ray.definition.agent_tool import (
    DEFAULT_CHILD_TIMEOUT_S,
    DEFAULT_INPUT_DESCRIPTION,
    DEFAULT_MAX_DEPTH,
    agent_tool,
)
from phronomy_ray.definition.filters import callables_of, inherited
from phronomy_ray.definition.importing import import_object
from phronomy_ray.definition.tool import Tool, is_number, is_tool_name, is_whole
from phronomy_ray.definition.tool_names import derive_tool_name, snake_case
from phronomy_ray.definition.tool_set import BoundTool, ToolSet, bind_tool
from phronomy_ray.definition.tool_source import ToolSource
from phronomy_ray.errors import (
    ConfigurationError,
    DefinitionUnavailableError,
    SerializationError,
)

__all__ = ["Agent", "AgentDefinition", "BoundTool", "class_path_of", "import_agent"]

DEFAULT_MAX_ITERATIONS = 10
DEFAULT_TOOL_REPEATS = 3
DEFAULT_HOOK_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """A compiled agent class."""

    cls: type[Agent]
    definition_id: str
    definition_version: str
    #: ``module:Class``; empty when no other process can import the class.
    class_path: str
    #: litellm model name, or an object that implements the model port.
    model: Any
    instructions: str | Callable[[Any], Any]
    #: Its own tools: all that it has, unless a turn is assembled (`assembly`).
    tool_set: ToolSet
    max_iterations: int
    max_output_tokens: int | None
    model_settings: Mapping[str, Any]
    model_timeout_s: float
    model_retries: int
    cache_instructions: bool
    context_window: int | None
    empty_answer_retries: int
    allow_empty_answer: bool
    quiescence_timeout_s: float
    #: Function of an `ApprovalEvaluationRequest` that gives an `ApprovalVerdict` or its text, plain or async.
    tool_approval_policy: Callable[[Any], Any] | None
    authorization_timeout_s: float
    tool_timeout_s: float | None
    turn_timeout_s: float | None
    max_parallel_tools: int | None
    capabilities: tuple[str, ...]
    tools_allow: tuple[str, ...] | None
    tools_deny: tuple[str, ...]
    tool_sources: str | Callable[[], Any]
    #: What offers more tools at run time.
    sources: tuple[ToolSource, ...] = ()
    max_tool_repeats: int = DEFAULT_TOOL_REPEATS
    deduplicate_tool_calls: bool = False
    max_batch_result_chars: int | None = None
    #: Those of the class and its bases; of the instance and the runtime there may be more.
    input_filters: tuple[Callable[..., Any], ...] = ()
    output_filters: tuple[Callable[..., Any], ...] = ()
    result_filters: tuple[Callable[..., Any], ...] = ()
    before_llm_input: tuple[Callable[..., Any], ...] = ()
    hook_timeout_s: float = DEFAULT_HOOK_TIMEOUT_S

    @property
    def wants_registries(self) -> bool:
        """Whether its tools may come from registries: it names some, capabilities, or an allow list."""
        return bool(self.capabilities or self.tool_sources) or self.tools_allow is not None

    @property
    def wants_assembly(self) -> bool:
        """Whether each turn's tools are assembled from registries and sources; else they are its own ones, for nothing."""
        return bool(self.sources) or self.wants_registries

    @property
    def tools(self) -> Mapping[str, BoundTool]:
        """Its own tools by the name that a model sees."""
        return self.tool_set.tools

    @property
    def tool_definitions(self) -> tuple[dict[str, Any], ...]:
        """Chat-completions definitions of its own tools."""
        return self.tool_set.definitions


class Agent:
    """Base of all agents: subclass it and set the attributes; instances are made by the runtime only."""

    #: litellm model name such as ``openai/gpt-4o``, or an object that implements the model port (tests, demos).
    model: ClassVar[Any] = ""
    #: System text, or a function of the input that returns it (plain or async).
    instructions: ClassVar[Any] = ""
    #: Tools: `tool` functions, `Tool` classes or instances, and tool sources such as `McpServer`; or a mapping of those to
    #: an alias (or ``None``).
    tools: ClassVar[Sequence[Any] | Mapping[Any, str | None]] = ()
    #: Other names for tools, by their own name; inherited and merged.
    tool_aliases: ClassVar[Mapping[str, str]] = {}
    #: Model calls that one execution may make.
    max_iterations: ClassVar[int] = DEFAULT_MAX_ITERATIONS
    #: Limit of one answer, in tokens; ``None`` leaves it to the provider.
    max_output_tokens: ClassVar[int | None] = None
    #: Name of this definition in the store; the import path unless given.
    definition_id: ClassVar[str] = ""
    #: Version of this definition; an agent stored under another one is refused.
    definition_version: ClassVar[str] = "1"
    #: Provider settings: ``temperature``, ``top_p``, ``seed``, ``api_base``, ...; secrets in it are never stored.
    model_settings: ClassVar[Mapping[str, Any]] = {}
    #: Limit of one attempt of a model call, in seconds.
    model_timeout_s: ClassVar[float] = 120.0
    #: Attempts of a model call after the first.
    model_retries: ClassVar[int] = 2
    #: Ask the provider to cache the instructions.
    cache_instructions: ClassVar[bool] = False
    #: Context window in tokens; by default what litellm knows of the model, and no limit for an unknown one.
    context_window: ClassVar[int | None] = None
    #: How often an answer with neither text nor calls is asked for again.
    empty_answer_retries: ClassVar[int] = 1
    #: Accept an empty final answer after at least one tool result.
    allow_empty_answer: ClassVar[bool] = False
    #: How long the end of a cancelled execution waits for bodies that still run, in seconds.
    quiescence_timeout_s: ClassVar[float] = 5.0
    #: Limit of one attempt of each of its tools, in seconds; ``None`` for the tools' own limits.
    tool_timeout_s: ClassVar[float | None] = None
    #: How long one stretch of a turn may take, from its start or a human's answer, in seconds; ``None`` for no limit.
    turn_timeout_s: ClassVar[float | None] = None
    #: How many of its calls may be under way at once; ``None`` for all of a batch.
    max_parallel_tools: ClassVar[int | None] = None
    #: Capabilities that it has, by name: each becomes a tool of that name. None unless listed.
    capabilities: ClassVar[Sequence[str] | None] = ()
    #: Registry tools that it has, by registry key; ``None`` for all but the optional ones.
    tools_allow: ClassVar[Sequence[str] | None] = None
    #: Tools that it must not have, by registry key or by an own tool's own name; outdoes every grant.
    tools_deny: ClassVar[Sequence[str]] = ()
    #: Where its registries come from: ``module:function`` that gives `AssemblySources`, or such a function; the
    #: runtime's ``registry`` when empty.
    tool_sources: ClassVar[str | Callable[[], Any]] = ""
    #: Has the last word on every tool call before it runs: a function of an `ApprovalEvaluationRequest`, plain or async,
    #: that returns ``"allow"``, ``"require_approval"`` or ``"reject"``. It may run again after a crash.
    tool_approval_policy: ClassVar[Any] = None
    #: How long user code may take to authorise one call, waiting for a thread included, in seconds.
    authorization_timeout_s: ClassVar[float] = 5.0
    #: How often in a row the same calls may run; then the model is warned, and asking once more ends the execution with
    #: `RepeatedToolCallError`. 0 or 1 for no limit: an agent that polls on purpose.
    max_tool_repeats: ClassVar[int] = DEFAULT_TOOL_REPEATS
    #: Run equal calls of one batch once and give each id the one outcome; by default each runs.
    deduplicate_tool_calls: ClassVar[bool] = False
    #: How much of the results of one batch the model is shown together, in characters, shared out fairly; ``None`` for no
    #: limit beside those of the tools.
    max_batch_result_chars: ClassVar[int | None] = None
    #: Filters of the raw input, the final output and what tools return; those of base classes come first and stay.
    input_filters: ClassVar[Sequence[Any]] = ()
    output_filters: ClassVar[Sequence[Any]] = ()
    result_filters: ClassVar[Sequence[Any]] = ()
    #: Hooks that look at each model call before it is made; those of base classes come first and stay.
    before_llm_input: ClassVar[Sequence[Any]] = ()
    #: Limit of one hook, and of the input or output filters together, in seconds.
    hook_timeout_s: ClassVar[float] = DEFAULT_HOOK_TIMEOUT_S

    _definition: ClassVar[AgentDefinition | None] = None

    def __init__(self) -> None:
        raise ConfigurationError(
            f"{type(self).__name__} is a definition; make an agent with runtime.create({type(self).__name__}, agent_id)"
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        own = cls.__dict__.get("tool_aliases", {})
        if not isinstance(own, Mapping):
            raise ConfigurationError(f"agent {cls.__name__}: tool_aliases must be a mapping, not {own!r}")
        merged: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            merged.update(base.__dict__.get("tool_aliases", {}))
        cls.tool_aliases = merged
        cls._definition = None
        if cls.model:
            cls._definition = _compile(cls, frozenset(own))

    @classmethod
    def as_tool(
        cls,
        name: str | None = None,
        description: str | None = None,
        *,
        input_description: str = DEFAULT_INPUT_DESCRIPTION,
        keep: bool = False,
        max_depth: int = DEFAULT_MAX_DEPTH,
        timeout_s: float = DEFAULT_CHILD_TIMEOUT_S,
    ) -> Tool:
        """This agent as a tool of another: a call starts a child agent on the text ``input`` and gives its final text.

        Each call has a child of its own, named after the call, so a call that runs again after a crash finds it. The child is
        cancelled with its call, and unloaded at its end; its journal stays in the store.

        Args:
            name: the tool's name; derived from the class name (snake case, without a trailing ``_agent``) unless given.
            description: what the model is told; the class docstring unless given.
            input_description: what the model is told of ``input``.
            keep: leave the child's process running at its end.
            max_depth: how many agents may stand below each other when this one is called, the first parent not counted.
            timeout_s: limit of the whole child, in seconds; waiting for a human counts.

        Other options are those of any tool: ``Writer.as_tool().with_options(on_error="suppress")``.

        Raises:
            ConfigurationError: this class cannot run, or an argument is wrong.
        """
        cls.definition()
        derived = derive_tool_name(snake_case(cls.__name__).removesuffix("_agent"))
        return agent_tool(
            cls,
            name=derived if name is None else name,
            description=inspect.cleandoc(cls.__dict__.get("__doc__") or "")
            if description is None
            else description,
            input_description=input_description,
            keep=keep,
            max_depth=max_depth,
            timeout_s=timeout_s,
        )

    @classmethod
    def definition(cls) -> AgentDefinition:
        """The compiled definition.

        Raises:
            ConfigurationError: the class sets no model.
        """
        if cls._definition is None:
            raise ConfigurationError(f"agent {cls.__name__}: model is not set")
        return cls._definition


def import_agent(class_path: str) -> type[Agent]:
    """Import an agent class by ``module:Class``.

    Raises:
        DefinitionUnavailableError: it cannot be imported here, or is not an agent class.
        ConfigurationError: a declaration in its module is wrong.
    """
    target = import_object(class_path, what="an agent class")
    if not (isinstance(target, type) and issubclass(target, Agent)):
        raise DefinitionUnavailableError(f"{class_path!r} is a {type(target).__name__}, not an agent class")
    return target


def class_path_of(cls: type[Agent]) -> str:
    """``module:Class``, or empty when other processes cannot import it (``__main__`` or inside a function)."""
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        return ""
    return f"{cls.__module__}:{cls.__qualname__}"


def _compile(cls: type[Agent], own_aliases: frozenset[str]) -> AgentDefinition:
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
    if callable(instructions) and not _takes_one_argument(instructions):
        raise wrong("instructions", instructions, "a function of one argument, the input")
    policy = cls.__dict__.get("tool_approval_policy", cls.tool_approval_policy)
    if isinstance(policy, staticmethod | classmethod):
        policy = policy.__get__(None, cls)
    if policy is not None and not (callable(policy) and _takes_one_argument(policy)):
        raise wrong("tool_approval_policy", policy, "a function of one argument, the request")
    for field in (
        "max_iterations",
        "max_output_tokens",
        "context_window",
        "max_parallel_tools",
        "max_batch_result_chars",
    ):
        value = getattr(cls, field)
        optional = value is None and field != "max_iterations"
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
    for field in ("cache_instructions", "allow_empty_answer", "deduplicate_tool_calls"):
        if not isinstance(getattr(cls, field), bool):
            raise wrong(field, getattr(cls, field), "True or False")
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
    tools = _bind_tools(cls, own_aliases, filters["result_filters"])
    return AgentDefinition(
        cls=cls,
        definition_id=cls.definition_id or f"{cls.__module__}:{cls.__qualname__}",
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


def _takes_one_argument(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind(object())
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


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
