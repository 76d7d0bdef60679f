"""How much input the agent's model takes: learnt once, from the definition or from the model port."""

from __future__ import annotations

import logging
from typing import Any

from phronomy_ray.definition.agent_definition import AgentDefinition
from phronomy_ray.errors import ModelError, safe_message
from phronomy_ray.models.port import ModelPort
from phronomy_ray.redaction import redact_text

_LOG = logging.getLogger("phronomy_ray.engine")


class InputBudget:
    """The limit of a model's input, in tokens."""

    def __init__(self, agent_id: str, definition: AgentDefinition, model: ModelPort) -> None:
        self._agent_id = agent_id
        self._definition = definition
        self._model = model
        self._is_known = False
        #: ``None`` for no limit, and until it is known.
        self.tokens: int | None = None

    async def learn(self) -> None:
        """Ask, unless it is known. Raises `ModelError` when nobody can say."""
        if self._is_known:
            return
        definition = self._definition
        window = definition.context_window
        if window is None:
            by_name = isinstance(definition.model, str)
            port = self._model if by_name else definition.model
            name = definition.model if by_name else type(definition.model).__name__
            window = await _window_of(port, name) if hasattr(port, "info") else None
        if window is not None:
            self.tokens = max(1, window - (definition.max_output_tokens or 0))
        self._is_known = True

    async def try_to_learn(self) -> None:
        """Before anything that can lead to a model call; a limit that cannot be learned now is asked for again."""
        try:
            await self.learn()
        except ModelError as error:
            _LOG.warning(
                "agent %s: the model's limits are not known: %s", self._agent_id, redact_text(str(error))
            )


async def _window_of(port: Any, name: Any) -> int | None:
    """Tokens that the model takes, ``None`` when the port does not know. Raises `ModelError`, whatever the port raises."""
    try:
        info = await port.info(name)
        return None if info is None else info.max_input_tokens
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(
            f"the model port cannot say what the model takes: {type(error).__name__}: {safe_message(error)}"
        ) from error
