"""A process that was told to end does so, whatever handler was there."""

from __future__ import annotations

import signal
import subprocess
import sys

from phronomy_ray.testing import processes

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


ORPHAN = """
import os, threading
from phronomy_ray.actors.signals import die_with_parent
die_with_parent(every_s=0.02)
print(os.getpid(), flush=True)
threading.Event().wait(60)
"""
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {ORPHAN!r}])"


def test_a_process_ends_with_the_one_that_started_it() -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        orphan = int(parent.stdout.readline())
        assert processes.is_alive(orphan)
        parent.kill()
        assert not processes.wait_dead([orphan], timeout_s=20)
