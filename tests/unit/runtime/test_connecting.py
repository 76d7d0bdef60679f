"""What a driver is told when Ray does not let it in."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import AuthenticationError

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.runtime.ray_home import _connect


@pytest.mark.parametrize("refusal", [AuthenticationError("no token was found"), ConnectionError("no answer")])
def test_a_cluster_that_lets_nobody_in_is_an_error_that_says_where_its_token_is(
    monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    def refuse(**_: Any) -> None:
        raise refusal

    monkeypatch.setattr(ray, "init", refuse)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    config: Any = SimpleNamespace(address="head:6379", namespace="n", ray_options={}, runtime_env={})
    with pytest.raises(
        ConfigurationError, match=r"at 'head:6379' \(no .*RAY_AUTH_MODE=token, and ~/\.ray/auth_token"
    ):
        _connect(config)
