"""The small parent of a stdio server: whoever is killed, the server does not stay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from phronomy_ray.mcp import child
from phronomy_ray.testing import processes

#: Ignores the end of its input and SIGTERM, and says its pid.
STUBBORN = "import os, signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(os.getpid(), flush=True); time.sleep(600)"


def started(*command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-I", "-S", child.__file__, str(os.getpid()), *command],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def stubborn() -> Iterator[tuple[subprocess.Popen[str], int]]:
    process = started(sys.executable, "-c", STUBBORN)
    assert process.stdout is not None
    server = int(process.stdout.readline())
    try:
        yield process, server
    finally:
        processes.kill_hard([process.pid, server])
        process.communicate()


def test_its_exit_code_is_the_servers() -> None:
    plain = started(sys.executable, "-c", "raise SystemExit(7)")
    plain.communicate(timeout=20)
    assert plain.returncode == 7
    killed = started("/bin/sh", "-c", "kill -9 $$")
    killed.communicate(timeout=20)
    assert killed.returncode == 128 + signal.SIGKILL
    missing = started("/no/such/program")
    _, said = missing.communicate(timeout=20)
    assert (missing.returncode, said) == (127, "/no/such/program: No such file or directory\n")


def test_told_to_end_it_kills_a_server_that_does_not_care() -> None:
    with stubborn() as (process, server):
        started_at = time.monotonic()
        process.terminate()
        assert not processes.wait_dead([process.pid, server], timeout_s=20)
        assert (
            time.monotonic() - started_at > child.GRACE_S / 2
        )  # a server that ends by itself has the time to


def test_killed_itself_it_takes_the_server_along() -> None:
    with stubborn() as (process, server):
        process.kill()
        assert not processes.wait_dead([server], timeout_s=20)


def test_what_the_server_left_behind_ends_with_it() -> None:
    script = "import subprocess, sys; print(subprocess.Popen(['sleep', '600']).pid, flush=True)"
    process = started(sys.executable, "-W", "ignore", "-c", script)
    assert process.stdout is not None
    left = int(process.stdout.readline())
    assert process.wait(20) == 0
    assert not processes.wait_dead([left], timeout_s=20)
    process.communicate()


def test_it_does_not_start_for_a_parent_that_is_gone() -> None:
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", child.__file__, "1", "/bin/sh", "-c", "echo started"],
        stdout=subprocess.PIPE,
    )
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (1, b"")
