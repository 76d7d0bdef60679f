"""What the benchmarks' models answer: for the scripted model and for the HTTP server alike."""

from __future__ import annotations

from phronomy_ray.models.script import Reply, ScriptRequest, call, calls, final


def one_tool_turn(request: ScriptRequest) -> Reply:
    """Two model calls: ask for one tool call, then answer."""
    if request.messages[-1]["role"] == "user":
        return calls(call("lookup", {"key": "price"}))
    return final("The price is 42 euros, as the table says.")


def hold_turn(request: ScriptRequest) -> Reply:
    """Ask for one call of `hold`, with the folder that the user named."""
    if request.messages[-1]["role"] == "user":
        return calls(call("hold", {"folder": request.messages[-1]["content"]}))
    return final("done")
