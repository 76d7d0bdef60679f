"""Which Ray cluster a command talks to, found out quickly: `ray.init` itself waits for minutes on a stale address."""

from __future__ import annotations

import contextlib
import socket

from phronomy_ray.cli.exit_codes import ClusterUnavailableError

PROBE_TIMEOUT_S = 3.0
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


def _candidates() -> list[str]:
    """The cluster of `ray start` if there is one, else whatever runs here."""
    from ray._private import services

    own = services.find_bootstrap_address(None)
    if own and is_listening(own):
        return [own]
    return sorted(services.find_gcs_addresses())  # type: ignore[no-untyped-call]


__all__ = ["find_cluster", "is_listening"]
