"""Which Ray cluster a command talks to, found out quickly: `ray.init` itself waits for minutes on a stale address."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
from collections.abc import Iterator

from phronomy_ray.cli.exit_codes import ClusterUnavailableError, ExitCode

PROBE_TIMEOUT_S = 3.0
CONNECT_TIMEOUT_S = 45.0
_HINT = "give --address (or PHRONOMY_RAY_ADDRESS), or start a cluster with `ray start --head`"


def find_cluster(address: str) -> str:
    """The address to connect to: `address` itself, or for ``auto`` the cluster that runs on this machine.

    Nothing is connected; a port that nobody listens on is found out.

    Raises:
        ClusterUnavailableError: nobody answers, or several clusters run here and none is the machine's own one.
    """
    if address == "local" or address.startswith("ray://"):
        return address
    if address != "auto":
        if not is_listening(address):
            raise ClusterUnavailableError(f"no Ray cluster answers at {address!r}: {_HINT}")
        return address
    candidates = [found for found in _candidates() if is_listening(found)]
    if not candidates:
        raise ClusterUnavailableError(f"no Ray cluster runs on this machine: {_HINT}")
    if len(candidates) > 1:
        raise ClusterUnavailableError(
            f"several Ray clusters run on this machine ({', '.join(candidates)}): say which with --address"
        )
    return candidates[0]


def is_listening(address: str) -> bool:
    """Whether somebody listens at the address that Ray makes of `address`; false for a malformed one."""
    from ray._private.services import canonicalize_bootstrap_address

    with contextlib.suppress(OSError, ValueError, TypeError, ConnectionError):
        host, _, port = str(canonicalize_bootstrap_address(address)).rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=PROBE_TIMEOUT_S):
            return True
    return False


@contextlib.contextmanager
def connecting(address: str) -> Iterator[None]:
    """Ends the process with a clear error when the block, which connects to `address`, takes too long.

    `ray.init` goes on for minutes when something else than a Ray head of ours listens there, and cannot be interrupted.
    Nothing has been started at that point, so the process can go.
    """

    def give_up() -> None:
        sys.stderr.write(
            f"error: the Ray cluster at {address!r} did not let us in within {CONNECT_TIMEOUT_S:g} s: {_HINT} "
            f"[{ClusterUnavailableError.default_code}]\n"
        )
        sys.stderr.flush()
        os._exit(ExitCode.UNAVAILABLE)

    if address == "local":  # our own cluster may take its time
        yield
        return
    timer = threading.Timer(CONNECT_TIMEOUT_S, give_up)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _candidates() -> list[str]:
    """The cluster of `ray start` if there is one, else whatever runs here."""
    from ray._private import services

    own = services.find_bootstrap_address(None)
    if own and is_listening(own):
        return [own]
    return sorted(services.find_gcs_addresses())  # type: ignore[no-untyped-call]


__all__ = ["connecting", "find_cluster", "is_listening"]
