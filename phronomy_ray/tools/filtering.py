"""Running filters one after the other, on the present thread; see `phronomy_ray.definition.filters`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from phronomy_ray.definition.filters import FilterContext, FilterSite, name_of
from phronomy_ray.errors import CancellationError, FilterBlockError, FilterError, safe_message
from phronomy_ray.tools.off_loop import call_here


class FiltersStopped(CancellationError):
    """Not a failure: the execution was cancelled."""


def run_filters(filters: Sequence[Callable[..., Any]], value: Any, context: FilterContext) -> Any:
    """`value` as the last filter gives it.

    Raises:
        FilterBlockError: a filter blocked it; the details name site and filter.
        FilterError: a filter raised anything else, or gave nothing back where there must be something.
        FiltersStopped: the execution was cancelled before the next filter.
    """
    for item in filters:
        if context.is_cancelled():
            raise FiltersStopped("cancelled before the next filter")
        details = {"site": context.site.value, "filter": name_of(item)}
        try:
            value = call_here(item, value, context)
        except FilterBlockError as error:
            raise FilterBlockError(error.message, details={**error.details, **details}) from error
        except BaseException as error:
            raise FilterError(
                f"{context.site.value} filter {name_of(item)} failed: {type(error).__name__}: {safe_message(error)}",
                details=details,
            ) from error
        if value is None and context.site is not FilterSite.RESULT:
            raise FilterError(
                f"{context.site.value} filter {name_of(item)} returned None; it must return the value",
                details=details,
            )
    return value
