"""Agents whose model does what the user's message says, and tools for every way in which a body can end.

A message made by `turn` holds the batches of tool calls and the final answer of its turn, so a test states its whole
script where it starts the execution, and the model needs no memory to give the same answers again after a crash.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
import time
import urllib.error
from typing import Any

from phronomy_ray import Agent, ToolContext, tool
from phronomy_ray.errors import AuthenticationError, StoreUnavailableError
from phronomy_ray.models.script import ScriptRequest, Step, call, calls, final
from phronomy_ray.models.scripted import ScriptedModel
from phronomy_ray.tools.process import Process
from ray_testbed import effects

# --- the model --------------------------------------------------------------------------------------------------


def turn(
    *batches: list[tuple[str, dict[str, Any]]],
    answer: str = "done",
    model_gates: dict[int, str] | None = None,
    refuse: int | None = None,
) -> str:
    """A message that makes the model ask for `batches` one after the other and then answer.

    Args:
        model_gates: gates that the model waits for, by sequence of the model call, from 1.
        refuse: sequence of the model call that the provider refuses.
    """
    gates = {str(number): gate for number, gate in (model_gates or {}).items()}
    return json.dumps({"batches": batches, "answer": answer, "gates": gates, "refuse": refuse})


async def obey(request: ScriptRequest) -> Step:
    """The script of every agent here."""
    try:
        wanted = json.loads(request.last_user)
    except ValueError:
        return final(f"you said: {request.last_user}")
    gate = wanted["gates"].get(str(request.sequence))
    if gate is not None:
        while not effects.is_open(gate):
            await asyncio.sleep(0.02)
    if request.sequence == wanted["refuse"]:
        raise AuthenticationError("no such key")
    batches = wanted["batches"]
    if request.sequence > len(batches):
        return final(wanted["answer"])
    return calls(*(call(name, arguments) for name, arguments in batches[request.sequence - 1]))


def obedient() -> ScriptedModel:
    """The model; it logs what it was asked, for all agents of the session in one file."""
    return ScriptedModel(obey, log_path=effects.folder() / "models.jsonl")


def asked(agent_id: str) -> list[dict[str, Any]]:
    """What the model of an agent was asked, in order, repeated calls included."""
    try:
        lines = (effects.folder() / "models.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return []
    return [entry for entry in map(json.loads, lines) if entry["agent_id"] == agent_id]


# --- tools that end well ----------------------------------------------------------------------------------------


@tool(replay="safe")
def note(text: str, context: ToolContext) -> str:
    """Leave an effect; may be repeated."""
    effects.record(context.agent_id, "note", text=text, run=context.execution_id)
    return f"noted {text}"


@tool
def wire(amount: int, context: ToolContext) -> str:
    """Leave an effect that must not be repeated, in a Ray task."""
    effects.record(context.agent_id, "wire", amount=amount, run=context.execution_id)
    return f"wired {amount}"


@tool
async def pay(amount: int, context: ToolContext) -> str:
    """Leave an effect that must not be repeated, on the agent's loop."""
    effects.record(context.agent_id, "pay", amount=amount, run=context.execution_id)
    return f"paid {amount}"


@tool(requires_approval=True)
def send(text: str, context: ToolContext) -> str:
    """Leave an effect that must not be repeated and that a human must agree to."""
    effects.record(context.agent_id, "send", text=text, run=context.execution_id)
    return f"sent {text}"


@tool(replay="safe", requires_approval=True)
def reveal(key: str, context: ToolContext) -> str:
    """What the durable context holds, once a human agrees."""
    return str((context.durable_context or {}).get(key))


@tool(replay="safe")
def hold(gate: str, context: ToolContext, text: str = "held") -> str:
    """Run until the test opens a gate."""
    effects.record(context.agent_id, "hold", gate=gate, attempt=context.attempt)
    effects.pass_gate(gate)
    effects.record(context.agent_id, "held", gate=gate, attempt=context.attempt)
    return text


@tool
def hold_never(gate: str, context: ToolContext) -> str:
    """Run until the test opens a gate; not to be repeated."""
    effects.record(context.agent_id, "hold_never", gate=gate)
    effects.pass_gate(gate)
    effects.record(context.agent_id, "held_never", gate=gate)
    return f"held {gate}"


@tool(replay="safe")
async def linger(gate: str, context: ToolContext) -> str:
    """Run on the agent's loop until the test opens a gate."""
    effects.record(context.agent_id, "linger", gate=gate)
    while not effects.is_open(gate):
        await asyncio.sleep(0.01)
    return "lingered"


@tool(replay="safe")
def meet(place: str, people: int, name: str, context: ToolContext) -> str:
    """End only when all others have come: proves that the calls overlap."""
    effects.record(context.agent_id, "arrive", place=place, name=name, thread=threading.get_ident())
    effects.until_recorded(context.agent_id, "arrive", people, place=place)
    effects.record(context.agent_id, "leave", place=place, name=name)
    return f"{name} met"


@tool
def meet_never(place: str, people: int, name: str, context: ToolContext) -> str:
    """As `meet`, not to be repeated."""
    effects.record(context.agent_id, "arrive", place=place, name=name, thread=threading.get_ident())
    effects.until_recorded(context.agent_id, "arrive", people, place=place)
    return f"{name} met"


@tool(replay="safe")
def after_gates(gates: list[str], text: str) -> str:
    """Wait for several gates one after the other."""
    for gate in gates:
        effects.pass_gate(gate)
    return text


@tool(replay="safe")
def after_siblings(store: str, siblings: int, context: ToolContext) -> str:
    """End only when so many other calls of this execution have a committed outcome, if only an unknown one."""
    from phronomy_ray.store.sql_store import open_store

    opened = open_store(store)

    def outcomes() -> int:
        try:
            rows = opened.tool_calls(context.execution_id)
        except StoreUnavailableError:  # a reader may meet a file that its writer's death has locked
            return 0
        return sum(row.status in ("succeeded", "unknown") for row in rows)

    try:
        effects.until(lambda: outcomes() >= siblings, f"{siblings} outcomes of {context.execution_id}")
    finally:
        opened.close()
    return "after them"


@tool(replay="safe")
def big(characters: int) -> str:
    """A large result."""
    return "x" * (characters - 4) + "END."


# --- tools that end badly ---------------------------------------------------------------------------------------


class Bare(BaseException):
    """Not an `Exception`."""


class NeedsArguments(Exception):
    """Pickles, and cannot be unpickled."""

    def __init__(self, *, status: int) -> None:
        super().__init__(f"status {status}")


class HoldsALock(Exception):
    """Cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


class Unspeakable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@tool(on_error="suppress")
def fail(how: str) -> str:
    """Raise; the model is told."""
    raise _error(how)


@tool
def break_off(how: str) -> str:
    """Raise, with a cause; this ends the execution."""
    try:
        raise KeyError("the disk is full")
    except KeyError as cause:
        raise _error(how) from cause


def _error(how: str) -> BaseException:
    errors: dict[str, BaseException] = {
        "exception": ValueError("a wrong value"),
        "bare": Bare("bare"),
        "exit": SystemExit(3),
        "interrupt": KeyboardInterrupt(),
        "needs_arguments": NeedsArguments(status=7),
        "lock": HoldsALock(),
        "unspeakable": Unspeakable(),
        "http": urllib.error.HTTPError("http://nowhere", 500, "broken", None, None),  # type: ignore[arg-type]
    }
    return errors[how]


@tool(on_error="suppress")
async def fail_on_loop(how: str) -> str:
    """Raise on the agent's own loop."""
    if how == "exit":
        sys.exit(3)
    raise _error(how)


@tool
def die(how: str, context: ToolContext) -> str:
    """End the process that runs this, not to be repeated."""
    effects.record(context.agent_id, "die", how=how)
    _end_process(how)
    return "unreachable"


@tool(replay="safe", on_error="suppress")
def die_first(times: int, how: str, context: ToolContext) -> str:
    """End the process in the first `times` attempts."""
    effects.record(context.agent_id, "die_first", attempt=context.attempt)
    if context.attempt <= times:
        _end_process(how)
    return f"survived attempt {context.attempt}"


def _end_process(how: str) -> None:
    if how == "exit":
        os._exit(1)
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


@tool(replay="safe", timeout_s=0.3, on_error="suppress")
def too_slow(gate: str, context: ToolContext) -> str:
    """Take longer than its time."""
    effects.record(context.agent_id, "too_slow")
    effects.pass_gate(gate)
    return "too late"


@tool
def polite(context: ToolContext) -> str:
    """Run until the execution is cancelled."""
    effects.record(context.agent_id, "polite")
    effects.until(context.is_cancelled, "the cancellation to be seen by the tool")
    effects.record(context.agent_id, "polite_end")
    return "stopped"


@tool
def stubborn(gate: str, context: ToolContext) -> str:
    """Run until a gate opens, cancelled or not."""
    effects.record(context.agent_id, "stubborn")
    effects.pass_gate(gate)
    effects.record(context.agent_id, "stubborn_end")
    return "ended by itself"


# --- tools for pools --------------------------------------------------------------------------------------------


@tool(replay="idempotent")
def hold_idempotent(gate: str, context: ToolContext) -> str:
    """Run until the test opens a gate; may be repeated with the same key."""
    effects.record(context.agent_id, "hold_idempotent", gate=gate, key=context.idempotency_key)
    effects.pass_gate(gate)
    return f"held {gate}"


@tool(replay="safe", timeout_s=4.0, on_error="suppress")
def overdue(gate: str, number: int, context: ToolContext) -> str:
    """Take longer than its time; the test opens the gate at the end."""
    effects.record(context.agent_id, "overdue", number=number)
    effects.pass_gate(gate)
    return "too late"


@tool(replay="safe")
def nap(seconds: float) -> str:
    """Block the thread."""
    time.sleep(seconds)
    return "slept"


@tool(replay="idempotent", retries=2)
def charge(amount: int, gate: str, context: ToolContext) -> str:
    """Commit outside, then lose the answer of the first attempt."""
    before = effects.recorded(context.agent_id, "charge", amount=amount)
    effects.record(context.agent_id, "charge", amount=amount, key=context.idempotency_key)
    if not before:
        raise TimeoutError("the answer was lost")
    effects.pass_gate(gate)
    return f"charged {amount}"


@tool(replay="safe", execution_mode="cpu_bound", on_error="suppress")
def count_primes(limit: int, context: ToolContext) -> int:
    """Work for the CPU."""
    effects.record(context.agent_id, "count_primes", limit=limit)
    return sum(all(number % other for other in range(2, number)) for number in range(2, limit))


@tool(replay="safe", execution_mode="cpu_bound", timeout_s=1.0, on_error="suppress")
def run_away(context: ToolContext) -> None:
    """Never end."""
    effects.record(context.agent_id, "run_away")
    while True:
        pass


@tool(execution_mode="external_process", on_error="suppress")
def program(name: str, seconds: float, context: ToolContext) -> Process:
    """Run a program that writes down its process id."""
    code = "import os,sys,time; print('begun'); open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(float(sys.argv[2]))"
    path = str(effects.folder() / f"{name}.pid")
    effects.record(context.agent_id, "program", name=name)
    return Process([sys.executable, "-I", "-S", "-c", code, path, str(seconds)])


@tool(replay="safe", pool="narrow", timeout_s=1.0, on_error="suppress")
def clutch(name: str, context: ToolContext) -> int:
    """Hold the interpreter in C code for minutes."""
    effects.record(context.agent_id, "clutch", name=name)
    return sum(range(10**12))


@tool(replay="safe", pool="narrow")
def nimble(text: str) -> str:
    """End at once."""
    return text


@tool(replay="safe", pool="narrow", timeout_s=1.0, retries=1, on_error="suppress")
def slow_twice(gate: str, context: ToolContext) -> str:
    """Take longer than its time, in an attempt that might be repeated."""
    effects.record(context.agent_id, "slow_twice")
    effects.pass_gate(gate)
    return "too late"


@tool(on_error="suppress", timeout_s=120)
def devour(pool_bytes: int, context: ToolContext) -> str:
    """Eat memory, not to be repeated."""
    return _eat(pool_bytes, context)


@tool(replay="safe", on_error="suppress", timeout_s=120)
def nibble(pool_bytes: int, context: ToolContext) -> str:
    """Eat memory; may be repeated."""
    return _eat(pool_bytes, context)


@tool(on_error="suppress", execution_mode="cpu_bound", timeout_s=120)
def devour_alone(pool_bytes: int, context: ToolContext) -> str:
    """Eat memory in a task of its own."""
    return _eat(pool_bytes, context)


def _eat(size: int, context: ToolContext) -> str:
    effects.record(context.agent_id, "eat", attempt=context.attempt)
    eaten = []
    for _ in range(size // 2**24):
        eaten.append(b"x" * 2**24)
        time.sleep(0.02)
    return f"ate {len(eaten)} pieces"


POOL_TOOLS = [
    devour,
    nibble,
    devour_alone,
    hold_idempotent,
    overdue,
    nap,
    charge,
    count_primes,
    run_away,
    program,
    clutch,
    nimble,
    slow_twice,
]

TOOLS = [
    note,
    wire,
    pay,
    send,
    reveal,
    hold,
    hold_never,
    linger,
    meet,
    meet_never,
    after_gates,
    after_siblings,
    big,
    fail,
    break_off,
    fail_on_loop,
    die,
    die_first,
    too_slow,
    polite,
    stubborn,
]


class Puppet(Agent):
    """Does what its messages say."""

    model = obedient()
    instructions = "Obey."
    definition_id = "puppet"
    tools = TOOLS
    quiescence_timeout_s = 1.0


class Swimmer(Puppet):
    """Uses pools in every way."""

    definition_id = "swimmer"
    tools = [*TOOLS, *POOL_TOOLS]
    max_tool_repeats = 0


class Patient(Agent):
    """Waits long for bodies to end when it is cancelled."""

    model = obedient()
    tools = [polite]
    quiescence_timeout_s = effects.PATIENCE_S


class PuppetTwo(Agent):
    """The next version of the same definition."""

    model = obedient()
    instructions = "Obey."
    definition_id = "puppet"
    definition_version = "2"


class Stranger(Agent):
    """Another definition."""

    model = obedient()
