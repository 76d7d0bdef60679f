"""Ends a worker process that eats its node's memory, before Ray's memory monitor ends others for it.

Ray's monitor prefers victims that it can restart, which agents, pools and gateways are and tool workers are not; among
those it takes the newest, whatever they use. So a worker watches itself: when its node is nearly at Ray's limit and the
worker has grown by much, or when it is over its pool's own limit, it says so and dies. A body that holds the interpreter
while it allocates is not noticed in time, and is left to Ray.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

#: Ray's own switch and default for the share of a node's memory from which it kills.
THRESHOLD_ENV = "RAY_memory_usage_threshold"
DEFAULT_THRESHOLD = 0.95
#: How far below Ray's limit a worker gives way, as a share of the node's memory.
MARGIN = 0.03
#: Growth since its start from which a worker counts as the one that eats, in bytes.
MUCH_BYTES = 192 * 1024 * 1024
POLL_S = 0.1
_CGROUP = Path("/sys/fs/cgroup")


class MemoryWatch:
    """Watches the present process; `on_excess` is called once, on the watching thread, with the reason."""

    def __init__(
        self,
        on_excess: Callable[[str], None],
        *,
        limit_bytes: int | None = None,
        is_needed: Callable[[], bool] = lambda: True,
    ) -> None:
        """`limit_bytes`: most that the process may use. `is_needed`: whether anything runs that could grow."""
        self._on_excess = on_excess
        self._limit_bytes = limit_bytes
        self._is_needed = is_needed
        self._start_bytes = own_bytes()

    def start(self) -> None:
        """Begin to watch, in a thread that ends with the process."""
        threading.Thread(target=self._watch, name="memory-watch", daemon=True).start()

    def _watch(self) -> None:
        while True:
            time.sleep(POLL_S)
            reason = self.excess() if self._is_needed() else ""
            if reason:
                self._on_excess(reason)
                return

    def excess(self) -> str:
        """Why the process must end; empty when it need not."""
        own = own_bytes()
        if self._limit_bytes is not None and own > self._limit_bytes:
            return f"its process used {own >> 20} MiB, and its pool allows {self._limit_bytes >> 20} MiB"
        if own - self._start_bytes < MUCH_BYTES:
            return ""
        used, total = node_bytes()
        if total and used > (ray_threshold() - MARGIN) * total:
            return f"its process used {own >> 20} MiB, and its node was about to run out of memory"
        return ""


def own_bytes() -> int:
    """Resident memory of the present process, without what it shares; 0 where that cannot be read."""
    try:
        resident, shared = Path("/proc/self/statm").read_text().split()[1:3]
    except OSError:
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def node_bytes() -> tuple[int, int]:
    """Memory that is used and that there is, of the machine or of the container; zeros where that cannot be read."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
        total = int(lines["MemTotal"].split()[0]) * 1024
        used = total - int(lines["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError, ValueError):
        return 0, 0
    with contextlib.suppress(OSError, ValueError):  # no container, or one without a limit
        limit = int((_CGROUP / "memory.max").read_text())
        if limit < total:
            stat = dict(line.split() for line in (_CGROUP / "memory.stat").read_text().splitlines())
            idle = int(stat.get("inactive_file", 0)) + int(stat.get("active_file", 0))
            return int((_CGROUP / "memory.current").read_text()) - idle, limit
    return used, total


def ray_threshold() -> float:
    """Share of the memory from which Ray's monitor kills."""
    try:
        return float(os.environ.get(THRESHOLD_ENV, DEFAULT_THRESHOLD))
    except ValueError:
        return DEFAULT_THRESHOLD
