"""The user's code around a turn: input filters, instructions and the assembly of tools, ``before_llm_input`` hooks, output filters.

Everything runs off the agent's loop, within a time limit, and ends in one kernel input, or in none when the execution was
cancelled meanwhile: its end is on the way then.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable
from typing import Any, cast

from phronomy_ray.assembly.assembly import Assembled, AssemblyFailed
from phronomy_ray.canonical_json import clean_text, to_json_value
from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.definition.filters import FilterContext, FilterSite, name_of
from phronomy_ray.definition.hooks import LLMInputBuildContext, LLMInputPatch, frozen
from phronomy_ray.definition.options import InstanceOptions, RuntimeDefaults
from phronomy_ray.engine.turn_tools import TurnTools
from phronomy_ray.errors import (
    ConfigurationError,
    ErrorRecord,
    FilterBlockError,
    FilterError,
    HookError,
    safe_message,
)
from phronomy_ray.frozen import replace
from phronomy_ray.kernel.admission import message_of_input
from phronomy_ray.kernel.effects import BuildInput, FilterOutput, Prepare
from phronomy_ray.kernel.inputs import (
    Input,
    InputBuildFailed,
    InputBuilt,
    InputPatch,
    OutputFiltered,
    OutputFilterFailed,
    PreparationDone,
    PreparationFailed,
    Prepared,
)
from phronomy_ray.messages import Message
from phronomy_ray.redaction import SECRET_SETTINGS, redact_error
from phronomy_ray.tools.filtering import FiltersStopped, run_filters
from phronomy_ray.tools.off_loop import call_here, off_loop


class UserCode:
    """The filters and hooks of one agent: those of its class, its instance and its runtime together."""

    def __init__(
        self,
        agent_id: str,
        definition: AgentDefinition,
        turn_tools: TurnTools,
        options: InstanceOptions,
        defaults: RuntimeDefaults,
        *,
        is_cancelled: Callable[[str], bool],
    ) -> None:
        self._agent_id = agent_id
        self._definition = definition
        self._turn_tools = turn_tools
        self._is_cancelled = is_cancelled
        self._input_filters = (*definition.input_filters, *options.input_filters)
        self._output_filters = (*definition.output_filters, *options.output_filters)
        self._hooks = (*defaults.before_llm_input, *definition.before_llm_input, *options.before_llm_input)

    @property
    def prepares_input(self) -> bool:
        """Whether user code runs before the first model call is known."""
        definition = self._definition
        return (
            bool(self._input_filters)
            or not isinstance(definition.instructions, str)
            or definition.wants_assembly
        )

    @property
    def builds_input(self) -> bool:
        """Whether hooks look at each model call."""
        return bool(self._hooks)

    @property
    def filters_output(self) -> bool:
        """Whether filters look at the output."""
        return bool(self._output_filters)

    # --- input -------------------------------------------------------------------------------------------------

    async def prepare(self, effect: Prepare) -> Input | None:
        """Filter the input, then find the message and the instructions for what is left of it."""
        execution_id = effect.execution_id
        try:
            # copies: the user's code must not change what is stored
            value = copy.deepcopy(effect.input)
            if self._input_filters:
                context = self._filter_context(FilterSite.INPUT, execution_id, effect.durable_context)
                value = to_json_value(await self._filter(self._input_filters, value, context))
            message = message_of_input(value)
            instructions = await self._instructions_for(copy.deepcopy(value))
            return await self._with_tools(execution_id, Prepared(clean_text(instructions), message))
        except FiltersStopped:
            return None
        except BaseException as error:
            if _closing(error):
                raise
            record = redact_error(ErrorRecord.from_exception(error))
            return PreparationFailed(execution_id, record, blocked=_is_block(error))

    async def _with_tools(self, execution_id: str, prepared: Prepared) -> PreparationDone | PreparationFailed:
        match await self._turn_tools.assemble(execution_id):
            case Assembled(tools, binding, events, contents):
                prepared = replace(
                    prepared, tools=tools, binding=binding, events=events, tool_contents=contents
                )
            case AssemblyFailed(error, events):
                record = redact_error(ErrorRecord.from_exception(error))
                return PreparationFailed(execution_id, record, events)
        return PreparationDone(execution_id, prepared)

    async def _instructions_for(self, value: Any) -> str:
        instructions = self._definition.instructions
        if isinstance(instructions, str):
            return instructions
        limit = self._definition.hook_timeout_s
        try:
            found = await off_loop(
                call_here, instructions, value, timeout_s=limit, name="phronomy-instructions"
            )
        except TimeoutError:
            raise HookError(
                f"the instructions function did not return within {limit:g} s",
                code="hook_timeout",
                details={"hook": "instructions"},
            ) from None
        if not isinstance(found, str):
            raise ConfigurationError(f"instructions must give text, not {type(found).__name__}")
        return found

    # --- model calls -------------------------------------------------------------------------------------------

    async def build_input(self, effect: BuildInput) -> Input | None:
        """Run the hooks in order, and join their patches."""
        request = effect.request
        definition = self._definition
        settings = {name: value for name, value in request.settings.items() if not _is_secret(name)}
        context = LLMInputBuildContext(
            agent_id=self._agent_id,
            definition_id=definition.definition_id,
            definition_version=definition.definition_version,
            execution_id=request.execution_id,
            call_sequence=request.sequence,
            model=request.model,
            model_settings=frozen(settings),
            messages=tuple(map(Message.from_wire, request.messages)),
            durable_context=frozen(effect.durable_context),
        )
        patched: dict[str, Any] = {}
        messages: list[dict[str, Any]] = []
        for hook in self._hooks:
            if self._is_cancelled(request.execution_id):
                return None
            try:
                patch = await self._hook(hook, context)
            except BaseException as error:
                if _closing(error):
                    raise
                record = redact_error(ErrorRecord.from_exception(error))
                return InputBuildFailed(request.execution_id, request.sequence, record)
            if patch is not None:
                patched.update(patch.model_settings)
                messages.extend(
                    cast("dict[str, Any]", to_json_value(item.to_wire())) for item in patch.messages
                )
        return InputBuilt(request.execution_id, request.sequence, InputPatch(patched, tuple(messages)))

    async def _hook(self, hook: Callable[..., Any], context: LLMInputBuildContext) -> LLMInputPatch | None:
        limit = self._definition.hook_timeout_s
        details = {"hook": name_of(hook)}
        try:
            patch = await off_loop(call_here, hook, context, timeout_s=limit, name="phronomy-hook")
        except TimeoutError:
            raise HookError(
                f"hook {name_of(hook)} did not return within {limit:g} s",
                code="hook_timeout",
                details=details,
            ) from None
        except Exception as error:
            raise HookError(
                f"hook {name_of(hook)} failed: {type(error).__name__}: {safe_message(error)}", details=details
            ) from error
        if patch is not None and not isinstance(patch, LLMInputPatch):
            raise HookError(
                f"hook {name_of(hook)} returned a {type(patch).__name__}; it must return an LLMInputPatch or None",
                details=details,
            )
        return patch

    # --- output ------------------------------------------------------------------------------------------------

    async def filter_output(self, effect: FilterOutput) -> Input | None:
        """Run the output filters."""
        context = self._filter_context(FilterSite.OUTPUT, effect.execution_id, effect.durable_context)
        try:
            text = await self._filter(self._output_filters, effect.text, context)
            if not isinstance(text, str):
                raise FilterError(f"the output filters gave a {type(text).__name__}; an output is text")
            return OutputFiltered(effect.execution_id, clean_text(text))
        except FiltersStopped:
            return None
        except BaseException as error:
            if _closing(error):
                raise
            record = redact_error(ErrorRecord.from_exception(error))
            return OutputFilterFailed(effect.execution_id, record, blocked=_is_block(error))

    # --- filters -----------------------------------------------------------------------------------------------

    def _filter_context(
        self, site: FilterSite, execution_id: str, durable_context: dict[str, Any] | None
    ) -> FilterContext:
        return FilterContext(
            site,
            self._agent_id,
            execution_id,
            copy.deepcopy(durable_context),
            is_cancelled=lambda: self._is_cancelled(execution_id),
        )

    async def _filter(
        self, filters: tuple[Callable[..., Any], ...], value: Any, context: FilterContext
    ) -> Any:
        limit = self._definition.hook_timeout_s
        try:
            return await off_loop(
                run_filters, filters, value, context, timeout_s=limit, name=f"phronomy-{context.site}-filter"
            )
        except TimeoutError:
            raise FilterError(
                f"the {context.site.value} filters did not return within {limit:g} s",
                code="filter_timeout",
                details={"site": context.site.value},
            ) from None


def _is_block(error: BaseException) -> bool:
    """Whether a filter blocked, as opposed to other code that raised such an error."""
    return isinstance(error, FilterBlockError) and "filter" in error.details


def _is_secret(name: str) -> bool:
    return name.lower().replace("-", "_") in SECRET_SETTINGS


def _closing(error: BaseException) -> bool:
    """Whether the present task is being cancelled, as opposed to user code that raised such an error by itself."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
