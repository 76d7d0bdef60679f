"""The store port's contract as tests: where agents live."""

from __future__ import annotations

from phronomy_ray.testing import store_samples as samples
from phronomy_ray.testing.store_samples import START, StoreFactory
from phronomy_ray.whereabouts import Whereabouts


class PlacementConformance:
    """Pins, closed hosts, and who owned an agent last."""

    def test_whereabouts_are_the_last_owner_and_the_pin(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        assert store.whereabouts("alice") == Whereabouts()
        store.pin_agent("alice", "dedicated", now=START)
        assert store.whereabouts("alice") == Whereabouts(pin="dedicated")
        store.create_agent(samples.new_agent("alice"))
        store.claim("alice", owner={"actor": "host:3", "pid": 1}, now=START)
        assert store.whereabouts("alice") == Whereabouts("host:3", "dedicated")
        store.pin_agent("alice", "host:1", now=START)
        assert store.whereabouts("alice") == Whereabouts("host:3", "host:1")
        store.pin_agent("alice", None, now=START)
        store.pin_agent("alice", None, now=START)
        assert store.whereabouts("alice") == Whereabouts("host:3")
        store.claim("alice", owner={}, now=START)
        assert store.whereabouts("alice") == Whereabouts()

    def test_a_pin_goes_with_its_agent(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        for agent_id in ("alice", "bob"):
            store.create_agent(samples.new_agent(agent_id))
            store.pin_agent(agent_id, "dedicated", now=START)
        root = store.claim("alice", owner={}, now=START).root
        assert root.created_at is not None
        assert store.purge_agent("alice", epoch=root.epoch, created_at=root.created_at)
        assert store.whereabouts("alice") == Whereabouts()
        assert store.whereabouts("bob") == Whereabouts(pin="dedicated")

    def test_a_host_is_closed_until_it_is_opened(self, store_factory: StoreFactory) -> None:
        store = store_factory()
        assert not store.is_host_closed("host:0")
        store.close_host("host:0", closed=True, now=START)
        store.close_host("host:0", closed=True, now=START)
        assert store_factory().is_host_closed("host:0")
        assert not store.is_host_closed("host:1")
        store.close_host("host:0", closed=False, now=START)
        assert not store.is_host_closed("host:0")
