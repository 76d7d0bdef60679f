"""Tools: a decorated function or a class with ``execute``, and what both compile to.

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

The declaration items follow Phronomy's tool DSL; ``replay`` and the idempotency key are ours.
"""

from __future__ import annotations

import enum
import inspect
import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, cast, overload

from phronomy_ray.definition.schema import Parameters, parameters_of
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.tool_results import DEFAULT_SHOWN_CHARS

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
DEFAULT_TIMEOUT_S = 60.0


class Replay(enum.StrEnum):
    """What may be done with a call whose outcome is unknown after a crash."""

    #: Run it again.
    SAFE = "safe"
    #: Run it again with the same idempotency key.
    IDEMPOTENT = "idempotent"
    #: Ask a human.
    NEVER = "never"


class ExecutionMode(enum.StrEnum):
    """Where a tool's body runs."""

    #: On the agent's event loop: short async functions only.
    COOPERATIVE = "cooperative"
    #: On threads of Ray tasks.
    BLOCKING_IO = "blocking_io"


class OnError(enum.StrEnum):
    """What a raising body does to the execution."""

    #: Its siblings finish, every outcome is journaled, then the execution fails with `ToolError`.
    RAISE = "raise"
    #: The model is told.
    SUPPRESS = "suppress"


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A compiled tool declaration: values only."""

    name: str
    description: str
    parameters: Parameters
    execution_mode: ExecutionMode
    replay: Replay
    requires_approval: bool
    on_error: OnError
    #: Limit of one attempt of the body, in seconds.
    timeout_s: float
    #: Attempts after a failed first one within one dispatch.
    retries: int
    #: How much of a result the model is shown, in characters.
    max_result_chars: int
    #: Parameter names whose values never reach events, logs or displays.
    redact_params: tuple[str, ...]
    #: Whether the result never reaches events, logs or displays.
    redact_result: bool

    def definition(self) -> dict[str, Any]:
        """What the model is shown, in chat-completions form."""
        return {
            "type": "function",
            "function": {
                "name": self.name,
                "description": self.description,
                "parameters": self.parameters.schema,
            },
        }


def _parameter_names(given: Any, tool_name: str) -> tuple[str, ...]:
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise ConfigurationError(
            f"tool {tool_name!r}: redact_params must be a list of parameter names, not {given!r}"
        )
    return tuple(given)


class Tool:
    """Base of tools written as a class: set the attributes and write ``execute``."""

    #: Name that the model sees; derived from the class name (snake case, without a trailing ``_tool``) when empty.
    name: ClassVar[str] = ""
    #: What the tool does; the docstring's text when empty.
    description: ClassVar[str] = ""
    #: ``cooperative`` or ``blocking_io``; by default cooperative for an async body and blocking_io for a plain one.
    execution_mode: ClassVar[str] = ""
    #: ``safe``, ``idempotent`` or ``never``.
    replay: ClassVar[str] = Replay.NEVER
    #: Whether a human must agree to each call.
    requires_approval: ClassVar[bool] = False
    #: ``raise`` or ``suppress``.
    on_error: ClassVar[str] = OnError.RAISE
    #: Limit of one attempt, in seconds.
    timeout_s: ClassVar[float] = DEFAULT_TIMEOUT_S
    #: Attempts after a failed first one; only with a replay rule that allows it.
    retries: ClassVar[int] = 0
    #: How much of a result the model is shown, in characters.
    max_result_chars: ClassVar[int] = DEFAULT_SHOWN_CHARS
    #: Parameters whose values are hidden in events, logs and displays; inherited ones stay.
    redact_params: ClassVar[tuple[str, ...]] = ()
    #: Hide the result in events, logs and displays.
    redact_result: ClassVar[bool] = False

    _spec: ClassVar[ToolSpec | None] = None

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        tool_name = cls.name or cls.__name__
        inherited = [
            name
            for base in cls.__mro__
            for name in _parameter_names(base.__dict__.get("redact_params", ()), tool_name)
        ]
        cls.redact_params = tuple(dict.fromkeys(inherited))
        cls._spec = None
        if cls.execute is not Tool.execute and not abstract:
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

    def body(self, arguments: dict[str, Any]) -> Any:
        """Call the body with bound arguments; the result may be awaitable."""
        return self.execute(**arguments)


class FunctionTool(Tool, abstract=True):
    """A tool made from a function by `tool`; calling it calls the function."""

    def __init__(self, function: Callable[..., Any], spec: ToolSpec) -> None:
        self._function = function
        self._function_spec = spec
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", spec.name)

    @property
    def spec(self) -> ToolSpec:
        """The compiled declaration."""
        return self._function_spec

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function."""
        return self._function(*args, **kwargs)

    __call__ = execute


@overload
def tool(function: Callable[..., Any], /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str = "",
    description: str = "",
    execution_mode: str = "",
    replay: Literal["safe", "idempotent", "never"] = "never",
    requires_approval: bool = False,
    on_error: Literal["raise", "suppress"] = "raise",
    timeout_s: float = DEFAULT_TIMEOUT_S,
    retries: int = 0,
    max_result_chars: int = DEFAULT_SHOWN_CHARS,
    redact_params: Iterable[str] = (),
    redact_result: bool = False,
) -> Callable[[Callable[..., Any]], FunctionTool]: ...


def tool(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a tool of a function: schema from its type hints, descriptions from its docstring.

    The options are the attributes of `Tool`.

    Raises:
        ConfigurationError: a wrong option or a signature that has no JSON Schema; names the tool and the field.
    """

    def decorate(target: Callable[..., Any]) -> FunctionTool:
        if not callable(target):
            raise ConfigurationError(f"@tool takes a function, not {target!r}")
        name = options.get("name") or getattr(target, "__name__", "")
        return FunctionTool(target, _compile(target, name, options))

    return decorate if function is None else decorate(function)


def _compile_class(cls: type[Tool]) -> ToolSpec:
    snake = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
    name = cls.name or snake.removesuffix("_tool")
    options = {key: getattr(cls, key) for key in _OPTIONS}
    if not options["description"]:
        documented = [base.__dict__.get("__doc__") for base in cls.__mro__[: cls.__mro__.index(Tool)]]
        options["description"] = inspect.cleandoc(next(filter(None, documented), ""))
    is_plain = isinstance(inspect.getattr_static(cls, "execute"), staticmethod | classmethod)
    return _compile(cls.execute, name, options, skip_self=not is_plain)


def _compile(
    function: Callable[..., Any],
    name: Any,
    options: dict[str, Any],
    *,
    skip_self: bool = False,
) -> ToolSpec:
    unknown = set(options) - set(_OPTIONS) - {"name"}
    if unknown:
        raise ConfigurationError(f"tool {name!r}: unknown option {sorted(unknown)[0]!r}")
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ConfigurationError(
            f"tool name {name!r} is not allowed: 1 to 64 letters, digits, '_' or '-' (give name=...)"
        )
    parameters = parameters_of(function, tool=name, skip_self=skip_self)
    is_async = inspect.iscoroutinefunction(function)
    mode = options.get("execution_mode") or ("cooperative" if is_async else "blocking_io")
    redact = _parameter_names(options.get("redact_params") or (), name)
    for field in redact:
        if field not in parameters.model.model_fields:
            raise ConfigurationError(
                f"tool {name!r}: redact_params names {field!r}, which is not a parameter"
            )
    spec = ToolSpec(
        name=name,
        description=options.get("description") or _description(function),
        parameters=parameters,
        execution_mode=_member(ExecutionMode, mode, name, "execution_mode"),
        replay=_member(Replay, options.get("replay", Replay.NEVER), name, "replay"),
        requires_approval=options.get("requires_approval", False),
        on_error=_member(OnError, options.get("on_error", OnError.RAISE), name, "on_error"),
        timeout_s=options.get("timeout_s", DEFAULT_TIMEOUT_S),
        retries=options.get("retries", 0),
        max_result_chars=options.get("max_result_chars", DEFAULT_SHOWN_CHARS),
        redact_params=redact,
        redact_result=options.get("redact_result", False),
    )
    return _check(spec)


def _check(spec: ToolSpec) -> ToolSpec:
    def check(field: str, valid: bool, expected: str) -> None:
        if not valid:
            given = getattr(spec, field)
            raise ConfigurationError(f"tool {spec.name!r}: {field} must be {expected}, not {given!r}")

    check("description", isinstance(cast("object", spec.description), str), "text")
    check("redact_result", isinstance(cast("object", spec.redact_result), bool), "True or False")
    check("requires_approval", isinstance(spec.requires_approval, bool), "True or False")
    check("timeout_s", is_number(spec.timeout_s) and spec.timeout_s > 0, "a positive number of seconds")
    check("retries", is_whole(spec.retries) and spec.retries >= 0, "0 or more")
    if spec.retries and spec.replay is Replay.NEVER:
        raise ConfigurationError(
            f"tool {spec.name!r}: retries={spec.retries} needs replay='safe' or 'idempotent', not 'never'"
        )
    limit = spec.max_result_chars
    check("max_result_chars", is_whole(limit) and limit > 0, "a positive number of characters")
    return spec


def is_whole(value: object) -> bool:
    """Whether `value` is an int and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether `value` is an int or a finite float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def is_tool_name(name: object) -> bool:
    """Whether providers accept `name` as a tool's name."""
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def with_name(spec: ToolSpec, name: Any) -> ToolSpec:
    """`spec` under an alias.

    Raises:
        ConfigurationError: the alias is not a legal tool name.
    """
    if not (isinstance(name, str) and _NAME.fullmatch(name)):
        raise ConfigurationError(f"tool alias {name!r} is not allowed: 1 to 64 letters, digits, '_' or '-'")
    return replace(spec, name=name)


def _description(function: Callable[..., Any]) -> str:
    from docstring_parser import parse

    # not inspect.getdoc: it would find the docstring of `Tool.execute`, which is none of the tool's
    parsed = parse(inspect.cleandoc(function.__doc__ or ""))
    parts = [part for part in (parsed.short_description, parsed.long_description) if part]
    return "\n\n".join(parts)


def _member(kind: type[Any], value: Any, name: str, field: str) -> Any:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(repr(item.value) for item in kind)
        raise ConfigurationError(f"tool {name!r}: {field} must be one of {allowed}, not {value!r}") from None


_OPTIONS = (
    "description",
    "execution_mode",
    "replay",
    "requires_approval",
    "on_error",
    "timeout_s",
    "retries",
    "max_result_chars",
    "redact_params",
    "redact_result",
)
