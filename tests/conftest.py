"""What every test gets: no telemetry, no settings of the machine, slow-machine limits for hypothesis.

Fixtures for Ray, stores and models belong to the folders that use them.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Before anything imports ray or litellm; inherited by every process that a test starts.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"
# A running cluster, a store or a model of the machine must not change what a test sees.
for _name in [name for name in os.environ if name.startswith("PHRONOMY_") or name == "RAY_ADDRESS"]:
    del os.environ[_name]

# Time limits of single examples say more about the machine than about the code.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run, so that a change is judged by itself.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))
