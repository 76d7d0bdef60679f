"""Tools: a decorated function or a class with ``execute``.

```python
@tool(replay="safe")
def read_file(path: str) -> str:
    '''Read a text file.'''
    ...

class SendMail(Tool):
    '''Send a mail.'''
    requires_approval = True
    async def execute(self, to: str, body: str, context: ToolContext) -> str: ...
```

Both compile to a `ToolSpec` when they are made, and a mistake is a `ConfigurationError` then. The declaration items follow
Phronomy's tool DSL; ``replay`` and the idempotency key are ours.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self, overload

from phronomy_ray.definition.callables import is_async_callable, own_docstring, plain_name, target_of
from phronomy_ray.definition.parameters import compile_parameters
from phronomy_ray.definition.pool_names import DEFAULT_POOL
from phronomy_ray.definition.tool_names import check_tool_name, derive_tool_name, is_tool_name, snake_case
from phronomy_ray.definition.tool_options import (
    ExecutionMode,
    OnError,
    OnSchemaError,
    RayOptions,
    Replay,
    ToolOrigin,
    is_number,
    is_whole,
)
from phronomy_ray.definition.tool_spec import (
    DEFAULT_TIMEOUT_S,
    OPTION_DEFAULTS,
    ApprovalFacts,
    ApprovalRule,
    ToolSpec,
    check_custom,
    compile_spec,
    options_of,
    parameter_names,
    refuse_misspelt,
    refuse_unknown,
    with_name,
)
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.tool_calls import ToolContext

__all__ = [
    "DEFAULT_TIMEOUT_S",
    "ExecutionMode",
    "FunctionTool",
    "OnError",
    "OnSchemaError",
    "RayOptions",
    "Replay",
    "Tool",
    "ToolCompletion",
    "ToolOrigin",
    "ToolSpec",
    "derive_tool_name",
    "is_number",
    "is_tool_name",
    "is_whole",
    "tool",
    "with_name",
]


@dataclass(frozen=True, slots=True)
class ToolCompletion:
    """What a `Tool.call_async` may give when its work outlives its result."""

    #: Gives the result; the call has its outcome then.
    result: Awaitable[Any]
    #: Ends when nothing of the work runs any more. What it gives has no effect, what it raises is logged by its class. Never
    #: cancelled by us.
    finished: Awaitable[Any]


class Tool:
    """Base of tools written as a class: set the attributes and write ``execute``.

    Attributes are inherited like all class attributes; ``redact_params`` of all bases add up.
    """

    #: Name that the model sees; derived from the class name (snake case, without a trailing ``_tool``) when empty.
    name: ClassVar[str] = ""
    #: What the tool does; the docstring's text when empty.
    description: ClassVar[str] = ""
    #: ``None`` for the type hints of ``execute``; or a pydantic model, or a JSON Schema (draft 2020-12) of an object.
    parameters: ClassVar[Any] = None
    #: ``cooperative``, ``blocking_io``, ``cpu_bound`` or ``external_process``; by default cooperative for an async body and
    #: blocking_io for a plain one.
    execution_mode: ClassVar[str] = ""
    #: ``safe``, ``idempotent`` or ``never``.
    replay: ClassVar[str] = Replay.NEVER
    #: Whether a human must agree to each call, or a function of an `ApprovalEvaluationRequest` that says so.
    requires_approval: ClassVar[bool | ApprovalRule] = False
    #: Function of arguments and invocation context that gives a JSON mapping for whoever decides.
    approval_facts: ClassVar[ApprovalFacts | None] = None
    #: How long a request for approval stays open, in seconds; ``None`` for ever.
    approval_expires_s: ClassVar[float | None] = None
    #: JSON mapping for whoever decides.
    approval_metadata: ClassVar[Mapping[str, Any]] = {}
    #: ``raise`` or ``suppress``.
    on_error: ClassVar[str] = OnError.RAISE
    #: ``return_error``, ``raise`` or ``coerce``.
    on_schema_error: ClassVar[str] = OnSchemaError.RETURN_ERROR
    #: Limit of one attempt, in seconds.
    timeout_s: ClassVar[float] = DEFAULT_TIMEOUT_S
    #: Attempts after a failed first one; only with a replay rule that allows it.
    retries: ClassVar[int] = 0
    #: How much of a result the model is shown, in characters; ``None`` for the runtime's limit.
    max_result_chars: ClassVar[int | None] = None
    #: Whether a result ends the execution as its output.
    return_direct: ClassVar[bool] = False
    #: Functions that a result goes through before it is kept.
    result_filters: ClassVar[Iterable[Callable[..., Any]]] = ()
    #: Pool whose bounds a call counts against.
    pool: ClassVar[str] = DEFAULT_POOL
    #: What Ray reserves for a call: `RayOptions`, or a mapping of its fields.
    ray_options: ClassVar[RayOptions | Mapping[str, Any] | None] = None
    #: JSON mapping merged into the definition that the provider is sent, such as ``{"function": {"strict": True}}``.
    provider_options: ClassVar[Mapping[str, Any]] = {}
    #: Parameters whose values are hidden in events, logs and displays; inherited ones stay.
    redact_params: ClassVar[Iterable[str]] = ()
    #: Hide the result in events, logs and displays.
    redact_result: ClassVar[bool] = False
    #: Version of the tool, for rules and records about it.
    version: ClassVar[str] = "1"
    #: ``local``, ``mcp`` or ``agent``.
    tool_origin: ClassVar[str] = ToolOrigin.LOCAL

    #: Of the class; an instance made by `with_options` has its own.
    _spec: ToolSpec | None = None

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        tool_name = cls.name or cls.__name__
        refuse_misspelt(vars(cls), tool_name)
        inherited = [
            name
            for base in cls.__mro__
            for name in parameter_names(base.__dict__.get("redact_params", ()), tool_name)
        ]
        cls.redact_params = tuple(dict.fromkeys(inherited))
        cls._spec = None
        has_body = cls.execute is not Tool.execute or cls.call_async is not Tool.call_async
        if has_body and not abstract:
            cls._spec = _compile_class(cls)

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """The body; override it, plain or ``async``, with typed parameters."""
        raise NotImplementedError(f"{type(self).__name__} must define execute(self, ...)")

    @property
    def spec(self) -> ToolSpec:
        """The compiled declaration.

        Raises:
            ConfigurationError: the class has no ``execute``.
        """
        if self._spec is None:
            raise ConfigurationError(f"{type(self).__name__} must define execute(self, ...)")
        return self._spec

    def __repr__(self) -> str:
        return super().__repr__() if self._spec is None else f"<tool {self._spec.name!r}>"

    def body(self, arguments: dict[str, Any]) -> Any:
        """Call the body with bound arguments; the result may be awaitable."""
        return self.execute(**arguments)

    def call_async(self, arguments: dict[str, Any], context: ToolContext) -> Awaitable[Any] | ToolCompletion:
        """Run one call in a way of your own; override it, plain or ``async``.

        `arguments` are bound as for the body, without the context. Return an awaitable of the result, or a `ToolCompletion`
        when the work goes on behind the result. The result is encoded, cut and filtered like any other, once; the tool's
        timeout holds for it, and a cancelled call has its awaitable cancelled. Without an ``execute`` beside it the tool must
        declare ``parameters``. Follows Phronomy's custom completions.
        """
        raise NotImplementedError(f"{type(self).__name__} has no call_async of its own; its body is execute")

    def with_options(self, **changes: Any) -> Self:
        """A copy of this tool with some options changed and all others kept; hidden parameters add up.

        Raises:
            ConfigurationError: as in the declaration itself.
        """
        spec = self.spec
        refuse_unknown(spec.name, changes)
        options = {**options_of(spec), **changes}
        hidden = parameter_names(options["redact_params"], spec.name)
        options["redact_params"] = tuple(dict.fromkeys((*spec.redact_params, *hidden)))
        if type(self).call_async is not Tool.call_async:
            check_custom(options, spec.name)
        changed = copy.copy(self)
        changed._spec = _compile(self._callable(), options, fallback_name=spec.name)
        return changed

    def _callable(self) -> Callable[..., Any]:
        """What is called with the arguments, without ``self``."""
        return self.execute if type(self).execute is not Tool.execute else _takes_all


class FunctionTool(Tool, abstract=True):
    """A tool made from a function by `tool`; calling it calls the function."""

    def __init__(self, function: Callable[..., Any], spec: ToolSpec) -> None:
        self._function = function
        self._spec = spec
        self.__doc__ = own_docstring(function)
        self.__name__ = getattr(target_of(function), "__name__", spec.name)

    def execute(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    __call__ = execute

    def _callable(self) -> Callable[..., Any]:
        return self._function


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    parameters: Any = None,
    execution_mode: str = "",
    replay: Literal["safe", "idempotent", "never"] = "never",
    requires_approval: bool | ApprovalRule = False,
    approval_facts: ApprovalFacts | None = None,
    approval_expires_s: float | None = None,
    approval_metadata: Mapping[str, Any] = ...,
    on_error: Literal["raise", "suppress"] = "raise",
    on_schema_error: Literal["return_error", "raise", "coerce"] = "return_error",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int = 0,
    max_result_chars: int | None = None,
    return_direct: bool = False,
    result_filters: Iterable[Callable[..., Any]] = (),
    pool: str = DEFAULT_POOL,
    ray_options: RayOptions | Mapping[str, Any] | None = None,
    provider_options: Mapping[str, Any] = ...,
    redact_params: Iterable[str] = (),
    redact_result: bool = False,
    version: str = "1",
    tool_origin: Literal["local", "mcp", "agent"] = "local",
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function: schema from its type hints, descriptions from its docstring.

    The options are the attributes of `Tool`. Given a `Tool` (or its class) instead of a function, the result is a copy with
    these options changed and all its others kept.

    Raises:
        ConfigurationError: a wrong option or a signature that has no JSON Schema; names the tool and the field.
    """

    def decorate(target: Any) -> Tool:
        if isinstance(target, type) and issubclass(target, Tool):
            target = target()
        if isinstance(target, Tool):
            return target.with_options(**options)
        if not callable(target):
            raise ConfigurationError(f"@tool takes a function, not {target!r}")
        refuse_unknown(options.get("name") or plain_name(target), options)
        spec = _compile(target, {**OPTION_DEFAULTS, **options}, fallback_name=_derived_name(target, options))
        return FunctionTool(target, spec)

    return decorate if function is None else decorate(function)


def _takes_all(**arguments: Any) -> None:
    """Signature of a tool that has no body but its own ``call_async``."""


def _compile_class(cls: type[Tool]) -> ToolSpec:
    options = {key: getattr(cls, key) for key in OPTION_DEFAULTS}
    if not options["description"]:
        documented = [base.__dict__.get("__doc__") for base in cls.__mro__[: cls.__mro__.index(Tool)]]
        options["description"] = inspect.cleandoc(next(filter(None, documented), ""))
    fallback = derive_tool_name(snake_case(cls.__name__).removesuffix("_tool"))
    if cls.call_async is not Tool.call_async:
        options["execution_mode"] = options["execution_mode"] or ExecutionMode.COOPERATIVE
        check_custom(options, options["name"] or fallback)
        if cls.execute is Tool.execute:
            return _compile(_takes_all, options, fallback_name=fallback)
    is_plain = isinstance(inspect.getattr_static(cls, "execute"), staticmethod | classmethod)
    return _compile(cls.execute, options, fallback_name=fallback, skip_self=not is_plain)


def _compile(
    function: Callable[..., Any], options: Mapping[str, Any], *, fallback_name: str, skip_self: bool = False
) -> ToolSpec:
    name = check_tool_name(options["name"] or fallback_name)
    for kind, check in (
        ("an async generator", inspect.isasyncgenfunction),
        ("a generator", inspect.isgeneratorfunction),
    ):
        if check(target_of(function)):
            raise ConfigurationError(f"tool {name!r}: the body is {kind}; return one value (a list, a text)")
    parameters = compile_parameters(options["parameters"], function, tool=name, skip_self=skip_self)
    mode = options["execution_mode"] or ("cooperative" if is_async_callable(function) else "blocking_io")
    return compile_spec(
        name=name,
        description=options["description"] or _description(function),
        parameters=parameters,
        execution_mode=mode,
        options=options,
    )


def _derived_name(function: Callable[..., Any], options: Mapping[str, Any]) -> str:
    name = plain_name(function)
    if name == type(function).__name__:  # an object with ``__call__`` goes by its class
        name = snake_case(name)
    if not options.get("name") and name in ("", "<lambda>"):
        raise ConfigurationError(f"tool name {name!r} is not allowed: give this function one with name=...")
    return derive_tool_name(name)


def _description(function: Callable[..., Any]) -> str:
    from docstring_parser import parse

    parsed = parse(inspect.cleandoc(own_docstring(function)))
    parts = [part for part in (parsed.short_description, parsed.long_description) if part]
    return "\n\n".join(parts)
