"""The small state of an execution that is not a column: counters, and what its present batch and output need to be gone on with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from phronomy_ray.assembly.binding import Binding
from phronomy_ray.canonical_json import check_format
from phronomy_ray.detachment import Detachment
from phronomy_ray.messages import Usage

STATE_FORMAT = 2


@dataclass(frozen=True, slots=True)
class Progress:
    """The small state of an execution that is not a column: kept as versioned JSON in its row."""

    #: Model calls begun.
    model_calls: int = 0
    #: Empty answers in a row.
    empty_answers: int = 0
    usage: Usage = field(default_factory=Usage)
    #: Whether tokens are streamed to observers.
    stream: bool = False
    #: Hash of the instructions text that this execution uses.
    instructions_hash: str = ""
    #: What its tools were assembled from; ``None`` when they are those of its definition.
    binding: Binding | None = None
    #: Hash of the set of calls that ran in the last batch that ran any, and how often it has run in a row.
    repeated: str = ""
    repeats: int = 0
    #: Calls of the present batch whose result is the output (``return_direct``).
    direct_calls: tuple[str, ...] = ()
    #: Calls of the present batch that do not run, each with the equal one whose outcome it gets.
    twins: tuple[tuple[str, str], ...] = ()
    #: Hash of the output that filters look at, and the model call that said it (empty for a tool's result).
    output_hash: str = ""
    output_call: str = ""
    #: Names of the filters, hooks and policy of its agent's instance when it was admitted (`InstanceOptions.names`).
    options: Mapping[str, list[str]] = field(default_factory=dict)
    #: The one start that it came from, where its caller must know that no other one did.
    start_id: str = ""
    #: What it is a part of (`ReservedExecution.correlation`).
    correlation: dict[str, Any] | None = None
    #: Seconds that its caller has given it; ``None`` for no limit.
    budget_s: float | None = None
    detached: Detachment | None = None

    def to_wire(self) -> dict[str, Any]:
        """JSON form with its format number: the lowest that can hold it, so that an older release reads what it can."""
        needs_newest = (
            self.binding is not None or self.direct_calls or self.twins or self.output_hash or self.options
        )
        wire: dict[str, Any] = {
            "v": STATE_FORMAT if needs_newest else 1,
            "model_calls": self.model_calls,
            "empty_answers": self.empty_answers,
            "usage": self.usage.to_wire(),
            "stream": self.stream,
            "instructions": self.instructions_hash,
            **({"binding": self.binding.to_wire()} if self.binding is not None else {}),
        }
        if self.repeats:
            wire["repeated"] = [self.repeated, self.repeats]
        if self.direct_calls:
            wire["direct"] = list(self.direct_calls)
        if self.twins:
            wire["twins"] = [list(pair) for pair in self.twins]
        if self.output_hash:
            wire["output"] = [self.output_hash, self.output_call]
        if self.options:
            wire["options"] = dict(self.options)
        if self.start_id:
            wire["start"] = self.start_id
        if self.correlation is not None:
            wire["correlation"] = self.correlation
        if self.budget_s is not None:
            wire["budget_s"] = self.budget_s
        if self.detached is not None:
            last = self.detached
            wire["detached"] = [last.detach_id, last.approval_request_id, last.revision]
        return wire

    @classmethod
    def from_wire(cls, wire: dict[str, Any]) -> Progress:
        """Inverse of `to_wire`. Raises `SerializationError` for a newer format."""
        check_format(wire, STATE_FORMAT, "the execution's small state")
        repeated, repeats = wire.get("repeated", ("", 0))
        output_hash, output_call = wire.get("output", ("", ""))
        return cls(
            model_calls=int(wire.get("model_calls", 0)),
            empty_answers=int(wire.get("empty_answers", 0)),
            usage=Usage.from_wire(wire.get("usage")),
            stream=bool(wire.get("stream", False)),
            instructions_hash=str(wire.get("instructions", "")),
            binding=binding_of(wire),
            repeated=str(repeated),
            repeats=int(repeats),
            direct_calls=tuple(wire.get("direct", ())),
            twins=tuple((twin, original) for twin, original in wire.get("twins", ())),
            output_hash=str(output_hash),
            output_call=str(output_call),
            options=dict(wire.get("options", {})),
            start_id=str(wire.get("start", "")),
            correlation=wire.get("correlation"),
            budget_s=wire.get("budget_s"),
            detached=Detachment(*wire["detached"]) if "detached" in wire else None,
        )


def binding_of(wire: dict[str, Any]) -> Binding | None:
    """The binding in a stored small state. Raises `SerializationError` for a newer format."""
    found = wire.get("binding")
    return None if found is None else Binding.from_wire(found)
