"""Whether what many drivers were told about one agent can be explained by one sequential order (linearizability).

Every operation has a time when it was begun and one when its answer came. An explanation puts each at one moment between the two,
such that a small model of the agent gives the same answers in that order. Between operations the execution goes on by itself.
The search is that of Wing and Gong, with a memory of what was tried.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace


class Kind(enum.StrEnum):
    """What a driver asked for."""

    START = "start"
    APPROVE = "approve"
    CANCEL = "cancel"
    UNLOAD = "unload"


class Answer(enum.StrEnum):
    """What it was told."""

    DONE = "done"
    #: Refused because the agent works, or is not in the state for it.
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Operation:
    """One call of one driver."""

    kind: Kind
    #: Which execution; empty for an unload.
    execution_id: str
    answer: Answer
    begun: float
    ended: float


class Stage(enum.Enum):
    """How far an execution of the model is: it asks a human once, goes on when it is allowed, and ends."""

    WORKS = "works"
    WAITS = "waits"
    GOES_ON = "goes on"
    #: Its owner was lost with a call under way: a human is to say what became of it.
    ASKS = "asks"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Model:
    """An agent: what it works on, and which executions were allowed to go on."""

    execution_id: str = ""
    stage: Stage = Stage.WORKS
    #: The newest ones only: nobody asks about older ones.
    allowed: tuple[str, ...] = ()

    def later(self) -> Iterator[Model]:
        """What it may have become by itself, itself included."""
        yield self
        if not self.execution_id:
            return
        if self.stage is Stage.WORKS:
            yield replace(self, stage=Stage.WAITS)
        if self.stage is Stage.GOES_ON:
            yield replace(self, stage=Stage.ASKS)
        if self.stage in (Stage.GOES_ON, Stage.ENDING):
            yield replace(self, execution_id="", stage=Stage.WORKS)

    def after(self, operation: Operation) -> Model | None:
        """The agent after this operation, ``None`` when it would have answered otherwise."""
        done = operation.answer is Answer.DONE
        is_it = bool(self.execution_id) and self.execution_id == operation.execution_id
        match operation.kind:
            case Kind.START:
                if done:
                    return (
                        None
                        if self.execution_id
                        else Model(operation.execution_id, Stage.WORKS, self.allowed)
                    )
                return self if self.execution_id else None
            case Kind.APPROVE:
                if is_it and self.stage is Stage.WAITS:
                    allowed = (*self.allowed[-7:], operation.execution_id)
                    return replace(self, stage=Stage.GOES_ON, allowed=allowed) if done else None
                # the same answer again is harmless; to anything else it is a conflict
                return self if done == (operation.execution_id in self.allowed) else None
            case Kind.CANCEL:
                return replace(self, stage=Stage.ENDING) if is_it else self
            case Kind.UNLOAD:
                works = bool(self.execution_id) and self.stage not in (Stage.WAITS, Stage.ASKS)
                return self if done != works else None


def unexplained(history: Sequence[Operation]) -> Operation | None:
    """The first operation that no sequential order explains, ``None`` when the whole history has one."""
    operations = sorted(history, key=lambda item: (item.begun, item.ended))
    count = len(operations)
    # a position is how many operations from the left are all placed, and which further ones are
    stack: list[tuple[int, frozenset[int], Model]] = [(0, frozenset(), Model())]
    tried = set(stack)
    furthest = 0
    while stack:
        base, ahead, model = stack.pop()
        furthest = max(furthest, base)
        if base == count:
            return None
        limit = min(operations[index].ended for index in _open(base, ahead, operations))
        for index in _open(base, ahead, operations):
            if operations[index].begun > limit:
                break  # some other one was over before it began
            for state in model.later():
                changed = state.after(operations[index])
                if changed is None:
                    continue
                placed = ahead | {index}
                next_base = base
                while next_base in placed:
                    placed -= {next_base}
                    next_base += 1
                position = (next_base, placed, changed)
                if position not in tried:
                    tried.add(position)
                    stack.append(position)
    return operations[furthest]


def _open(base: int, ahead: frozenset[int], operations: Sequence[Operation]) -> Iterator[int]:
    """Operations that are not placed yet and may be next, in the order of their beginnings."""
    limit: float | None = None
    for index in range(base, len(operations)):
        if index in ahead:
            continue
        operation = operations[index]
        if limit is not None and operation.begun > limit:
            return
        limit = operation.ended if limit is None else min(limit, operation.ended)
        yield index
