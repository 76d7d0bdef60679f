"""The parts of the storm: its schedule, its checker, and the proxy that cuts commits."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from phronomy_ray.journal import EventRow, ExecutionRow, ExecutionStatus, Phase, ToolCallRow, ToolCallStatus
from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.chaos.checker import check_effects, check_execution, check_told
from phronomy_ray.testing.chaos.proxy import Cut, CuttingProxy
from phronomy_ray.testing.chaos.schedule import MIN_PAUSE_S, STORE_FAULTS, FaultKind, chosen, plan_faults

# --- the schedule -----------------------------------------------------------------------------------------------


def test_a_seed_is_a_schedule() -> None:
    first = plan_faults(7, 300)
    assert first == plan_faults(7, 300)
    assert first != plan_faults(8, 300)
    assert {fault.kind for fault in first} == set(FaultKind)
    assert len(first) >= 30, "at least one in ten seconds"
    pauses = [later.at_s - earlier.at_s for earlier, later in itertools.pairwise(first)]
    assert min(pauses) >= MIN_PAUSE_S
    assert not {fault.kind for fault in plan_faults(7, 300, without=STORE_FAULTS)} & set(STORE_FAULTS)


def test_a_pick_is_one_of_them() -> None:
    assert chosen(0.5, []) is None
    assert [chosen(pick, ["a", "b"]) for pick in (0.0, 0.49, 0.5, 0.999, 1.0)] == ["a", "a", "b", "b", "b"]


# --- the checker finds what is planted ---------------------------------------------------------------------------


def execution(**changes: Any) -> ExecutionRow:
    row = samples.execution("ex1", "storm")
    return replace(row, **{"status": ExecutionStatus.COMPLETED, "phase": Phase.ENDED, **changes})


def tool_call(tool: str, **changes: Any) -> ToolCallRow:
    row = replace(samples.tool_call("ex1", "storm"), tool_name=tool, tool_call_id="tc1")
    return replace(row, **{"status": ToolCallStatus.SUCCEEDED, **changes})


def effect(tool: str, attempt: int = 1, call_id: str = "tc1", key: str = "k") -> dict[str, Any]:
    return {"tool": tool, "tool_call_id": call_id, "attempt": attempt, "key": key}


def word(outcome: str, revision: int = 1) -> dict[str, Any]:
    return {
        "kind": "resolved",
        "execution_id": "ex1",
        "tool_call_id": "tc1",
        "outcome": outcome,
        "revision": revision,
    }


def event(seq: int, type: str = "started", **payload: Any) -> EventRow:
    return replace(samples.event("ex1", "storm", seq), type=type, payload=payload)


@pytest.mark.parametrize(
    ("row", "calls", "events", "wrong"),
    [
        (execution(), [tool_call("wire")], [event(1), event(2)], None),
        (execution(status=ExecutionStatus.ACTIVE, phase=Phase.CALLING_MODEL), [], [event(1)], "stuck"),
        (execution(), [], [event(1), event(3)], "seqs"),
        (execution(), [tool_call("wire", status=ToolCallStatus.DISPATCHED)], [event(1)], "no outcome"),
        (execution(), [], [event(1, "recovered", epoch=3), event(2, "recovered", epoch=2)], "older owner"),
    ],
)
def test_an_execution_is_looked_at(
    row: ExecutionRow, calls: list[ToolCallRow], events: list[EventRow], wrong: str | None
) -> None:
    found = check_execution(row, calls, events)
    assert [wrong] == [wrong for text in found if wrong and wrong in text] if wrong else found == []


@pytest.mark.parametrize(
    ("entry", "wrong"),
    [
        ({"kind": "admitted", "execution_id": "ex1"}, None),
        ({"kind": "ended", "execution_id": "ex1", "status": "completed", "output": "done"}, None),
        (
            {"kind": "ended", "execution_id": "ex1", "status": "completed", "output": "lost"},
            "was told 'lost'",
        ),
        ({"kind": "begin", "execution_id": "ex1"}, "never settled"),
        ({"kind": "admitted", "execution_id": "lost"}, "not stored"),
        (
            {"kind": "ended", "execution_id": "ex1", "status": "cancelled", "output": None},
            "was told cancelled",
        ),
    ],
)
def test_what_drivers_were_told_is_what_is_stored(entry: dict[str, Any], wrong: str | None) -> None:
    found = check_told({"ex1": execution(output="done")}, [entry])
    assert (len(found) == 1 and wrong in found[0]) if wrong else found == []


@pytest.mark.parametrize(
    ("calls", "effects", "history", "wrong"),
    [
        ([tool_call("wire")], [effect("wire")], [], None),
        ([tool_call("look")], [effect("look"), effect("look", 2)], [], None),
        ([tool_call("wire")], [effect("wire"), effect("wire", 2)], [word("not_performed")], None),
        (
            [tool_call("wire")],
            [effect("wire", 1), effect("wire", 2), effect("wire", 3)],
            [word("not_performed"), word("not_performed")],
            "ran 3 times",
        ),
        ([tool_call("wire")], [], [word("succeeded")], None),
        ([tool_call("wire")], [effect("wire"), effect("wire", 2)], [], "ran 2 times"),
        ([tool_call("wire")], [effect("wire"), effect("wire", 2)], [word("succeeded")], "ran 2 times"),
        ([tool_call("look")], [effect("look"), effect("look")], [], "attempt 1 ran 2 times"),
        ([tool_call("charge")], [effect("charge"), effect("charge", 2, key="other")], [], "key changed"),
        ([tool_call("wire")], [], [], "without an effect"),
        ([], [effect("wire")], [], "without a call"),
    ],
)
def test_effects_are_counted(
    calls: list[ToolCallRow], effects: list[dict[str, Any]], history: list[dict[str, Any]], wrong: str | None
) -> None:
    found = check_effects(calls, effects, history)
    assert (len(found) >= 1 and wrong in " ".join(found)) if wrong else found == []


# --- the proxy ---------------------------------------------------------------------------------------------------


class Echo:
    """A server that remembers what it was told and says it back."""

    def __init__(self) -> None:
        self.heard = b""
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        self.closed = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(1_000):
                    self.heard += data
                    connection.sendall(data)
            self.closed.set()


@pytest.fixture
def echo() -> Iterator[Echo]:
    made = Echo()
    yield made
    made.socket.close()


@pytest.fixture
def proxied(echo: Echo) -> Iterator[tuple[CuttingProxy, Callable[[], socket.socket]]]:
    proxy = CuttingProxy("127.0.0.1", echo.port)

    def connect() -> socket.socket:
        return socket.create_connection(("127.0.0.1", proxy.port), timeout=10)

    yield proxy, connect
    proxy.close()


def _is_cut(connection: socket.socket) -> bool:
    """Whether nothing comes through any more."""
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True


@pytest.mark.parametrize("cut", [Cut.BEFORE, Cut.AFTER, None])
def test_a_commit_is_cut_on_either_side(
    echo: Echo, proxied: tuple[CuttingProxy, Callable[[], socket.socket]], cut: Cut | None
) -> None:
    proxy, connect = proxied
    with connect() as connection:
        connection.sendall(b"INSERT")
        assert connection.recv(100) == b"INSERT"
        if cut is None:
            proxy.cut_all()
        else:
            proxy.arm(cut)
            connection.sendall(b"SELECT")
            assert connection.recv(100) == b"SELECT", "only a commit is cut"
            connection.sendall(b"COMMIT")
        assert _is_cut(connection)
    assert echo.closed.wait(10)
    assert (b"COMMIT" in echo.heard) == (cut is Cut.AFTER)
    with connect() as connection:
        connection.sendall(b"COMMIT")
        assert connection.recv(100) == b"COMMIT", "one cut, and then it works again"
