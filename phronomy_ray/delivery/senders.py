"""One attempt to deliver: to a webhook over HTTP, or to a function. Never raises for what a receiver does."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

from phronomy_ray.clock import Clock
from phronomy_ray.definition.importing import import_object
from phronomy_ray.delivery.plan import Answer, Outcome
from phronomy_ray.delivery.signing import ID_HEADER, SIGNATURE_HEADER, TIMESTAMP_HEADER, signature
from phronomy_ray.errors import PhronomyError, safe_message
from phronomy_ray.models.retry import retry_after_s
from phronomy_ray.redaction import redact_text
from phronomy_ray.subscriptions import Callback, DeliveredEvent, DeliveryError, Target, Webhook
from phronomy_ray.tools.off_loop import call_here, off_loop
from phronomy_ray.worker_inputs import WorkerInputRestricted

if TYPE_CHECKING:
    import httpx

USER_AGENT = "phronomy-ray"
ATTEMPT_HEADER = "phronomy-attempt"
#: Of an answer's body so much is read, so that its connection can be used again; nothing of it is kept.
MAX_ANSWER_BYTES = 65_536
#: And for so long, in seconds.
LEAVE_S = 1.0
#: Calls of one function that may hang at once, each of which holds a thread; then no more are made.
MAX_OVERDUE = 8
#: Statuses that say that the receiver has no time now. Other ones below 500 are about the event.
_BUSY = frozenset({408, 425, 429})
_GONE = 410


class Sender(Protocol):
    """The way to one target. Use it on one event loop."""

    async def send(self, event: DeliveredEvent) -> Answer:
        """Deliver `event`; the answer says what is known of it."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


def sender_for(target: Target, clock: Clock) -> Sender:
    """The sender for `target`."""
    if isinstance(target, Webhook):
        return WebhookSender(target, clock)
    return CallbackSender(target)


class WebhookSender(WorkerInputRestricted):
    """Posts events to a URL."""

    def __init__(
        self, target: Webhook, clock: Clock, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self._target = target
        self._clock = clock
        self._environment = os.environ if environment is None else environment
        self._client: httpx.AsyncClient | None = None

    async def send(self, event: DeliveredEvent) -> Answer:
        """As `Sender.send`."""
        import httpx  # a tenth of a second, in the deliverer's process only

        logging.getLogger("httpx").setLevel(logging.WARNING)  # it tells every URL, which may hold a token

        body = event.body().encode()
        try:
            headers = self._headers(event, body)
        except PhronomyError as error:
            return _unable(error.code, error.message)
        if headers is None:
            name = self._target.secret_env
            return _unable(
                "secret_missing", f"the environment variable {name} is not set where events are delivered"
            )
        if self._client is None:
            self._client = httpx.AsyncClient(follow_redirects=False, timeout=self._target.timeout_s)
        request = self._client.build_request("POST", self._target.url, content=body, headers=headers)
        answer: Answer | None = None
        try:
            async with asyncio.timeout(self._target.timeout_s):
                response = await self._client.send(request, stream=True)
                answer = self._answer(response)  # what comes after the headers changes nothing
                async with asyncio.timeout(LEAVE_S):
                    await _leave(response)
        except TimeoutError:
            return answer or _unavailable("timeout", f"no answer within {self._target.timeout_s:g} s")
        except Exception as error:  # noqa: BLE001 - whatever HTTP, TLS or the resolver raises: it was not delivered
            # without the error's text, which may name the URL
            text = f"the receiver cannot be reached ({type(error).__name__})"
            return answer or _unavailable("unreachable", text)
        return answer

    async def close(self) -> None:
        """As `Sender.close`."""
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()

    def _headers(self, event: DeliveredEvent, body: bytes) -> dict[str, str] | None:
        seconds = int(self._clock.now().timestamp())
        headers = {
            "content-type": "application/json",
            "user-agent": USER_AGENT,
            ID_HEADER: event.event_id,
            TIMESTAMP_HEADER: str(seconds),
            ATTEMPT_HEADER: str(event.attempt),
        }
        if self._target.secret_env:
            secret = self._environment.get(self._target.secret_env, "")
            if not secret.strip():
                return None
            headers[SIGNATURE_HEADER] = signature(secret, event.event_id, seconds, body)
        return headers

    def _answer(self, response: httpx.Response) -> Answer:
        status = response.status_code
        if 200 <= status < 300:
            return Answer(Outcome.DELIVERED)
        error = DeliveryError("http_status", f"the receiver answered {status}", status)
        if status == _GONE:
            return Answer(Outcome.GONE, error)
        if status >= 500 or status in _BUSY:
            wait_s = retry_after_s(response.headers.get("retry-after"), self._clock.now())
            return Answer(Outcome.UNAVAILABLE, error, wait_s)
        return Answer(Outcome.REFUSED, error)


async def _leave(response: httpx.Response) -> None:
    read = 0
    try:
        async for chunk in response.aiter_raw():
            read += len(chunk)
            if read > MAX_ANSWER_BYTES:
                break
    finally:
        await response.aclose()


class CallbackSender(WorkerInputRestricted):
    """Calls a function on a thread of its own."""

    def __init__(self, target: Callback) -> None:
        self._target = target
        self._function: Callable[..., Any] | None = None
        #: Calls whose time was over and that still hold a thread.
        self._overdue: set[object] = set()

    async def send(self, event: DeliveredEvent) -> Answer:
        """As `Sender.send`."""
        path = self._target.function
        if self._function is None:
            try:
                found = await asyncio.to_thread(
                    import_object, path, what="a function", form="module:function"
                )
            except PhronomyError as error:
                return _unable("callback_unavailable", redact_text(error.message))
            if not callable(found):
                return _unable("callback_unavailable", f"{path} cannot be called")
            self._function = found
        if len(self._overdue) >= MAX_OVERDUE:
            return _unavailable("callback_stuck", f"{len(self._overdue)} calls of {path} have not returned")
        limit_s = self._target.timeout_s
        call, ended = object(), threading.Event()
        try:
            await off_loop(self._call, event, call, ended, timeout_s=limit_s, name="phronomy-delivery")
        except TimeoutError:
            self._overdue.add(call)
            if ended.is_set():  # in this very moment
                self._overdue.discard(call)
            return _unavailable("timeout", f"{path} did not return within {limit_s:g} s")
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything: it has not taken the event
            text = redact_text(f"{type(error).__name__}: {safe_message(error)}")
            return Answer(Outcome.REFUSED, DeliveryError("callback_failed", f"{path} raised {text}"))
        return Answer(Outcome.DELIVERED)

    def _call(self, event: DeliveredEvent, call: object, ended: threading.Event) -> None:
        assert self._function is not None
        try:
            call_here(self._function, event)
        finally:
            ended.set()
            self._overdue.discard(call)

    async def close(self) -> None:
        """As `Sender.close`: nothing is held."""


def _unable(code: str, message: str) -> Answer:
    return Answer(Outcome.UNABLE, DeliveryError(code, message))


def _unavailable(code: str, message: str) -> Answer:
    return Answer(Outcome.UNAVAILABLE, DeliveryError(code, message))


__all__ = ["CallbackSender", "Sender", "WebhookSender", "sender_for"]
