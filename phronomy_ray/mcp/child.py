"""The parent of a stdio server: a small process that ends the server, and what it started, when our own process dies.

A gateway killed by SIGKILL can close nothing. Its end of the server's input closes with it, which ends a server that
reads its input; for all others the kernel tells this process (a parent-death signal), and it kills its process group
after a moment. Should somebody kill this process itself (Ray does that to the children of a worker that it ends), the
kernel kills the server. Nothing passes through: the server has the pipes, and this process closes its own copies.

Run as a script in isolated mode, without this package and without site-packages: ``child.py <pid of the parent>
<program> <arguments>...``. Its exit code is the server's, 127 when there is no such program.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from types import FrameType

#: How long the server has to end by itself once it is told to, in seconds.
GRACE_S = 2.0
_PR_SET_PDEATHSIG = 1


def _kill_group(_number: int, _frame: FrameType | None) -> None:
    os.killpg(0, signal.SIGKILL)


def _end_soon(_number: int, _frame: FrameType | None) -> None:
    signal.setitimer(signal.ITIMER_REAL, GRACE_S)


def _follow(parent: int, number: signal.Signals) -> bool:
    """Have the kernel send `number` to this process when its parent dies; false when it is dead already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)
    return os.getppid() == parent


def main(argv: list[str]) -> int:
    """Start the server, wait for its end."""
    parent, command = int(argv[1]), argv[2:]
    if os.getpgrp() != os.getpid():
        os.setsid()
    signal.signal(signal.SIGALRM, _kill_group)
    signal.signal(signal.SIGTERM, _end_soon)
    if not _follow(parent, signal.SIGTERM):
        return 1
    own = os.getpid()
    server = os.fork()
    if server == 0:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if not _follow(own, signal.SIGKILL):
            os._exit(1)
        try:
            os.execvp(command[0], command)
        except OSError as error:
            os.write(2, f"{command[0]}: {error.strerror}\n".encode())
            os._exit(127)
    os.close(0)
    os.close(1)
    _, status = os.waitpid(server, 0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)  # what the server left behind
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv))
