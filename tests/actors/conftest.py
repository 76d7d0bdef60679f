"""Tests on real Ray: one cluster for the session, made by `ray_testbed` on first use."""

from __future__ import annotations

import sys
from pathlib import Path

# In front of everything: the modules that workers and other drivers import by the same name.
_IMPORTABLE = str(Path(__file__).resolve().parent / "importable")
if _IMPORTABLE not in sys.path:
    sys.path.insert(0, _IMPORTABLE)

import pytest  # noqa: E402

if "ray_testbed.checks" not in sys.modules:  # else another folder of this run has done it
    pytest.register_assert_rewrite("ray_testbed.checks")

import ray_testbed.session  # noqa: E402, F401  sets the environment that agents are declared with
from ray_testbed.fixtures import (  # noqa: E402, F401
    bench,
    connected,
    disconnect_after,
    engine,
    faults,
    new_id,
    puppet,
    runtime,
    shared,
    shared_bench,
)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    disconnect_after(item, nextitem)
