"""Assembly of streamed tool calls: fragments in, whole calls out.

Providers and adapters disagree about how a call is cut into fragments: every fragment may carry index 0, the index may be
missing, the id may come late or only once, the name may come late, and the list may be sent again, longer, in every
chunk. The rules here, in order of trust:

* an id names its call; an index names its call as long as only one call is open at that index;
* a fragment without an id that could belong to several open calls makes *all of them* broken;
* a text that is already a whole JSON object is never extended: the same object again is the list sent again, another
  one beside another name is another call;
* arguments that grow (each fragment repeats the text so far, and the name) are read as the last, whole one.

Whatever stays ambiguous becomes a call whose arguments are text that no JSON parser accepts (`BROKEN_PREFIX`), so the
model is told and nothing runs on a guess. Cost is linear in the text for well-behaved streams.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from phronomy_ray.canonical_json import clean_text
from phronomy_ray.messages import ToolCallRequest

#: First characters of arguments that were given up on; ``<`` starts no JSON value.
BROKEN_PREFIX = "<broken tool call: "
#: Name of a call for which no fragment carried one. Its arguments are always broken, so it never runs.
UNNAMED_TOOL = "unnamed_tool"
#: Of a broken call's fragments at most this much is kept for the reader.
MAX_BROKEN_CHARS = 2_000


def argument_text(value: Any) -> str:
    """Arguments as JSON text: text as it is, ``None`` as empty, any other value (adapters send objects) encoded."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False)


def is_json_object(text: str) -> bool:
    """Whether `text` is one whole JSON object."""
    stripped = text.strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return False
    try:
        return isinstance(json.loads(stripped), dict)
    except (ValueError, RecursionError):
        return False


def broken_arguments(reason: str, text: str) -> str:
    """Argument text that says why it is broken and never parses."""
    kept = text if len(text) <= MAX_BROKEN_CHARS else f"{text[:MAX_BROKEN_CHARS]}... ({len(text)} characters)"
    return f"{BROKEN_PREFIX}{reason}> {kept}"


def with_unique_ids(calls: Iterable[ToolCallRequest], *, seed: str) -> tuple[ToolCallRequest, ...]:
    """`calls` with non-empty ids that differ from each other.

    A good id is kept. A missing one is derived from `seed` (our id of the model call) and the position, so it is the
    same after a repetition and differs between answers; a repeated one gets a suffix.
    """
    digest = hashlib.sha256(seed.encode("utf-8", "replace")).hexdigest()[:12]
    calls = tuple(calls)
    given = {call.id for call in calls}
    taken: set[str] = set()
    result = []
    for position, call in enumerate(calls):
        chosen = call.id or f"call_{digest}_{position}"
        base, number = chosen, 1
        while chosen in taken or (chosen != call.id and chosen in given):
            number += 1
            chosen = f"{base}_{number}"
        taken.add(chosen)
        result.append(ToolCallRequest(chosen, call.name, call.arguments))
    return tuple(result)


class _Slot:
    """One call under construction."""

    __slots__ = (
        "_checked",
        "_whole",
        "count",
        "id",
        "index",
        "name",
        "named_parts",
        "parts",
        "reason",
        "styles",
        "touched",
    )

    def __init__(self, index: int | None, chunk: int) -> None:
        self.index = index
        self.id = ""
        self.name = ""
        self.parts: list[str] = []
        #: Fragments so far, also those without text.
        self.count = 0
        #: How many of the parts came together with the tool's name.
        self.named_parts = 0
        #: How the fragments after the first were addressed: by "id", by the "name" again without id, by a "late" id
        #: beside the name, or by "none" of them. A provider keeps to one way; a mixture means that two calls may
        #: have been mixed.
        self.styles: set[str] = set()
        #: Why the call was given up, else empty.
        self.reason = ""
        #: Number of the last chunk that named this slot.
        self.touched = chunk
        self._checked = 0
        self._whole = False

    @property
    def joined(self) -> str:
        """The parts glued together, as a stream of deltas means them."""
        return "".join(self.parts)

    def is_whole(self) -> bool:
        """Whether the parts so far are one whole JSON object (checked once per new part)."""
        if self._checked != len(self.parts):
            self._whole = self.parts[-1].rstrip().endswith("}") and is_json_object(self.joined)
            self._checked = len(self.parts)
        return self._whole

    def is_mixed(self) -> bool:
        """Whether its fragments were addressed in ways that no single call is."""
        return len(self.styles) > 1 and self.styles != {"late", "id"}

    def is_settled(self) -> bool:
        """Whether the call is whole and nothing about it is in doubt, so that no further fragment can be its."""
        return not self.reason and not self.is_mixed() and self.is_whole()

    def give_up(self, reason: str) -> None:
        """Make the call broken; the first reason stays."""
        self.reason = self.reason or reason

    def finish(self, *, truncated: bool) -> ToolCallRequest:
        """The call; broken when it was given up or never named."""
        if not self.name:
            self.give_up("no fragment carried the tool's name")
        if self.is_mixed():
            self.give_up("its fragments may belong to two calls")
        text = self.joined
        if self.reason:
            return ToolCallRequest(self.id, self.name or UNNAMED_TOOL, broken_arguments(self.reason, text))
        if not truncated and len(self.parts) > 1 and not is_json_object(text):
            text = self._grown() or text
        return ToolCallRequest(self.id, self.name, text)

    def _grown(self) -> str | None:
        """The last part, when every part repeats the name and the text so far and the last is a whole object."""
        if self.named_parts != len(self.parts) or not is_json_object(self.parts[-1]):
            return None
        pairs = zip(self.parts, self.parts[1:], strict=False)
        return self.parts[-1] if all(later.startswith(earlier) for earlier, later in pairs) else None


class ToolCallAssembler:
    """Collects the ``tool_calls`` lists of a stream's chunks; `finish` gives the calls in order of first appearance.

    Never raises on malformed fragments. One instance per answer attempt.
    """

    def __init__(self) -> None:
        self._slots: list[_Slot] = []
        self._chunk = 0

    def __bool__(self) -> bool:
        return bool(self._slots)

    def add(self, fragments: Sequence[Any] | None) -> None:
        """Take the ``tool_calls`` list of one chunk (``None`` and empty are nothing)."""
        if not fragments:
            return
        self._chunk += 1
        if self._is_list_again(fragments):
            fragments = fragments[len(self._slots) :]
        for fragment in fragments:
            self._add_one(fragment)

    def finish(self, *, seed: str = "", truncated: bool = False) -> tuple[ToolCallRequest, ...]:
        """The calls, with unique non-empty ids.

        Args:
            seed: our id of the model call; missing provider ids are derived from it.
            truncated: the answer was cut by the output limit, so repeated text is not read as growing arguments.
        """
        calls = (slot.finish(truncated=truncated) for slot in self._slots)
        cleaned = (
            ToolCallRequest(clean_text(call.id), clean_text(call.name), clean_text(call.arguments))
            for call in calls
        )
        return with_unique_ids(cleaned, seed=seed)

    # --- where a fragment belongs ------------------------------------------------------------------------------

    def _add_one(self, fragment: Any) -> None:
        if not isinstance(fragment, Mapping):
            self._lost(f"a fragment is a {type(fragment).__name__}", str(fragment))
            return
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else {}
        index = fragment.get("index")
        index = index if isinstance(index, int) and not isinstance(index, bool) else None
        call_id = fragment.get("id")
        call_id = call_id if isinstance(call_id, str) else ""
        name = function.get("name")
        name = name if isinstance(name, str) and name.strip() else ""
        text = argument_text(function.get("arguments"))
        if not (call_id or name or text):
            return
        slot = self._by_id(call_id, index, name, text) if call_id else self._by_index(index, name, text)
        if slot is not None:
            self._extend(slot, call_id, name, text)

    def _by_id(self, call_id: str, index: int | None, name: str, text: str) -> _Slot | None:
        """The call that an identified fragment belongs to, opened when there is none."""
        same_id = [slot for slot in self._slots if slot.id == call_id]
        known = [slot for slot in same_id if slot.index in (index, None)]
        if not known and (index is None or not name):
            known = same_id
        if known:
            slot = known[-1]
            if name and slot.name and slot.is_whole():
                another_name = name != slot.name
                listed_twice = bool(text) and slot.touched == self._chunk
                return self._open(index) if another_name or listed_twice else slot
            return slot
        return self._late_id(index, name, text) or self._open(index)

    def _late_id(self, index: int | None, name: str, text: str) -> _Slot | None:
        """The call without id that a new id belongs to; ``None`` when the id opens another call."""
        candidates = self._candidates(index)
        if not candidates or candidates[-1].id:
            return None
        slot = candidates[-1]
        if name and slot.name:
            same = name == slot.name and (not slot.is_whole() or text.strip() in ("", slot.joined.strip()))
            return slot if same else None
        if slot.is_whole() and text.strip():
            return None
        without_id = [candidate for candidate in candidates if not candidate.id]
        if self._interleaved(without_id):
            for candidate in without_id:
                candidate.give_up("an id came late and could be that of another call")
        return slot

    def _by_index(self, index: int | None, name: str, text: str) -> _Slot | None:
        """The call of a fragment without id; ``None`` when it was dealt with as ambiguous."""
        candidates = self._candidates(index)
        if not candidates:
            if name or not self._slots:
                return self._open(index)
            self._lost("a fragment names no call that was opened", text)
            return None
        slot = candidates[-1]
        if name and slot.name:
            return self._named_again(slot, index, name, text)
        if self._interleaved(candidates):
            for candidate in candidates:
                candidate.give_up("its fragments cannot be told from those of another call")
                candidate.parts.append(text)
            return None
        return slot

    def _named_again(self, slot: _Slot, index: int | None, name: str, text: str) -> _Slot:
        """A fragment with a name, without an id, after the named call `slot` at the same index (or without any)."""
        if slot.is_whole():
            repeated = name == slot.name and text.strip() in ("", slot.joined.strip())
            if not repeated or slot.touched == self._chunk:
                return self._open(index)
            if index is None or not text.strip():
                slot.give_up("its name came again, and nothing tells whether that is another call")
            return slot
        if index is None:
            if name != slot.name or slot.touched == self._chunk:
                return self._open(index)
            slot.give_up("its name came again, without id or index")
        return slot

    def _extend(self, slot: _Slot, call_id: str, name: str, text: str) -> None:
        slot.touched = self._chunk
        if slot.count and text.strip():
            slot.styles.add(_style(slot, call_id, name))
        slot.count += 1
        slot.id = slot.id or call_id
        if name and not slot.name:
            slot.name = name
        elif name and name != slot.name:
            slot.give_up(f"two names, {slot.name!r} and {name!r}")
        if not text:
            return
        if not slot.reason and text.strip() and slot.is_whole():
            if (name or call_id) and text.strip() == slot.joined.strip():
                return
            slot.give_up("text after the end of its arguments")
        slot.parts.append(text)
        slot.named_parts += bool(name)

    def _open(self, index: int | None) -> _Slot:
        slot = _Slot(index, self._chunk)
        self._slots.append(slot)
        return slot

    def _candidates(self, index: int | None) -> list[_Slot]:
        return self._slots if index is None else [slot for slot in self._slots if slot.index == index]

    @staticmethod
    def _interleaved(candidates: Sequence[_Slot]) -> bool:
        """Whether a fragment without id could belong to an earlier call than the last one."""
        return not all(slot.is_settled() for slot in candidates[:-1])

    def _is_list_again(self, fragments: Sequence[Any]) -> bool:
        """Whether the chunk repeats all calls so far, without ids and indexes, and adds to them."""
        if not self._slots or len(fragments) <= len(self._slots):
            return False
        for slot, fragment in zip(self._slots, fragments, strict=False):
            if not isinstance(fragment, Mapping) or fragment.get("id") or fragment.get("index") is not None:
                return False
            function = fragment.get("function")
            if not isinstance(function, Mapping) or function.get("name") != slot.name:
                return False
            if slot.id or not slot.is_whole() or argument_text(function.get("arguments")) != slot.joined:
                return False
        return True

    def _lost(self, reason: str, text: str) -> None:
        slot = self._open(None)
        slot.give_up(reason)
        slot.parts.append(text)


def _style(slot: _Slot, call_id: str, name: str) -> str:
    """How a fragment after the first is addressed; see `_Slot.styles`."""
    if name and slot.name:
        return "id" if slot.id and call_id else "late" if call_id else "name"
    return "id" if slot.id and call_id else "none"
