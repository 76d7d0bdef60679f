"""SIGTERM ends our actors at once.

Ray's handler lets running methods end first and takes no new ones, and the methods that wait for news never end: the process
would stay, be sent calls, and begin none of them. Everything here is made to be killed, so dying is the better answer.
"""

from __future__ import annotations

import ctypes
import signal


def die_at_sigterm() -> None:
    """Give SIGTERM its default meaning in this process; may be called from any thread, which `signal.signal` may not."""
    set_handler = ctypes.CDLL(None).signal
    set_handler.argtypes = (ctypes.c_int, ctypes.c_void_p)
    set_handler.restype = ctypes.c_void_p
    set_handler(signal.SIGTERM, None)  # SIG_DFL is the null pointer
