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

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from phronomy_ray.definition.agent_definition import (
    DEFAULT_HOOK_TIMEOUT_S,
    DEFAULT_MAX_ITERATIONS,
    DEFAULT_MAX_STARTS,
    DEFAULT_TOOL_REPEATS,
    AgentDefinition,
)
from phronomy_ray.definition.agent_tool import (
    DEFAULT_CHILD_TIMEOUT_S,
    DEFAULT_INPUT_DESCRIPTION,
    DEFAULT_MAX_DEPTH,
    agent_tool,
)
from phronomy_ray.definition.busy import DEFAULT_MAX_QUEUED, BusyRule
from phronomy_ray.definition.compile_agent import compile_agent
from phronomy_ray.definition.importing import class_path_of, import_object
from phronomy_ray.definition.placement import Dedicated, Packed
from phronomy_ray.definition.tool import Tool
from phronomy_ray.definition.tool_names import derive_tool_name, snake_case
from phronomy_ray.definition.tool_set import BoundTool
from phronomy_ray.errors import ConfigurationError, DefinitionUnavailableError

__all__ = ["Agent", "AgentDefinition", "BoundTool", "class_path_of", "import_agent"]


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
    #: Version of this definition; an agent stored under another one is refused, unless `definition_migrations` names it.
    definition_version: ClassVar[str] = "1"
    #: Earlier definitions whose stored agents this class goes on with: a list of versions, or of pairs of id and version; or a
    #: mapping of those to a `DefinitionMigration` (or ``None``).
    definition_migrations: ClassVar[Sequence[Any] | Mapping[Any, Any]] = ()
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
    #: Hears of every durable event of its executions, after the event was committed: a function of one `Event`, plain or async. It
    #: runs in the process that owns the agent, off the agent's loop, one call at a time and in order of each execution; the class's
    #: and the instance's (`InstanceOptions`) run beside each other.
    #:
    #: It never changes, delays or fails a turn: what it raises, and a call that takes longer than ``hook_timeout_s``, is logged
    #: (codes ``on_event_failed``, ``on_event_timeout``) and counted in `AgentHandle.status`; while a call that was given up still
    #: runs no other one is made. At most 1,000 events wait; when there are more, durable ones are read from the store again.
    #:
    #: Guaranteed: within the life of one owner no durable event is skipped, and none is told twice. Not guaranteed: anything over
    #: the end of the owner. An event that was committed just before a crash is not told by the next owner; an agent that leaves its
    #: process waits two seconds for what is still to be told; while a store is away nothing can be read again (code
    #: ``on_event_lost``). What must reach somebody goes through `Runtime.subscriptions`.
    on_event: ClassVar[Callable[..., Any] | None] = None
    #: Whether ``on_event`` hears of live events too (tokens of executions that were started with ``stream=True``, starts and
    #: progress of tools). Those that find no room are lost, and it is told how many by an event of type ``lost``.
    on_event_live: ClassVar[bool] = False
    #: Limit of one hook, and of the input or output filters together, in seconds.
    hook_timeout_s: ClassVar[float] = DEFAULT_HOOK_TIMEOUT_S
    #: What becomes of a start while an execution is non-terminal: ``"reject"``, ``"queue"`` or ``"interrupt"``.
    on_busy: ClassVar[BusyRule | str] = BusyRule.REJECT
    #: Requests that may wait for their turn; more are refused with `BackpressureError`.
    max_queued_requests: ClassVar[int] = DEFAULT_MAX_QUEUED
    #: Owners in a row that may start without getting the agent on (crashes, lost nodes); then it is parked until `unpark`.
    max_starts_without_progress: ClassVar[int] = DEFAULT_MAX_STARTS
    #: Where agents of this class live (`Dedicated` or `Packed`); ``None`` for where the runtime says.
    placement: ClassVar[Dedicated | Packed | None] = None

    _definition: ClassVar[AgentDefinition | None] = None

    def __init__(self) -> None:
        raise ConfigurationError(
            f"{type(self).__name__} is a definition; make an agent with runtime.create({type(self).__name__}, agent_id)"
        )

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        _refuse_misspelt(cls)
        own = cls.__dict__.get("tool_aliases", {})
        if not isinstance(own, Mapping):
            raise ConfigurationError(f"agent {cls.__name__}: tool_aliases must be a mapping, not {own!r}")
        merged: dict[str, str] = {}
        for base in reversed(cls.__mro__):
            merged.update(base.__dict__.get("tool_aliases", {}))
        cls.tool_aliases = merged
        if not isinstance(cast("object", cls.placement), Dedicated | Packed | None):
            raise ConfigurationError(
                f"agent {cls.__name__}: placement must be Dedicated(...), Packed(...) or None, not {cls.placement!r}"
            )
        cls._definition = None
        if cls.model:
            cls._definition = compile_agent(cls, frozenset(own))

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


#: What a class may set.
_ATTRIBUTES = tuple(name for name in Agent.__annotations__ if not name.startswith("_"))


def _refuse_misspelt(cls: type[Agent]) -> None:
    """Raise `ConfigurationError` for an attribute that is nearly one of ours; a class may have others of its own."""
    for name in vars(cls):
        if not name.startswith("_") and name not in _ATTRIBUTES:
            close = difflib.get_close_matches(name, _ATTRIBUTES, n=1, cutoff=0.85)
            if close:
                raise ConfigurationError(
                    f"agent {cls.__name__}: unknown attribute {name!r}; did you mean {close[0]!r}?"
                )


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
