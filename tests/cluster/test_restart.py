"""The whole cluster is lost and another one is started on the same store."""

from __future__ import annotations

from collections.abc import Callable

from ray_testbed import effects
from ray_testbed.agents import Puppet, asked, turn
from ray_testbed.session import Session

from phronomy_ray import Packed, Runtime, SupervisionLimits
from phronomy_ray.journal import ExecutionStatus
from phronomy_ray.testing.local_cluster import LocalCluster

#: Impatient, so that the test is short.
LIMITS = SupervisionLimits(look_every_s=0.2, foreign_after_s=2.0)


def test_R08_after_the_loss_of_everything_the_first_driver_is_enough(
    shared: Session, new_id: Callable[[str], str]
) -> None:
    """Two executions in a model call, a queue behind one of them, and one that waits for a human."""
    shared.disconnect()
    url = shared.new_store("sqlite")
    gate, busy, other, asking = new_id("gate"), new_id("busy"), new_id("other"), new_id("asking")
    with (
        LocalCluster(workers=0, env=shared.environment) as cluster,
        Runtime(cluster.address, store=url, supervisor=LIMITS, placement=Packed(hosts=1)) as runtime,
    ):
        ids = []
        for agent_id in (busy, other):
            agent = runtime.create(Puppet, agent_id)
            ids.append(agent.start(turn(answer="after all", model_gates={1: gate})).execution_id)
        ids.append(runtime.agent(busy).start("and then?", on_busy="queue").execution_id)
        result = runtime.create(Puppet, asking).invoke(turn([("send", {"text": "x"})]))
        assert result.suspended
        for agent_id in (busy, other):
            effects.until(lambda name=agent_id: bool(asked(name)), "the model call")
        lost = runtime.store.load_root(busy)
    effects.open_gate(gate)
    with (
        LocalCluster(workers=0, env=shared.environment) as cluster,
        Runtime(cluster.address, store=url, supervisor=LIMITS, placement=Packed(hosts=1)) as runtime,
    ):
        effects.until(
            lambda: (
                sum(row.status is ExecutionStatus.COMPLETED for row in runtime.store.list_executions()) == 3
            ),
            "everything to end, although nobody has asked for it",
        )
        outputs = [runtime.store.load_execution(execution_id).output for execution_id in ids]
        assert outputs == ["after all", "after all", "you said: and then?"]
        now = runtime.store.load_root(busy)
        assert now.owner["cluster"] != lost.owner["cluster"]
        assert now.epoch == lost.epoch + 1
        assert runtime.store.load_execution(result.execution_id).status is ExecutionStatus.SUSPENDED
        assert runtime.store.load_root(asking).owner["cluster"] == lost.owner["cluster"], (
            "it needs no process"
        )
