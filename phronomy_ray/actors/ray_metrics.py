"""The numbers of pools and agents in Ray's own metrics, beside the JSON that the actors give when asked."""

from __future__ import annotations

from collections.abc import Mapping

from ray.util.metrics import Counter, Gauge, Histogram

from phronomy_ray.tools.pool_metrics import BUCKETS_S, PoolMetrics

_GAUGES = ("running", "queued", "abandoned", "workers")


class PoolGauges:
    """Metrics ``phronomy_pool_...`` of one pool, tagged with its name."""

    def __init__(self, pool: str) -> None:
        self._tags = {"pool": pool}
        keys = ("pool",)
        self._gauges = {
            name: Gauge(f"phronomy_pool_{name}", f"Calls or workers of a pool: {name}.", keys)
            for name in _GAUGES
        }
        self._outcomes = Counter(
            "phronomy_pool_outcomes_total", "Outcomes of calls, by status.", ("pool", "status")
        )
        self._rejected = Counter("phronomy_pool_rejected_total", "Calls refused for lack of room.", keys)
        bounds = list(BUCKETS_S)
        self._wait = Histogram(
            "phronomy_pool_wait_s", "Wait before a body begins, a sample of calls.", bounds, keys
        )
        self._run = Histogram("phronomy_pool_run_s", "Run of a body, a sample of calls.", bounds, keys)
        self._told: dict[str, int] = {}

    def update(self, values: Mapping[str, object], metrics: PoolMetrics) -> None:
        """Report what has changed. One observation costs more than a whole call here, so only samples are observed."""
        for name, gauge in self._gauges.items():
            value = values[name]
            if isinstance(value, int):
                gauge.set(value, self._tags)
        for status, count in metrics.outcomes.items():
            self._grow(self._outcomes, f"outcome {status}", count, {**self._tags, "status": status})
        self._grow(self._rejected, "rejected", metrics.rejected, self._tags)
        waits, runs = metrics.take_samples()
        for seconds in waits:
            self._wait.observe(seconds, self._tags)
        for seconds in runs:
            self._run.observe(seconds, self._tags)

    def _grow(self, counter: Counter, name: str, count: int, tags: dict[str, str]) -> None:
        grown = count - self._told.get(name, 0)
        if grown > 0:
            counter.inc(grown, tags)
            self._told[name] = count


class AgentGauges:
    """Metrics ``phronomy_agent_...`` of one agent, tagged with its id."""

    def __init__(self, agent_id: str) -> None:
        self._tags = {"agent_id": agent_id}
        keys = ("agent_id",)
        self._lag = Gauge("phronomy_agent_loop_lag_s", "How late the agent's event loop was.", keys)
        self._depth = Gauge("phronomy_agent_waiting_calls", "Calls that wait at the agent's actor.", keys)
        self._blocked = Counter(
            "phronomy_agent_blocked_by_tool_total", "Times a tool held the loop.", ("agent_id", "tool")
        )

    def looked(self, late_s: float, waiting_calls: int) -> None:
        """The loop was looked at."""
        self._lag.set(late_s, self._tags)
        self._depth.set(waiting_calls, self._tags)

    def blocked(self, tool_name: str) -> None:
        """A tool held the loop."""
        self._blocked.inc(1, {**self._tags, "tool": tool_name})


class HostGauges:
    """Metrics ``phronomy_host_...`` of one host, tagged with its name."""

    def __init__(self, host: str) -> None:
        self._tags = {"host_name": host}
        keys = ("host_name",)
        self._lag = Gauge("phronomy_host_loop_lag_s", "How late the host's event loop was.", keys)
        self._depth = Gauge("phronomy_host_waiting_calls", "Calls that wait at the host's agents.", keys)
        self._agents = Gauge("phronomy_host_agents", "Agents that live in the host.", keys)
        self._blocked = Counter(
            "phronomy_host_blocked_by_tool_total",
            "Times a tool held the loop.",
            ("host_name", "agent_id", "tool"),
        )

    def looked(self, late_s: float, waiting_calls: int, agents: int) -> None:
        """The loop was looked at."""
        self._lag.set(late_s, self._tags)
        self._depth.set(waiting_calls, self._tags)
        self._agents.set(agents, self._tags)

    def blocked(self, agent_id: str, tool_name: str) -> None:
        """A tool held the loop."""
        self._blocked.inc(1, {**self._tags, "agent_id": agent_id, "tool": tool_name})
