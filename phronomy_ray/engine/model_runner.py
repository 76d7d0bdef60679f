"""One model call of an execution: streams tokens to observers, and ends in exactly one input for the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phronomy_ray.errors import CancellationError, ErrorRecord, ModelError, PhronomyError
from phronomy_ray.events import EventType
from phronomy_ray.kernel.state import CallModel, ModelAnswered, ModelFailed, ModelStopped
from phronomy_ray.models.port import ModelAnswer, ModelPort, StreamReset, TextDelta
from phronomy_ray.tools.envelope import redacted


async def run_model_call(
    port: ModelPort, effect: CallModel, *, observe: Callable[[EventType, dict[str, object]], None]
) -> ModelAnswered | ModelFailed | ModelStopped:
    """Make the call. Cancelling the task gives `ModelStopped`; every other end is an answer or a failure."""
    request = effect.request
    try:
        answer: ModelAnswer | None = None
        if effect.stream:
            async for item in port.stream(request):
                if isinstance(item, TextDelta):
                    observe(EventType.TOKEN, {"text": item.text})
                elif isinstance(item, StreamReset):
                    observe(EventType.STREAM_RESET, {"attempt": item.attempt})
                else:
                    answer = item
        else:
            answer = await port.complete(request)
        if answer is None:
            raise ModelError("the model's stream ended without an answer", code="model_protocol")
        return ModelAnswered(request.call_id, answer)
    except asyncio.CancelledError:
        return ModelStopped(request.call_id)
    except CancellationError:
        return ModelStopped(request.call_id)
    except Exception as error:  # noqa: BLE001 - a port of the user's may raise anything; the execution must end
        attempts = error.details.pop("attempts", []) if isinstance(error, PhronomyError) else []
        return ModelFailed(request.call_id, redacted(ErrorRecord.from_exception(error)), list(attempts))
