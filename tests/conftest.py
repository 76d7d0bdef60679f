"""What every test gets: no telemetry, no settings of the machine, slow-machine limits for hypothesis.

Fixtures for Ray, stores and models belong to the folders that use them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# Before anything imports ray or litellm; inherited by every process that a test starts.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
# Ray's workers are as important as we: below us, as by default, they get next to nothing of a machine that is busy.
os.environ.setdefault("RAY_worker_niceness", "0")
# A running cluster, a store or a model of the machine must not change what a test sees.
for _name in [name for name in os.environ if name.startswith("PHRONOMY_") or name == "RAY_ADDRESS"]:
    del os.environ[_name]
# Tests leave agents in every state on purpose; those of the supervisor ask for one.
os.environ["PHRONOMY_SUPERVISOR"] = "off"

# Time limits of single examples say more about the machine than about the code.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run, so that a change is judged by itself.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An SQLite file with the schema, to be copied: the migrations take longer than most tests."""
    from phronomy_ray.store.migrate import Migrations

    path = tmp_path_factory.mktemp("template") / "store.db"
    Migrations(f"sqlite:///{path}").upgrade()
    assert not path.with_name("store.db-wal").exists(), "the last connection closes the WAL"
    return path
