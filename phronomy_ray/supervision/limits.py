"""How a supervisor is set: plain numbers."""

from __future__ import annotations

from dataclasses import dataclass, fields

from phronomy_ray.errors import ConfigurationError
from phronomy_ray.retention import RetentionPolicy

_WHOLE = frozenset({"max_wakes", "hung_after_questions", "questions_per_round"})


@dataclass(frozen=True, slots=True)
class SupervisionLimits:
    """Limits of one supervisor.

    Raises:
        ConfigurationError: a value cannot be used.
    """

    #: How often the store is looked at, in seconds.
    look_every_s: float = 2.0
    #: Wakes under way at once: each may cost a process.
    max_wakes: int = 16
    #: Wakes begun per second, at most.
    wakes_per_s: float = 50.0
    #: First pause after a wake that failed or changed nothing, in seconds; it doubles up to `max_retry_s`.
    first_retry_s: float = 1.0
    max_retry_s: float = 300.0
    #: How long a process may give no answer before it counts as hung, in seconds, and how often it is asked at least.
    hung_after_s: float = 30.0
    hung_after_questions: int = 3
    #: Processes that are asked in one round; of more, each is asked the more seldom.
    questions_per_round: int = 200
    #: Limit of one question, in seconds.
    answer_timeout_s: float = 5.0
    #: How long another cluster's supervisor may show no sign of life before its agents, and the subscriptions that it delivers to,
    #: are taken over, in seconds. Ray needs up to 20 s to bring back a supervisor whose node was lost.
    foreign_after_s: float = 30.0
    #: What is deleted now and then for its age; ``None``: nothing.
    retention: RetentionPolicy | None = None
    #: How often, in seconds; the first time soon after the supervisor has begun.
    collect_every_s: float = 3600.0
    #: How often events that are to be delivered are looked for, in seconds.
    deliver_every_s: float = 0.5

    def __post_init__(self) -> None:
        policy: object = self.retention
        if policy is not None and not isinstance(policy, RetentionPolicy):
            raise ConfigurationError(f"retention must be a RetentionPolicy or None, not {policy!r}")
        for item in fields(self):
            if item.name == "retention":
                continue
            value: object = getattr(self, item.name)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not 0 < float(value) < float("inf"):  # type: ignore[arg-type]
                raise ConfigurationError(f"{item.name} must be a positive number, not {value!r}")
            if item.name in _WHOLE and not isinstance(value, int):
                raise ConfigurationError(f"{item.name} must be a whole number, not {value!r}")


__all__ = ["SupervisionLimits"]
