"""The words in which a tool is declared: enumerations and the resources of its worker."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.tool_calls import ToolOrigin

__all__ = [
    "ExecutionMode",
    "OnError",
    "OnSchemaError",
    "RayOptions",
    "Replay",
    "ToolOrigin",
    "is_number",
    "is_whole",
    "ray_options_of",
]


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
    #: In a Ray task of its own, with real resources; killed at its timeout.
    CPU_BOUND = "cpu_bound"
    #: A Ray task that starts child processes; their process groups are killed at its timeout.
    EXTERNAL_PROCESS = "external_process"


class OnError(enum.StrEnum):
    """What a raising body does to the execution."""

    #: Its siblings finish, every outcome is journaled, then the execution fails with `ToolError`.
    RAISE = "raise"
    #: The model is told.
    SUPPRESS = "suppress"


class OnSchemaError(enum.StrEnum):
    """What arguments that do not fit the schema do to the call."""

    #: The model is told what is wrong and where.
    RETURN_ERROR = "return_error"
    #: As `OnError.RAISE`: the siblings run, then the execution fails with `ToolError`.
    RAISE = "raise"
    #: What can be read as the wanted type is (``"3"`` for an integer); the rest is as `RETURN_ERROR`.
    COERCE = "coerce"


#: Resources that have an argument of their own.
_OWN_ARGUMENT = {
    "CPU": "num_cpus",
    "GPU": "num_gpus",
    "memory": "memory_bytes",
    "object_store_memory": "memory_bytes",
}


@dataclass(frozen=True, slots=True)
class RayOptions:
    """Resources that Ray reserves for one call of a tool; ``None`` leaves a field to the tool's execution mode.

    Raises `ConfigurationError` naming the field; the value is not made.
    """

    #: CPUs, also parts of one.
    num_cpus: float | None = None
    #: GPUs; parts of one, or a whole number.
    num_gpus: float | None = None
    #: Memory that is reserved, in bytes; not a limit.
    memory_bytes: int | None = None
    #: Custom resources by name.
    resources: Mapping[str, float] = field(default_factory=dict)
    #: Node labels that must match, in Ray's notation.
    label_selector: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def check(name: str, valid: bool, expected: str) -> None:
            if not valid:
                raise ConfigurationError(
                    f"ray_options: {name} must be {expected}, not {getattr(self, name)!r}"
                )

        for name in ("num_cpus", "num_gpus"):
            value = getattr(self, name)
            check(name, value is None or (is_number(value) and value >= 0), "a number of 0 or more")
        gpus = self.num_gpus
        check("num_gpus", gpus is None or gpus <= 1 or gpus == int(gpus), "a whole number when above 1")
        memory = self.memory_bytes
        check("memory_bytes", memory is None or (is_whole(memory) and memory > 0), "a positive whole number")
        resources: object = self.resources
        valid = isinstance(resources, Mapping) and all(
            isinstance(key, str) and key and is_number(amount) and amount >= 0
            for key, amount in resources.items()
        )
        check("resources", valid, "a mapping of names to numbers of 0 or more")
        for key, argument in _OWN_ARGUMENT.items():
            if key in self.resources:
                raise ConfigurationError(f"ray_options: resources must not hold {key!r}; use {argument}")
        labels: object = self.label_selector
        valid = isinstance(labels, Mapping) and all(
            isinstance(key, str) and key and isinstance(value, str) for key, value in labels.items()
        )
        check("label_selector", valid, "a mapping of label names to text")
        # copies: whoever gave the mappings may go on changing them
        object.__setattr__(self, "resources", dict(self.resources))
        object.__setattr__(self, "label_selector", dict(self.label_selector))

    def __hash__(self) -> int:
        return hash(
            (
                self.num_cpus,
                self.num_gpus,
                self.memory_bytes,
                frozenset(self.resources.items()),
                frozenset(self.label_selector.items()),
            )
        )


def ray_options_of(given: Any) -> RayOptions | None:
    """`given` as `RayOptions`, also from a mapping of its fields.

    Raises:
        ConfigurationError: neither, or a field is wrong or unknown.
    """
    if given is None or isinstance(given, RayOptions):
        return given
    if not isinstance(given, Mapping):
        raise ConfigurationError(f"ray_options must be RayOptions or a mapping of its fields, not {given!r}")
    unknown = [key for key in given if key not in RayOptions.__dataclass_fields__]
    if unknown:
        known = ", ".join(RayOptions.__dataclass_fields__)
        raise ConfigurationError(f"ray_options has no field {unknown[0]!r}; there are {known}")
    return RayOptions(**given)


def is_whole(value: object) -> bool:
    """Whether `value` is an int and no bool."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: object) -> bool:
    """Whether `value` is an int or a finite float, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
