"""What can be read off a callable, whatever kind it is: function, method, `functools.partial`, object with ``__call__``.

Nothing here decides whether a call is awaited: that is decided by what the call returned.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def target_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function behind `function`: that of a partial, the ``__call__`` of an object; hints and docstring are there."""
    while isinstance(function, functools.partial):
        function = function.func
    if inspect.isroutine(function) or inspect.isclass(function):
        return function
    return type(function).__call__ if not hasattr(function, "__wrapped__") else function


def fixed_arguments(function: Callable[..., Any]) -> frozenset[str]:
    """Keyword arguments that a partial has fixed: nobody else may set them."""
    fixed: set[str] = set()
    while isinstance(function, functools.partial):
        fixed.update(function.keywords)
        function = function.func
    return frozenset(fixed)


def takes(function: Callable[..., Any], count: int) -> bool:
    """Whether `function` can be called with `count` positional arguments, as far as its signature tells."""
    try:
        inspect.signature(function).bind(*(object() for _ in range(count)))
    except TypeError:
        return False
    except ValueError:  # a builtin without a signature
        return True
    return True


def is_async_callable(function: Callable[..., Any]) -> bool:
    """Whether `function` is seen to be async: a guess, good for a default only."""
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(target_of(function))


def plain_name(function: Callable[..., Any]) -> str:
    """The name that `function` goes by; of an object with ``__call__`` that of its class."""
    while isinstance(function, functools.partial):
        function = function.func
    name = getattr(function, "__name__", "")
    return name if isinstance(name, str) and name else type(function).__name__


def own_docstring(function: Callable[..., Any]) -> str:
    """The docstring that its author wrote for `function`, or none."""
    while isinstance(function, functools.partial):
        function = function.func
    # not inspect.getdoc: it would find the docstring of a base class, which is none of the function's
    if inspect.isroutine(function) or hasattr(function, "__wrapped__"):
        return function.__doc__ or ""
    return type(function).__call__.__doc__ or type(function).__doc__ or ""
