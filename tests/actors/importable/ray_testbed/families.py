"""Agents that call agents."""

from __future__ import annotations

from phronomy_ray import Agent
from ray_testbed.agents import hold, note, obedient, send, wire


class Helper(Agent):
    """Does what it is told."""

    model = obedient()
    instructions = "Obey."
    tools = [note, wire, hold, send]
    quiescence_timeout_s = 1.0


class Boss(Agent):
    """Has others work."""

    model = obedient()
    instructions = "Obey."
    tools = [Helper.as_tool(), note]
    quiescence_timeout_s = 5.0
