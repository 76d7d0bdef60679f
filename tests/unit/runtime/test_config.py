"""What a runtime is configured with when nothing is given."""

from __future__ import annotations

import pytest

from phronomy_ray import Dedicated, InProcess, Packed
from phronomy_ray.definition.placement import Placement
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.runtime.config import PLACEMENT_ENV, resolve_config


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Dedicated()),
        ("dedicated", Dedicated()),
        ("packed", Packed()),
        ("packed:4", Packed(hosts=4)),
        ("in-process", InProcess()),
    ],
)
def test_a_placement_comes_from_the_environment_unless_it_is_given(
    monkeypatch: pytest.MonkeyPatch, text: str, expected: Placement
) -> None:
    monkeypatch.setenv(PLACEMENT_ENV, text)
    assert resolve_config().placement == expected
    given = Packed(hosts=7)
    assert resolve_config(placement=given).placement is given


@pytest.mark.parametrize("text", ["packed:many", "packed:0", "everywhere", "in-process:3"])
def test_a_placement_that_nobody_knows_is_refused(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv(PLACEMENT_ENV, text)
    with pytest.raises(ConfigurationError):
        resolve_config()


def test_a_placement_is_a_placement() -> None:
    with pytest.raises(ConfigurationError, match="Dedicated"):
        resolve_config(placement="packed")  # type: ignore[arg-type]
