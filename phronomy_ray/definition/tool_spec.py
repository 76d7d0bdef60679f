"""What a tool declaration compiles to, and the checks that it has passed.

Both ways to declare a tool, `@tool` and a `Tool` class, give their options to `compile_spec`, so a setting means the
same and fails the same in both. The options follow Phronomy's tool DSL; replay, pools and Ray resources are ours.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from phronomy_ray.approvals import ApprovalEvaluationRequest
from phronomy_ray.canonical_json import clean_text, content_hash, dumps, to_json_value
from phronomy_ray.definition.callables import takes
from phronomy_ray.definition.filters import callables_of
from phronomy_ray.definition.pool_names import DEFAULT_POOL, POOL_NAME_RULE, is_pool_name
from phronomy_ray.definition.schema import Parameters
from phronomy_ray.definition.tool_names import check_tool_name
from phronomy_ray.definition.tool_options import (
    ExecutionMode,
    OnError,
    OnSchemaError,
    RayOptions,
    Replay,
    ToolOrigin,
    is_number,
    is_whole,
    ray_options_of,
)
from phronomy_ray.errors import ConfigurationError, SerializationError

DEFAULT_TIMEOUT_S = 60.0
#: How alike a class attribute must be to an option to be taken for a misspelt one.
_MISSPELT = 0.9

#: Whether a human must agree to a call, by what is known of it.
ApprovalRule: TypeAlias = Callable[[ApprovalEvaluationRequest], "bool | Awaitable[bool]"]
#: Facts for whoever decides: arguments and invocation context to a JSON mapping, or ``None`` for none.
ApprovalFacts: TypeAlias = Callable[
    [dict[str, Any], "dict[str, Any] | None"],
    "Mapping[str, Any] | Awaitable[Mapping[str, Any] | None] | None",
]


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A compiled tool declaration: values, and the functions that the author gave for it."""

    #: Name that the model sees.
    name: str
    #: What the tool does, for the model.
    description: str
    parameters: Parameters
    execution_mode: ExecutionMode = ExecutionMode.BLOCKING_IO
    replay: Replay = Replay.NEVER
    #: Whether a human must agree to each call, or the rule that says so for one.
    requires_approval: bool | ApprovalRule = False
    approval_facts: ApprovalFacts | None = None
    #: How long a request for approval stays open, in seconds; ``None`` for ever.
    approval_expires_s: float | None = None
    #: What whoever decides is told beside the call: a JSON mapping.
    approval_metadata: Mapping[str, Any] = field(default_factory=dict)
    on_error: OnError = OnError.RAISE
    on_schema_error: OnSchemaError = OnSchemaError.RETURN_ERROR
    #: Limit of one attempt of the body, in seconds.
    timeout_s: float = DEFAULT_TIMEOUT_S
    #: Attempts after a failed first one within one dispatch.
    retries: int = 0
    #: How much of a result the model is shown, in characters; ``None`` for the runtime's limit.
    max_result_chars: int | None = None
    #: Whether a result ends the execution as its output.
    return_direct: bool = False
    #: Functions that a result goes through before it is kept.
    result_filters: tuple[Callable[..., Any], ...] = ()
    #: Pool whose bounds a call counts against.
    pool: str = DEFAULT_POOL
    #: What Ray reserves for a call; ``None`` for what the execution mode needs.
    ray_options: RayOptions | None = None
    #: JSON mapping merged into the definition that the provider is sent.
    provider_options: Mapping[str, Any] = field(default_factory=dict)
    #: Parameter names whose values never reach events, logs or displays.
    redact_params: tuple[str, ...] = ()
    #: Whether the result never reaches events, logs or displays.
    redact_result: bool = False
    #: Version of the tool, for rules and records about it.
    version: str = "1"
    tool_origin: ToolOrigin = ToolOrigin.LOCAL
    #: Hash of `definition`: equal when the model was shown exactly the same.
    shown_hash: str = field(init=False, default="", compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shown_hash", content_hash(dumps(self.definition())))

    def definition(self) -> dict[str, Any]:
        """What the model is shown, in chat-completions form, with the provider options merged in."""
        definition: dict[str, Any] = {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters.schema,
            },
        }
        return _merged(definition, self.provider_options)


#: Options of a declaration, by name, with their defaults; the body gives name, description and parameters otherwise.
OPTION_DEFAULTS: Mapping[str, Any] = {
    "name": "",
    "description": "",
    "parameters": None,
    **{
        item.name: {} if item.default is dataclasses.MISSING else item.default
        for item in dataclasses.fields(ToolSpec)
        if item.init and item.name not in ("name", "description", "parameters")
    },
    "execution_mode": "",
}


def compile_spec(
    *, name: Any, description: Any, parameters: Parameters, execution_mode: Any, options: Mapping[str, Any]
) -> ToolSpec:
    """The spec of one declaration; `options` holds the rest of `OPTION_DEFAULTS`, those left out at their defaults.

    Raises:
        ConfigurationError: an option is unknown or wrong; names the tool and the field.
    """
    tool = check_tool_name(name)
    refuse_unknown(tool, options)
    values = {**OPTION_DEFAULTS, **options}
    try:
        ray_options = ray_options_of(values["ray_options"])
    except ConfigurationError as error:
        raise ConfigurationError(f"tool {tool!r}: {error.message}") from None
    if not isinstance(description, str):
        raise ConfigurationError(f"tool {tool!r}: description must be text, not {description!r}")
    spec = ToolSpec(
        name=tool,
        description=clean_text(description),
        parameters=parameters,
        execution_mode=_member(ExecutionMode, execution_mode, tool, "execution_mode"),
        replay=_member(Replay, values["replay"], tool, "replay"),
        requires_approval=values["requires_approval"],
        approval_facts=values["approval_facts"],
        approval_expires_s=values["approval_expires_s"],
        approval_metadata=_json_mapping(values["approval_metadata"], tool, "approval_metadata"),
        on_error=_member(OnError, values["on_error"], tool, "on_error"),
        on_schema_error=_member(OnSchemaError, values["on_schema_error"], tool, "on_schema_error"),
        timeout_s=values["timeout_s"],
        retries=values["retries"],
        max_result_chars=values["max_result_chars"],
        return_direct=values["return_direct"],
        result_filters=callables_of(
            f"tool {tool!r}", "result_filters", values["result_filters"], arguments=2
        ),
        pool=values["pool"],
        ray_options=ray_options,
        provider_options=_json_mapping(values["provider_options"], tool, "provider_options"),
        redact_params=parameter_names(values["redact_params"], tool),
        redact_result=values["redact_result"],
        version=values["version"],
        tool_origin=_member(ToolOrigin, values["tool_origin"], tool, "tool_origin"),
    )
    _check(spec)
    return spec


def with_name(spec: ToolSpec, name: Any) -> ToolSpec:
    """`spec` under an alias.

    Raises:
        ConfigurationError: the alias is not a legal tool name.
    """
    return dataclasses.replace(spec, name=check_tool_name(name, what="tool alias"))


def options_of(spec: ToolSpec) -> dict[str, Any]:
    """The options that compile to `spec` again."""
    return {name: getattr(spec, name) for name in OPTION_DEFAULTS}


def parameter_names(given: Any, tool: str) -> tuple[str, ...]:
    """`given` as a tuple of parameter names, each once. Raises `ConfigurationError`."""
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(
            f"tool {tool!r}: redact_params must be a list of parameter names, not {given!r}"
        )
    return tuple(dict.fromkeys(given))


def refuse_unknown(tool_name: Any, options: Mapping[str, Any]) -> None:
    """Raise `ConfigurationError` for an option that does not exist."""
    unknown = sorted(set(options) - set(OPTION_DEFAULTS))
    if unknown:
        raise ConfigurationError(
            f"tool {tool_name!r}: unknown option {unknown[0]!r}{_did_you_mean(unknown[0], 0.6)}"
        )


def refuse_misspelt(attributes: Mapping[str, Any], tool_name: Any) -> None:
    """Raise `ConfigurationError` for an attribute that is nearly an option; a class may have others of its own."""
    for attribute, value in attributes.items():
        if attribute.startswith("_") or attribute in OPTION_DEFAULTS or callable(value):
            continue
        hint = _did_you_mean(attribute, _MISSPELT)
        if hint:
            raise ConfigurationError(f"tool {tool_name!r}: unknown attribute {attribute!r}{hint}")


def _did_you_mean(name: str, cutoff: float) -> str:
    close = difflib.get_close_matches(name, list(OPTION_DEFAULTS), n=1, cutoff=cutoff)
    return f"; did you mean {close[0]!r}?" if close else ""


def check_custom(options: Mapping[str, Any], tool_name: Any) -> None:
    """Raise `ConfigurationError` for a tool with its own ``call_async`` whose process would end with the result."""
    mode = options["execution_mode"]
    if mode in (ExecutionMode.CPU_BOUND, ExecutionMode.EXTERNAL_PROCESS):
        raise ConfigurationError(
            f"tool {tool_name!r}: call_async needs execution_mode 'cooperative' or 'blocking_io', not {str(mode)!r}, "
            "whose process ends with the result"
        )
    if options["ray_options"] is not None:
        raise ConfigurationError(
            f"tool {tool_name!r}: ray_options give a call a process of its own, which ends with the result; call_async "
            "needs one that stays"
        )


def _check(spec: ToolSpec) -> None:
    def check(name: str, valid: bool, expected: str) -> None:
        if not valid:
            raise ConfigurationError(
                f"tool {spec.name!r}: {name} must be {expected}, not {getattr(spec, name)!r}"
            )

    for flag in ("redact_result", "return_direct"):
        check(flag, isinstance(getattr(spec, flag), bool), "True or False")
    approval: object = spec.requires_approval
    valid = isinstance(approval, bool) or _takes(approval, 1)
    check("requires_approval", valid, "True, False or a function of the request (a staticmethod in a class)")
    valid = spec.approval_facts is None or _takes(spec.approval_facts, 2)
    check("approval_facts", valid, "a function of arguments and context (a staticmethod in a class)")
    expiry = spec.approval_expires_s
    check(
        "approval_expires_s",
        expiry is None or (is_number(expiry) and expiry > 0),
        "a positive number of seconds or None",
    )
    check("timeout_s", is_number(spec.timeout_s) and spec.timeout_s > 0, "a positive number of seconds")
    check("retries", is_whole(spec.retries) and spec.retries >= 0, "0 or more")
    if spec.retries and spec.replay is Replay.NEVER:
        raise ConfigurationError(
            f"tool {spec.name!r}: retries={spec.retries} needs replay='safe' or 'idempotent', not 'never'"
        )
    limit = spec.max_result_chars
    valid = limit is None or (is_whole(limit) and limit > 0)
    check("max_result_chars", valid, "a positive number of characters or None")
    check("pool", is_pool_name(spec.pool), POOL_NAME_RULE)
    version: object = spec.version
    check("version", isinstance(version, str) and bool(version), "non-empty text")
    if spec.ray_options is not None and spec.execution_mode is ExecutionMode.COOPERATIVE:
        raise ConfigurationError(
            f"tool {spec.name!r}: ray_options need an execution_mode other than 'cooperative', which runs in the agent"
        )
    for name in spec.redact_params:
        if name not in spec.parameters.names:
            raise ConfigurationError(
                f"tool {spec.name!r}: redact_params names {name!r}, which is not a parameter"
            )
    _check_provider_options(spec)


def _check_provider_options(spec: ToolSpec) -> None:
    """Provider options add to a definition; what a tool is called and takes is said in one place only."""
    function = spec.provider_options.get("function", {})
    if not isinstance(function, dict):
        raise ConfigurationError(
            f"tool {spec.name!r}: provider_options['function'] must be a mapping, not {function!r}"
        )
    taken = [key for key in ("type",) if key in spec.provider_options]
    taken += [f"function.{key}" for key in ("name", "description", "parameters") if key in function]
    if taken:
        raise ConfigurationError(
            f"tool {spec.name!r}: provider_options must not set {taken[0]!r}, which the tool itself sets"
        )


def _takes(function: object, count: int) -> bool:
    """Whether `function` is one that takes `count` arguments; a class would be made, not asked."""
    return callable(function) and not isinstance(function, type) and takes(function, count)


def _json_mapping(given: Any, tool: str, name: str) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"tool {tool!r}: {name} must be a JSON mapping, not {given!r}")
    try:
        value = to_json_value(given)
    except SerializationError as error:
        raise ConfigurationError(f"tool {tool!r}: {name} must be a JSON mapping: {error.message}") from None
    assert isinstance(value, dict)
    return value


def _member(kind: type[Any], value: Any, tool: str, name: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(repr(item.value) for item in kind)
        raise ConfigurationError(f"tool {tool!r}: {name} must be one of {allowed}, not {value!r}") from None


def _merged(base: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """`base` with `extra` laid over it, mappings merged at any depth."""
    result = dict(base)
    for key, value in extra.items():
        present = result.get(key)
        if isinstance(present, Mapping) and isinstance(value, Mapping):
            value = _merged(present, value)
        result[key] = value
    return result
