"""What `doctor` asks a cluster, in a process of its own: a connection that hangs must not hang the doctor.

``python -m phronomy_ray.cli.probe ADDRESS NAMESPACE GATEWAYS`` prints one JSON document.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Any

PING_TIMEOUT_S = 20.0


def probe(address: str, namespace: str, gateways: int) -> dict[str, Any]:
    """Connect, look at nodes and gateways, and disconnect; starts nothing."""
    import ray

    from phronomy_ray.actors.model_gateway import gateway_name
    from phronomy_ray.actors.ray_calls import find_actor

    ray.init(address=address, namespace=namespace, logging_level=logging.ERROR, log_to_driver=False)
    try:
        nodes = [node for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]
        found: list[dict[str, Any]] = []
        for number in range(gateways):
            handle: Any = find_actor(gateway_name(number), namespace)
            if handle is None:
                continue
            try:
                answer: Any = ray.get(handle.ping.remote(), timeout=PING_TIMEOUT_S)
            except Exception as error:  # noqa: BLE001 - whatever is wrong with it is what the doctor reports
                found.append({"name": gateway_name(number), "ok": False, "error": type(error).__name__})
            else:
                found.append({"name": gateway_name(number), "ok": True, "pid": answer["pid"]})
        return {"address": address, "ray": ray.__version__, "nodes": len(nodes), "gateways": found}
    finally:
        ray.shutdown()


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1], sys.argv[2], int(sys.argv[3]))))
