"""What an agent class compiles to: values, and the functions that its author gave."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from phronomy_ray.definition.busy import DEFAULT_MAX_QUEUED, BusyRule
from phronomy_ray.definition.migrations import DefinitionKey, DefinitionMigration
from phronomy_ray.definition.tool_set import BoundTool, ToolSet
from phronomy_ray.definition.tool_source import ToolSource

if TYPE_CHECKING:
    from phronomy_ray.definition.agent import Agent

DEFAULT_MAX_ITERATIONS = 10
DEFAULT_TOOL_REPEATS = 3
DEFAULT_HOOK_TIMEOUT_S = 30.0


#: Owners in a row that may start without progress before their agent is parked.
DEFAULT_MAX_STARTS = 5


@dataclass(frozen=True, slots=True)
class AgentDefinition:
    """A compiled agent class. Fields without a line here are as `Agent` documents the attribute of the same name."""

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
    on_busy: BusyRule = BusyRule.REJECT
    max_queued_requests: int = DEFAULT_MAX_QUEUED
    max_starts_without_progress: int = DEFAULT_MAX_STARTS
    on_event: Callable[[Any], Any] | None = None
    on_event_live: bool = False
    #: By id and version of the earlier definition.
    migrations: Mapping[DefinitionKey, DefinitionMigration] = field(default_factory=dict)

    @property
    def wants_registries(self) -> bool:
        """Whether its tools may come from registries: it names some, capabilities, or an allow list."""
        return bool(self.capabilities or self.tool_sources) or self.tools_allow is not None

    @property
    def wants_assembly(self) -> bool:
        """Whether each turn's tools are assembled from registries and sources; else they are its own ones, for nothing."""
        return bool(self.sources) or self.wants_registries

    @property
    def accepted_versions(self) -> frozenset[str]:
        """Its version, and those whose stored agents it goes on with."""
        return frozenset({self.definition_version, *(version for _, version in self.migrations)})

    @property
    def tools(self) -> Mapping[str, BoundTool]:
        """Its own tools by the name that a model sees."""
        return self.tool_set.tools
