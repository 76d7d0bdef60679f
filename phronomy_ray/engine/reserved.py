"""What makes a start the one that its caller means, beside its id and its input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from phronomy_ray.errors import InvalidInputError, StateConflictError
from phronomy_ray.ids import check_id
from phronomy_ray.kernel.progress import Progress
from phronomy_ray.reservations import check_correlation


@dataclass(frozen=True, slots=True)
class ReservedStart:
    """Conditions of a start.

    Raises:
        InvalidInputError: a value is not what it must be.
    """

    #: The same for every repetition of one start whose answer may have been lost; empty: any start of the id is the same.
    start_id: str = ""
    #: What the execution is a part of.
    correlation: dict[str, Any] | None = None
    #: Seconds until it is cancelled; ``None`` for no limit.
    budget_s: float | None = None

    def __post_init__(self) -> None:
        if self.start_id:
            check_id(self.start_id, "start_id")
        object.__setattr__(self, "correlation", check_correlation(self.correlation))
        budget: object = self.budget_s
        is_number = isinstance(budget, int | float) and not isinstance(budget, bool)
        if budget is not None and not (is_number and math.isfinite(self.budget_s or 0.0)):
            raise InvalidInputError(f"budget_s must be a number of seconds or None, not {budget!r}")

    @property
    def may_wait(self) -> bool:
        """Whether it may wait for its turn, which keeps neither its start nor its correlation."""
        return not self.start_id and self.correlation is None

    def check(self, execution_id: str, stored: Mapping[str, Any]) -> None:
        """Raise `StateConflictError` unless the small state of a stored execution says that it came from this start."""
        progress = Progress.from_wire(dict(stored))
        if self.start_id and progress.start_id != self.start_id:
            raise StateConflictError(
                f"the id {execution_id} is spent: an execution was started under it already",
                details={"execution_id": execution_id},
            )
        if progress.correlation != self.correlation:
            raise StateConflictError(
                f"execution {execution_id} exists with another correlation",
                details={"execution_id": execution_id},
            )


PLAIN_START = ReservedStart()

__all__ = ["PLAIN_START", "ReservedStart"]
