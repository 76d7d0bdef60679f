"""What may cross to a worker: live objects of ours are found wherever a value hides them, and named by their path."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from collections import OrderedDict, deque
from typing import Any, NamedTuple

import pytest
from ray import cloudpickle

from phronomy_ray.definition.agent import Agent
from phronomy_ray.definition.tool import Tool, tool
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.models.scripted import F, ScriptedModel
from phronomy_ray.worker_inputs import WorkerInputRestricted, check_worker_input


class Live(WorkerInputRestricted):
    """A live object, as far as the marker goes; it would pickle."""

    def method(self) -> None:
        pass


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenLive(WorkerInputRestricted):
    name: str = "x"


class Derived(Live):
    pass


@dataclasses.dataclass(frozen=True)
class Holder:
    inside: Any


class Slotted:
    __slots__ = ("inside", "unset")

    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Plain:
    def __init__(self, inside: Any) -> None:
        self.inside = inside


class Careful:
    """Says itself what is pickled of it."""

    def __init__(self, inside: Any) -> None:
        self.inside = inside

    def __reduce__(self) -> Any:
        return (Careful, (None,))


class Pair(NamedTuple):
    left: Any
    right: Any


def in_closure(live: Any) -> Any:
    return lambda: live


def in_default(live: Any) -> Any:
    def function(value: Any = live, *, other: Any = None) -> Any:
        return value

    return function


def cycle(live: Any) -> Any:
    value: dict[str, Any] = {"list": []}
    value["list"].append(value)
    value["list"].append(live)
    return value


@pytest.mark.parametrize("make", [Live, FrozenLive, Derived])
@pytest.mark.parametrize(
    ("wrap", "path"),
    [
        (lambda live: live, "the value is a live"),
        (lambda live: [1, live], "the value[1] is"),
        (lambda live: (live,), "the value[0] is"),
        (lambda live: deque([live]), "the value[0] is"),
        (lambda live: {live}, "the value{...} is"),
        (lambda live: frozenset({live}), "the value{...} is"),
        (lambda live: {"a": {"b": [live]}}, "the value['a']['b'][0] is"),
        (lambda live: OrderedDict(a=live), "the value['a'] is"),
        (lambda live: {live: 1}, "the value key "),
        (lambda live: {("k", live): 1}, "[1] is"),
        (lambda live: Pair(1, live), "the value[1] is"),
        (Holder, "the value.inside is"),
        (Plain, "the value.inside is"),
        (Slotted, "the value.inside is"),
        (lambda live: Holder([Plain({"x": live})]), "the value.inside[0].inside['x'] is"),
        (lambda live: functools.partial(print, 1, live), "the value.args[1] is"),
        (lambda live: functools.partial(print, end=live), "the value.keywords['end'] is"),
        (lambda live: functools.partial(in_closure(live)), "the value.func closure 'live' is"),
        (in_closure, "the value closure 'live' is"),
        (in_default, "the value default [0] is"),
        (lambda live: Plain(live).__init__, "the value.__self__.inside is"),
        (cycle, "the value['list'][1] is"),
    ],
)
def test_a_live_object_is_found_wherever_it_is(make: Any, wrap: Any, path: str) -> None:
    live = make()
    with pytest.raises(ConfigurationError) as caught:
        check_worker_input(wrap(live), where="the value")
    assert path in caught.value.message
    assert make.__name__ in caught.value.message
    check_worker_input(wrap("no such thing"), where="the value")


def test_a_bound_method_of_a_live_object_is_live() -> None:
    with pytest.raises(ConfigurationError, match=r"the value\.__self__ is a live Live"):
        check_worker_input(Live().method, where="the value")


def test_the_class_itself_is_no_live_object() -> None:
    check_worker_input([Live, FrozenLive], where="the value", pickles=cloudpickle.dumps)


def test_who_says_what_is_pickled_is_believed() -> None:
    check_worker_input(Careful(Live()), where="the value", pickles=cloudpickle.dumps)


def test_application_objects_pass_when_they_pickle() -> None:
    check_worker_input(Plain(Plain([1, {"a": (2,)}])), where="the value", pickles=cloudpickle.dumps)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        (Plain({"deep": [Plain(threading.Lock())]}), r"the value\.inside\['deep'\]\[0\]\.inside \(a lock\)"),
        (Holder(threading.Lock()), r"the value\.inside \(a lock\)"),
        (in_closure(threading.Lock()), r"the value closure 'live' \(a lock\)"),
        (functools.partial(print, (x for x in ())), r"the value\.args\[0\] \(a generator\)"),
    ],
)
def test_what_does_not_pickle_is_named(value: Any, path: str) -> None:
    check_worker_input(value, where="the value")
    with pytest.raises(ConfigurationError, match=path + ".*cannot cross to a worker") as caught:
        check_worker_input(value, where="the value", pickles=cloudpickle.dumps)
    assert caught.value.__cause__ is not None


def test_a_reducer_that_raises_is_reported() -> None:
    class Broken:
        def __reduce__(self) -> Any:
            raise RuntimeError("not today")

    with pytest.raises(ConfigurationError, match=r"the value\[0\] \(a Broken\).*not today"):
        check_worker_input([Broken()], where="the value", pickles=cloudpickle.dumps)


def test_an_attribute_named_like_a_global_is_no_global() -> None:
    namespace: dict[str, Any] = {"runtime": Live(), "__name__": "__main__"}
    exec(
        "def reads(x):\n    return x.runtime\ndef uses():\n    return [runtime for _ in 'x']\ndef later():\n"
        "    return lambda: runtime",
        namespace,
    )
    check_worker_input(namespace["reads"], where="f")
    for name in ("uses", "later"):
        with pytest.raises(ConfigurationError, match="f global 'runtime' is a live Live"):
            check_worker_input(namespace[name], where="f")


# --- agents and tools ------------------------------------------------------------------------------------------


def test_an_agent_class_that_travels_by_value() -> None:
    live: Any = Live()
    plain = {"a": 1}

    @tool
    def harmless() -> str:
        """Harmless."""
        return str(plain)

    @tool
    def leaks() -> str:
        """Leaks."""
        return str(live)

    class Keeps(Tool):
        """Keeps."""

        def __init__(self, client: Any) -> None:
            self.client = client

        def execute(self) -> str:
            return ""

    def made(*tools: Any) -> type[Agent]:
        return type(
            "Mine",
            (Agent,),
            {"model": ScriptedModel([F("x")]), "tools": list(tools), "__module__": "__main__"},
        )

    check_worker_input(made(harmless, Keeps({"url": "x"})), where="agent", pickles=cloudpickle.dumps)
    for item, about in (
        (leaks, r"closure 'live' is a live Live"),
        (Keeps(live), r"\.client is a live Live"),
        (Keeps({"lock": threading.Lock()}), r"\.client\['lock'\] \(a lock\)"),
    ):
        with pytest.raises(ConfigurationError, match=about):
            check_worker_input(made(harmless, item), where="agent", pickles=cloudpickle.dumps)


def test_the_marker_has_no_methods_and_our_live_objects_carry_it() -> None:
    from phronomy_ray.engine.engine import AgentEngine
    from phronomy_ray.engine.event_hub import EventHub
    from phronomy_ray.engine.store_client import StoreClient
    from phronomy_ray.engine.work import EngineWork
    from phronomy_ray.mcp.hub import McpHub
    from phronomy_ray.mcp.session import McpSession
    from phronomy_ray.runtime.agent_handle import AgentHandle
    from phronomy_ray.runtime.bridge import Bridge
    from phronomy_ray.runtime.execution_handle import ExecutionHandle
    from phronomy_ray.runtime.runtime import Runtime
    from phronomy_ray.store.sql_store import SqlStore
    from phronomy_ray.tools.local_executor import LocalToolExecutor

    assert not inspect.getmembers(WorkerInputRestricted, inspect.isfunction)
    live = (
        AgentEngine,
        AgentHandle,
        Bridge,
        EngineWork,
        EventHub,
        ExecutionHandle,
        LocalToolExecutor,
        McpHub,
        McpSession,
        Runtime,
        SqlStore,
        StoreClient,
    )
    assert [cls.__name__ for cls in live if not issubclass(cls, WorkerInputRestricted)] == []
