"""What an actor that is asked to drain answers, without Ray: the answers are given by the test."""

from __future__ import annotations

import subprocess
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from phronomy_ray.errors import AgentUnloadedError
from phronomy_ray.runtime import cluster_drain
from phronomy_ray.runtime.cluster_drain import drain_actor, drain_node


@pytest.mark.parametrize(
    ("answer", "left"),
    [
        (True, []),
        (False, ["a1"]),
        (ActorDiedError(), []),
        (ActorUnavailableError("its node does not answer", b"0" * 16), ["a1"]),
        (TimeoutError(), ["a1"]),
    ],
)
async def test_only_an_agent_that_is_known_to_have_left_is_not_left_behind(
    monkeypatch: pytest.MonkeyPatch, answer: Any, left: list[str]
) -> None:
    async def call(actor: object, method: str, *args: Any, timeout_s: float) -> Any:
        if isinstance(answer, BaseException):
            raise answer
        return answer

    monkeypatch.setattr(cluster_drain, "call", call)
    assert list(await drain_actor("agent:a1", object(), 1.0)) == left


NODE = "abcdef0123456789"


class Cluster:
    """Actors by name: the node that each lives on, or what is raised instead of an answer; and what a drain answers."""

    def __init__(self, places: dict[str, str | BaseException], drained: dict[str, Any]) -> None:
        self.places, self.drained = places, drained
        self.killed: list[str] = []
        self.given_s: dict[str, float] = {}
        self.told_s: list[float] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(cluster_drain, "call", self.call)
        monkeypatch.setattr(cluster_drain, "kill", self.killed.append)
        monkeypatch.setattr(cluster_drain, "named_actors", lambda *_: [(name, name) for name in self.places])
        monkeypatch.setattr(cluster_drain, "_node_of", self.look_up)
        monkeypatch.setattr(cluster_drain, "_tell_ray", self.tell)

    def look_up(self, node: str) -> str:
        assert threading.current_thread() is not threading.main_thread(), "Ray is asked on a thread"
        return NODE

    def tell(self, node_id: str, timeout_s: float) -> str:
        time.sleep(0.05)
        self.told_s.append(timeout_s)
        return ""

    async def call(self, actor: str, method: str, *args: Any, timeout_s: float) -> Any:
        if method == "status":
            place = self.places[actor]
            if isinstance(place, BaseException):
                raise place
            return {"node": place}
        assert method == ("drain_and_end" if actor.startswith("host:") else "drain")
        self.given_s[actor] = args[0]
        return self.drained[actor]


async def test_a_drained_node_says_who_left_who_works_and_who_cannot_be_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here, elsewhere = NODE[:12], "ffff00001111"
    cluster = Cluster(
        {
            "agent:idle": here,
            "agent:works": here,
            "agent:far": elsewhere,
            "agent:hangs": TimeoutError(),
            "agent:dead": ActorDiedError(),
            "agent:leaves": AgentUnloadedError("it has left"),
            "host:0": here,
            "host:1": here,
            "host:2": ActorUnavailableError("its node does not answer", b"0" * 16),
        },
        {
            "agent:idle": True,
            "agent:works": False,
            "host:0": {"unloaded": 3, "left": []},
            "host:1": {"unloaded": 1, "left": ["b", "c"]},
        },
    )
    cluster.install(monkeypatch)
    report = await drain_node("phronomy", NODE[:6], 5.0)
    assert report.node == NODE
    assert report.moved == ("agent:idle", "host:0")
    assert report.left == ("works", "b", "c", "hangs", "some of host:2")
    assert cluster.killed == ["host:0"], "an empty host is started elsewhere; one with work in it is let live"
    assert set(cluster.given_s) == {"agent:idle", "agent:works", "host:0", "host:1"}
    assert [told for told in cluster.told_s if 4.5 < told <= 5.0] == cluster.told_s
    assert max(cluster.given_s.values()) <= 4.95, "what telling Ray took is gone for everybody"
    assert len(set(cluster.given_s.values())) == 1


async def test_what_ray_does_not_do_in_time_is_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    given_s: list[float] = []

    def run(command: list[str], *, timeout: float, **_: Any) -> Any:
        given_s.append(timeout)
        raise subprocess.TimeoutExpired(command, timeout)

    cluster = Cluster({"agent:idle": NODE[:12]}, {"agent:idle": True})
    tell_ray = cluster_drain._tell_ray
    cluster.install(monkeypatch)
    monkeypatch.setattr(cluster_drain, "_tell_ray", tell_ray)
    monkeypatch.setattr(cluster_drain.ray, "get_runtime_context", lambda: SimpleNamespace(gcs_address="h:1"))
    monkeypatch.setattr(cluster_drain.subprocess, "run", run)
    report = await drain_node("phronomy", NODE, 2.0)
    assert "did not end within" in report.ray_refusal
    assert report.moved == ("agent:idle",), "the agents leave all the same"
    assert 1.5 < given_s[0] <= 2.0
