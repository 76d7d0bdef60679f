"""External processes for tools: no shell, a process group of their own, output limits, and no survivors.

```python
@tool(execution_mode="external_process", timeout_s=30)
def grep(pattern: str, path: str) -> Process:
    '''Search a file.'''
    return Process(["grep", "-n", "--", pattern, path])
```

The group is killed at the timeout, when the call is cancelled, and when the process that asked for it dies by whatever
signal: the program's parent is a small guard (`phronomy_ray.tools.process_guard`) that notices. A program that leaves its
session escapes that.
"""

from __future__ import annotations

import contextlib
import contextvars
import errno
import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from phronomy_ray.errors import CancellationError, ConfigurationError, ToolError, ToolTimeoutError

DEFAULT_MAX_OUTPUT_BYTES = 1024 * 1024
_GUARD = str(Path(__file__).with_name("process_guard.py"))
#: How often the cancellation is looked at, in seconds.
_CANCEL_POLL_S = 0.05
#: How long output is waited for after the program's end, in seconds: a program that left the group may hold it open.
_DRAIN_S = 1.0
_CHUNK_BYTES = 65_536

_is_cancelled: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("is_cancelled")


@dataclass(frozen=True, slots=True)
class Process:
    """A program to run: what the body of an ``external_process`` tool returns. It runs under the tool's timeout."""

    argv: Sequence[str]
    stdin: bytes = b""
    #: The whole environment; that of the worker by default.
    env: Mapping[str, str] | None = None
    cwd: str | None = None
    #: Most bytes of each stream that are kept; the rest is read and dropped.
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES
    #: Whether an exit code other than 0 is an error.
    check: bool = False


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a program ended."""

    #: ``None`` when a signal ended it.
    exit_code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    stdout_truncated: bool = False
    stderr_truncated: bool = False
    timed_out: bool = False
    duration_s: float = 0.0

    def to_wire(self) -> dict[str, object]:
        """As JSON, the streams as text."""
        return {
            "exit_code": self.exit_code,
            "signal": self.signal,
            "stdout": self.stdout.decode("utf-8", "replace"),
            "stderr": self.stderr.decode("utf-8", "replace"),
            "stdout_truncated": self.stdout_truncated,
            "stderr_truncated": self.stderr_truncated,
            "timed_out": self.timed_out,
            "duration_s": round(self.duration_s, 6),
        }


def run_process(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    timeout_s: float | None = None,
    max_output_bytes: int = DEFAULT_MAX_OUTPUT_BYTES,
) -> ProcessResult:
    """Run a program to its end, and its whole process group with it; blocks the present thread.

    The end of its time is a result (``timed_out``), and so is a signal or an exit code.

    Raises:
        ConfigurationError: `argv` is no list of texts.
        OSError: the program or the folder cannot be used.
        CancellationError: the tool call that this thread serves was cancelled or given up; the program was killed.
    """
    return _Run(_checked(argv), stdin, env, cwd, max_output_bytes).until_end(timeout_s)


def run_to_result(process: Process, *, timeout_s: float) -> dict[str, object]:
    """Run what an ``external_process`` body returned; its result as JSON.

    Raises:
        ToolTimeoutError: it was killed at its timeout.
        ToolError: code ``process_failed``: ``check`` is on and the program failed.
        the errors of `run_process`.
    """
    result = run_process(
        process.argv,
        stdin=process.stdin,
        env=process.env,
        cwd=process.cwd,
        timeout_s=timeout_s,
        max_output_bytes=process.max_output_bytes,
    )
    if result.timed_out:
        raise ToolTimeoutError(
            f"the program did not finish within {timeout_s:g} s and was killed", details=result.to_wire()
        )
    if process.check and result.exit_code != 0:
        how = f"exit code {result.exit_code}" if result.signal is None else f"signal {result.signal}"
        text = result.stderr.decode("utf-8", "replace").strip()[-500:]
        raise ToolError(
            f"{process.argv[0]} failed with {how}" + (f": {text}" if text else ""),
            code="process_failed",
            details=result.to_wire(),
        )
    return result.to_wire()


@contextlib.contextmanager
def cancelled_by(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Programs that are run within the block, in this thread, are killed when `is_cancelled` says so."""
    token = _is_cancelled.set(is_cancelled)
    try:
        yield
    finally:
        _is_cancelled.reset(token)


class _Output:
    """One stream, cut to a limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._data = bytearray()
        self.is_truncated = False

    def add(self, data: bytes) -> None:
        room = self._limit - len(self._data)
        self._data += data[:room]
        self.is_truncated = self.is_truncated or len(data) > room

    def value(self) -> bytes:
        return bytes(self._data)


@dataclass(slots=True)
class _Run:
    argv: list[str]
    stdin: bytes
    env: Mapping[str, str] | None
    cwd: str | None
    max_output_bytes: int
    _outputs: dict[IO[bytes], _Output] = field(default_factory=dict)
    _status: bytes = b""

    def until_end(self, timeout_s: float | None) -> ProcessResult:
        begun = time.monotonic()
        control_reader, control_writer = os.pipe()
        status_reader, status_writer = os.pipe()
        try:
            guard = subprocess.Popen(
                [sys.executable, "-I", "-S", _GUARD, str(control_reader), str(status_writer), *self.argv],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=self.env,
                cwd=self.cwd,
                pass_fds=(control_reader, status_writer),
                start_new_session=True,
            )
        except BaseException:
            os.close(control_writer)
            os.close(status_reader)
            raise
        finally:
            os.close(control_reader)
            os.close(status_writer)
        timed_out = False
        try:
            with guard, open(status_reader, "rb", buffering=0) as status:
                try:
                    timed_out = self._exchange(
                        guard, status, None if timeout_s is None else begun + timeout_s
                    )
                finally:
                    os.close(control_writer)  # which kills what still runs
                    control_writer = -1
                    if not self._status:
                        self._status = status.read() or b""
        finally:
            if control_writer >= 0:
                os.close(control_writer)
        return self._result(guard, timed_out, time.monotonic() - begun)

    def _exchange(self, guard: subprocess.Popen[bytes], status: IO[bytes], deadline: float | None) -> bool:
        """Feed and read until the program has ended; whether its time was over before."""
        assert guard.stdin is not None
        assert guard.stdout is not None
        assert guard.stderr is not None
        self._outputs = {stream: _Output(self.max_output_bytes) for stream in (guard.stdout, guard.stderr)}
        is_cancelled = _is_cancelled.get(lambda: False)
        rest = memoryview(self.stdin)
        with selectors.DefaultSelector() as selector:
            for stream in (guard.stdout, guard.stderr, status):
                selector.register(stream, selectors.EVENT_READ)
            if rest:
                os.set_blocking(guard.stdin.fileno(), False)
                selector.register(guard.stdin, selectors.EVENT_WRITE)
            else:
                guard.stdin.close()
            reading = 3
            while reading:
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    return not self._status
                if is_cancelled() and not self._status:
                    raise CancellationError("the call was cancelled or given up; its program was killed")
                wait_s = _CANCEL_POLL_S if deadline is None else min(_CANCEL_POLL_S, deadline - now)
                for key, _ in selector.select(wait_s):
                    stream = key.fileobj  # type: ignore[assignment]
                    if stream is guard.stdin:
                        try:
                            rest = rest[os.write(key.fd, rest[:_CHUNK_BYTES]) :]
                        except BrokenPipeError:  # the program reads no more
                            rest = rest[:0]
                        if not rest:
                            selector.unregister(stream)
                            stream.close()
                        continue
                    data = os.read(key.fd, _CHUNK_BYTES)
                    if not data:
                        selector.unregister(stream)
                        reading -= 1
                    elif stream is status:
                        self._status += data
                        end = time.monotonic() + _DRAIN_S
                        deadline = end if deadline is None else min(end, max(deadline, now))
                    else:
                        self._outputs[stream].add(data)
        return False

    def _result(self, guard: subprocess.Popen[bytes], timed_out: bool, duration_s: float) -> ProcessResult:
        word, _, number = self._status.decode("ascii", "replace").partition(" ")
        if word == "error":
            raise OSError(int(number), os.strerror(int(number)), self.argv[0])
        if word not in ("exit", "signal"):
            raise OSError(errno.ECHILD, "the process that guards the program was killed", self.argv[0])
        assert guard.stdout is not None
        assert guard.stderr is not None
        stdout, stderr = self._outputs[guard.stdout], self._outputs[guard.stderr]
        return ProcessResult(
            int(number) if word == "exit" else None,
            int(number) if word == "signal" else None,
            stdout.value(),
            stderr.value(),
            stdout.is_truncated,
            stderr.is_truncated,
            timed_out,
            duration_s,
        )


def _checked(argv: object) -> list[str]:
    if isinstance(argv, Sequence) and not isinstance(argv, str | bytes) and argv:
        found = list(argv)
        if all(isinstance(item, str) and "\0" not in item for item in found) and found[0]:
            return found
    raise ConfigurationError(f"argv must be a non-empty list of texts (there is no shell), not {argv!r}")
