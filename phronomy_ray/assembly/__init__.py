"""Which tools an agent has in one turn: registries, capabilities, and the assembly of both with the agent's own tools."""
