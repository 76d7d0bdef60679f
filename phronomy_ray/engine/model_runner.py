"""One model call of an execution: streams tokens to observers, and ends in exactly one input for the kernel."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from phronomy_ray.errors import CancellationError, ErrorRecord, ModelError, PhronomyError
from phronomy_ray.events import EventType
from phronomy_ray.frozen import replace
from phronomy_ray.kernel.effects import CallModel
from phronomy_ray.kernel.inputs import ModelAnswered, ModelFailed, ModelStopped
from phronomy_ray.messages import Role
from phronomy_ray.models.assembly import with_unique_ids
from phronomy_ray.models.port import ModelAnswer, ModelPort, StreamReset, TextDelta
from phronomy_ray.redaction import SECRET_SETTINGS, redact_error, redact_json, secret_values


async def run_model_call(
    port: ModelPort, effect: CallModel, *, observe: Callable[[EventType, dict[str, object]], None]
) -> ModelAnswered | ModelFailed | ModelStopped:
    """Make the call. Cancelling the task gives `ModelStopped`; every other end is an answer or a failure.

    What a port does against its contract is put right here: call ids that are missing or repeated, and errors of any
    class. Texts of errors are kept without the secrets of the request's settings.
    """
    request = effect.request
    secrets = secret_values(request.settings, SECRET_SETTINGS)
    try:
        answer: ModelAnswer | None = None
        if effect.stream:
            async for item in port.stream(request):
                if answer is not None:
                    raise ModelError("the model's stream went on after its answer", code="model_protocol")
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
        return ModelAnswered(request.call_id, _checked(answer, request.call_id, secrets))
    except BaseException as error:  # noqa: BLE001 - a port may raise anything; the execution must end, and not the loop
        task = asyncio.current_task()
        if (
            isinstance(error, asyncio.CancelledError | CancellationError)
            and task is not None
            and task.cancelling()
        ):
            return ModelStopped(request.call_id)
        attempts = error.details.pop("attempts", []) if isinstance(error, PhronomyError) else []
        record = redact_error(ErrorRecord.from_exception(error), secrets)
        return ModelFailed(request.call_id, record, redact_json(list(attempts), secrets))


def _checked(answer: ModelAnswer, call_id: str, secrets: frozenset[str]) -> ModelAnswer:
    message = answer.message
    content: object = message.content
    if message.role is not Role.ASSISTANT or not (content is None or isinstance(content, str)):
        raise ModelError(
            f"the model port answered with a {message.role.value} message whose content is a {type(content).__name__}",
            code="model_protocol",
        )
    calls = with_unique_ids(message.tool_calls, seed=call_id)
    if calls != message.tool_calls:
        message = replace(message, tool_calls=calls)
    attempts = tuple(
        attempt if attempt.error is None else replace(attempt, error=redact_error(attempt.error, secrets))
        for attempt in answer.attempts
    )
    return replace(answer, message=message, attempts=attempts)
