"""The store port's contract on both engines."""

from __future__ import annotations

import pytest

from phronomy_ray.testing import store_conformance as suite


@pytest.fixture(params=["sqlite_database", "lent_postgres"], ids=["sqlite", "postgres"])
def store_factory(request: pytest.FixtureRequest) -> suite.StoreFactory:
    return request.getfixturevalue(request.param).open


class TestAgents(suite.AgentConformance):
    pass


class TestFencing(suite.FencingConformance):
    pass


class TestCommits(suite.CommitConformance):
    pass


class TestExecutions(suite.ExecutionConformance):
    pass


class TestSettle(suite.SettleConformance):
    pass


class TestGroups(suite.GroupConformance):
    pass


class TestDeliveries(suite.DeliveryConformance):
    pass


class TestHydration(suite.HydrationConformance):
    pass


class TestPlacements(suite.PlacementConformance):
    pass


class TestPurge(suite.PurgeConformance):
    pass


class TestRetentions(suite.RetentionConformance):
    pass


class TestQueue(suite.QueueConformance):
    pass


class TestSupervision(suite.SupervisionConformance):
    pass


class TestContent(suite.ContentConformance):
    pass


class TestContentCollection(suite.ContentCollectionConformance):
    pass


class TestReads(suite.ReadConformance):
    pass


class TestApprovals(suite.ApprovalConformance):
    pass


class TestRules(suite.RuleConformance):
    pass
