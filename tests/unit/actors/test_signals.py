"""A process that was told to end does so, whatever handler was there."""

from __future__ import annotations

import signal
import subprocess
import sys

PROGRAM = """
import os, signal, threading
from phronomy_ray.actors.signals import die_at_sigterm
signal.signal(signal.SIGTERM, lambda *_: print("not yet", flush=True))
thread = threading.Thread(target=die_at_sigterm)
thread.start()
thread.join()
os.kill(os.getpid(), signal.SIGTERM)
threading.Event().wait(20)
"""


def test_sigterm_ends_a_process_at_once_although_a_handler_was_set() -> None:
    found = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert (found.returncode, found.stdout) == (-signal.SIGTERM, ""), found.stderr
