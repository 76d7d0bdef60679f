"""What may cross to a worker: values, and never our own live objects.

A runtime, handle, engine, store or executor holds connections, loops and locks of its process. Pickled along by accident, in
the closure of a tool or in a field of its instance, it would be a second, broken one over there, or an error deep inside
pickle that names nothing. So such classes carry `WorkerInputRestricted`, and `check_worker_input` looks for them wherever a
value can hide them: keys and values, items, fields, and what a callable carries with it. Follows Phronomy's marker.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from phronomy_ray.errors import ConfigurationError, safe_message


class WorkerInputRestricted:
    """Marks a class whose instances never cross to a worker; no methods, and no room in slotted classes."""

    __slots__ = ()


#: Looked at no further: they hold nothing.
_LEAVES = (str, bytes, bytearray, int, float, complex, bool, type(None), types.ModuleType)
#: Attributes of a class that are made anew, or written another way, where it arrives.
_NOT_PICKLED = frozenset({"__dict__", "__weakref__", "__module__", "__doc__", "_abc_impl"})


def check_worker_input(value: Any, *, where: str, pickles: Callable[[Any], object] | None = None) -> None:
    """See that `value` can cross to a worker.

    Objects of an application pass when they pickle: `pickles` writes a value as whoever sends it will (for Ray, cloudpickle's
    ``dumps``), and nothing is tried without it. Values that contain themselves are looked at once.

    Raises:
        ConfigurationError: a live object of ours is in it, or a part does not pickle; the message begins with the path
            of that part, from `where`.
    """
    waiting = deque([(where, value)])
    seen: dict[int, Any] = {}  # holds each value, so that no id is given to another one meanwhile
    while waiting:
        path, item = waiting.popleft()
        if isinstance(item, WorkerInputRestricted):
            raise ConfigurationError(
                f"{path} is a live {type(item).__name__}, which cannot cross to a worker; take what you need of it as "
                "values, or ask for a ToolContext"
            )
        if isinstance(item, _LEAVES) or id(item) in seen:
            continue
        seen[id(item)] = item
        waiting.extend((f"{path}{suffix}", part) for suffix, part in _parts(item))
    if pickles is not None:
        _check_pickles(value, where, pickles)


def _check_pickles(value: Any, where: str, pickles: Callable[[Any], object]) -> None:
    """Raise for the innermost part of `value` that does not pickle."""
    error = _pickle_error(value, pickles)
    if error is None:
        return
    path, item = where, value
    above = {id(item)}
    while True:
        for suffix, part in _parts(item):
            found = _pickle_error(part, pickles) if id(part) not in above else None
            if found is not None:
                path, item, error = f"{path}{suffix}", part, found
                above.add(id(part))
                break
        else:
            raise ConfigurationError(
                f"{path} (a {type(item).__name__}) cannot cross to a worker, since it does not pickle: "
                f"{safe_message(error)}"
            ) from error


def _pickle_error(value: Any, pickles: Callable[[Any], object]) -> Exception | None:
    if isinstance(value, _LEAVES):
        return None
    try:
        pickles(value)
    except Exception as error:  # noqa: BLE001 - a reducer of the application may raise anything
        return error
    return None


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What `value` takes along when it is pickled, each with its step of the path."""
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            yield f" key {key!r:.40}", key
            yield f"[{key!r:.40}]", item
    elif isinstance(value, list | tuple | deque):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif isinstance(value, set | frozenset):
        yield from (("{...}", item) for item in value)
    elif isinstance(value, functools.partial):
        yield ".func", value.func
        yield from ((f".args[{index}]", item) for index, item in enumerate(value.args))
        yield from ((f".keywords[{key!r}]", item) for key, item in value.keywords.items())
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
        yield ".__func__", value.__func__
    elif isinstance(value, staticmethod | classmethod):
        yield "", value.__func__
    elif isinstance(value, property):
        yield from (("", item) for item in (value.fget, value.fset, value.fdel) if item is not None)
    elif isinstance(value, types.FunctionType):
        yield from _parts_of_function(value)
    elif isinstance(value, type):
        yield from _parts_of_class(value)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            if hasattr(value, field.name):
                yield f".{field.name}", getattr(value, field.name)
    elif not _says_what_it_pickles(type(value)):
        yield from ((f".{name}", item) for name, item in list(getattr(value, "__dict__", {}).items()))
        for name in _slots(type(value)):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _parts_of_function(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    if _is_importable(function):
        return  # only its name crosses
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield f" closure {name!r}", cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    yield from ((f" default [{index}]", item) for index, item in enumerate(function.__defaults__ or ()))
    yield from ((f" default {name!r}", item) for name, item in (function.__kwdefaults__ or {}).items())
    for name in _global_names(code):
        if name in function.__globals__:
            yield f" global {name!r}", function.__globals__[name]


def _global_names(code: types.CodeType) -> list[str]:
    """Globals that the code reads; names of attributes, which may be the same words, are not among them."""
    own = [item.argval for item in dis.get_instructions(code) if item.opname == "LOAD_GLOBAL"]
    nested = (item for item in code.co_consts if isinstance(item, types.CodeType))
    return list(dict.fromkeys([*own, *(name for item in nested for name in _global_names(item))]))


def _parts_of_class(cls: type) -> Iterator[tuple[str, Any]]:
    if _is_importable(cls):
        return
    yield from ((f" base {base.__name__}", base) for base in cls.__bases__)
    for name, item in list(vars(cls).items()):
        if name not in _NOT_PICKLED:
            yield f".{name}", item


def _is_importable(thing: Any) -> bool:
    """Whether cloudpickle sends the name of a function or class instead of the thing itself."""
    return thing.__module__ not in ("__main__", None) and "<" not in thing.__qualname__


def _says_what_it_pickles(cls: type) -> bool:
    """Whether a class has a say in what is pickled of it, so that its fields prove nothing."""
    names = ("__reduce__", "__reduce_ex__", "__getstate__")
    return any(getattr(cls, name, None) is not getattr(object, name, None) for name in names)


def _slots(cls: type) -> list[str]:
    names: list[str] = []
    for base in cls.__mro__:
        slots = base.__dict__.get("__slots__", ())
        names += [slots] if isinstance(slots, str) else list(slots)
    return [name for name in names if name not in ("__dict__", "__weakref__")]
