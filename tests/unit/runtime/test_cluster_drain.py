"""What an actor that is asked to drain answers, without Ray: the answers are given by the test."""

from __future__ import annotations

from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from phronomy_ray.runtime import cluster_drain
from phronomy_ray.runtime.cluster_drain import drain_actor


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
