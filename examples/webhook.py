"""An agent whose ends are delivered to a webhook: signed, at least once, in order.

python examples/webhook.py            # agent, supervisor and receiver in one process, on a store in a temporary folder

The receiver fails at its first request on purpose: the event comes again, with the same id.
"""

import json
import os
import tempfile
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import ClassVar

from phronomy_ray import Agent, InProcess, Runtime, Webhook, verify_webhook
from phronomy_ray.clock import utc_now
from phronomy_ray.models.scripted import ScriptedModel, final

SECRET_ENV = "EXAMPLE_WEBHOOK_SECRET"


class Clerk(Agent):
    """Answers at once."""

    model = ScriptedModel([final("filed")])


class Receiver(BaseHTTPRequestHandler):
    """What you would write in your own web framework."""

    done: ClassVar[set[str]] = set()
    attempts = 0
    is_done = threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        event_id = verify_webhook(dict(self.headers), body, secret=os.environ[SECRET_ENV], now=utc_now())
        Receiver.attempts += 1
        if Receiver.attempts == 1:
            print("the receiver fails")
            self._answer(503)
            return
        if event_id not in Receiver.done:
            event = json.loads(body)
            print(f"{event['data']['execution_id']} is {event['type']}")
            Receiver.done.add(event_id)  # with your own work, in one transaction
        self._answer(204)
        Receiver.is_done.set()

    def _answer(self, status: int) -> None:
        self.send_response(status)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""


def main() -> None:
    """Run everything."""
    os.environ[SECRET_ENV] = "a secret that both ends know"
    server = HTTPServer(("127.0.0.1", 0), Receiver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder:
        with Runtime(
            store=f"sqlite:///{folder}/agents.db", placement=InProcess(), supervisor=True
        ) as runtime:
            hook = Webhook(
                url=f"http://127.0.0.1:{server.server_port}/", secret_env=SECRET_ENV, events=["completed"]
            )
            runtime.subscriptions.add(hook, subscription_id="example")
            runtime.create(Clerk, "clerk").invoke("file this", execution_id="ex1")
            Receiver.is_done.wait(30)
    server.shutdown()
    server.server_close()
    print(f"{Receiver.attempts} attempts, {len(Receiver.done)} event")


if __name__ == "__main__":
    main()
