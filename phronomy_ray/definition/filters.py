"""Filters: functions that look at a value on its way in or out, and pass it on, change it or block it.

```python
def no_card_numbers(value: Any, context: FilterContext) -> Any:
    if CARD.search(str(value)):
        block("a card number")
    return value

class Clerk(Agent):
    input_filters = [no_card_numbers]
    output_filters = [MaskNames]        # a class is instantiated once
    result_filters = [no_card_numbers]  # on what the agent's tools return
```

A filter is plain or async. It runs off the agent's loop, once for each value: the raw input before anything else sees it, the
final output before anybody is given it, a tool's return value before it is encoded. Follows Phronomy's filters; there is
no site for knowledge or context, as there.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NoReturn, Protocol, runtime_checkable

from phronomy_ray.definition.callables import takes
from phronomy_ray.errors import ConfigurationError, FilterBlockError, safe_message


class FilterSite(StrEnum):
    """Where a filter stands."""

    INPUT = "input"
    OUTPUT = "output"
    RESULT = "result"


@dataclass(frozen=True, slots=True)
class FilterContext:
    """What a filter may know of the value that it is given."""

    site: FilterSite
    agent_id: str
    execution_id: str
    #: A copy of the execution's durable context; ``None`` when there was none.
    durable_context: dict[str, Any] | None = None
    #: Of a result filter: the tool's name as the model used it, and our id of the call.
    tool_name: str = ""
    tool_call_id: str = ""
    #: Whether the execution has been cancelled; cheap, may be polled by a slow filter.
    is_cancelled: Callable[[], bool] = field(default=lambda: False, compare=False, repr=False)


@runtime_checkable
class Filter(Protocol):
    """Anything that is called with a value and its context, plain or async."""

    def __call__(self, value: Any, context: FilterContext) -> Any:
        """The value, or another one in its place. Raises `FilterBlockError` (see `block`) to block it."""
        ...


def block(reason: str) -> NoReturn:
    """Block the value that the filter was given. Raises `FilterBlockError` with `reason`, which callers are shown."""
    raise FilterBlockError(reason)


def name_of(item: object) -> str:
    """A filter's or hook's name for errors and displays."""
    named = item if inspect.isroutine(item) or isinstance(item, type) else type(item)
    name = getattr(named, "__qualname__", type(item).__qualname__)
    return f"{getattr(named, '__module__', '?')}:{name}"


def callables_of(
    owner: str, field_name: str, given: object, *, arguments: int
) -> tuple[Callable[..., Any], ...]:
    """The filters or hooks that `owner` lists in `field_name`: functions, instances, or classes to be instantiated.

    Each stands once, at its first place.

    Raises:
        ConfigurationError: not a list, or an item that cannot be called with so many `arguments`.
    """
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise ConfigurationError(f"{owner}: {field_name} must be a list, not {given!r}")
    found: dict[int, Any] = {}
    for item in given:
        found.setdefault(id(item), item)
    return tuple(_callable(owner, field_name, item, arguments) for item in found.values())


def inherited(cls: type, field_name: str) -> list[Any]:
    """Items that `cls` and its bases list in `field_name`, those of the bases first: a subclass adds and drops none.

    Raises:
        ConfigurationError: one of them is no list.
    """
    items: list[Any] = []
    for base in reversed(cls.__mro__):
        own = base.__dict__.get(field_name, ())
        if isinstance(own, str | bytes) or not isinstance(own, Sequence):
            raise ConfigurationError(f"{base.__name__}: {field_name} must be a list, not {own!r}")
        items.extend(own)
    return items


def _callable(owner: str, field_name: str, item: Any, arguments: int) -> Callable[..., Any]:
    if isinstance(item, type):
        try:
            item = item()
        except Exception as error:
            raise ConfigurationError(
                f"{owner}: {field_name}: {name_of(item)} cannot be made without arguments ({safe_message(error)}); give an "
                "instance"
            ) from error
    if not callable(item):
        raise ConfigurationError(f"{owner}: {field_name}: {item!r} cannot be called")
    if not takes(item, arguments):
        what = "a value and its context" if arguments == 2 else "one context"
        raise ConfigurationError(f"{owner}: {field_name}: {name_of(item)} must take {what}")
    called: Callable[..., Any] = item
    return called
