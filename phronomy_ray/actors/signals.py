"""What ends our actors from outside: SIGTERM, at once, and the end of their node.

Ray's handler lets running methods end first and takes no new ones, and the methods that wait for news never end: the process
would stay, be sent calls, and begin none of them. Everything here is made to be killed, so dying is the better answer.

A node that the cluster has given up while it was cut off ends its raylet when it comes back, and Ray leaves workers behind that it can
tell nothing any more. Whoever owns agents there has lost them; such a process ends itself.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time

#: How often a process looks whether its raylet is still there, in seconds.
LOOK_S = 5.0


def die_at_sigterm() -> None:
    """Give SIGTERM its default meaning in this process; may be called from any thread, which `signal.signal` may not."""
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes = (ctypes.c_int, ctypes.c_void_p)
    set_handler.restype = ctypes.c_void_p
    set_handler(signal.SIGTERM, None)  # SIG_DFL is the null pointer


def die_with_parent(*, every_s: float = LOOK_S) -> None:
    """Have this process end by itself once the process that started it, for a worker its node's raylet, has ended."""
    threading.Thread(
        target=_watch_parent, args=(os.getppid(), every_s), name="parent-watch", daemon=True
    ).start()


def _watch_parent(parent: int, every_s: float) -> None:
    while os.getppid() == parent:
        time.sleep(every_s)
    os.kill(os.getpid(), signal.SIGKILL)
