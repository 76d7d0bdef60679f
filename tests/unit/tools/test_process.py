"""External processes: results, limits, and no survivors."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from phronomy_ray.errors import CancellationError, ConfigurationError, ToolError, ToolTimeoutError
from phronomy_ray.testing import processes
from phronomy_ray.tools.process import Process, cancelled_by, run_process, run_to_result

#: Writes the pid of a child of its own, which ignores everything but SIGKILL, then both wait.
FAMILY = """
import os, signal, sys, time
child = os.fork()
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if child:
    with open(sys.argv[1] + ".new", "w") as file:
        file.write(f"{os.getpid()} {child}")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(120)
"""


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(code), *arguments]


def pids_in(path: Path, timeout_s: float = 30) -> list[int]:
    end = time.monotonic() + timeout_s
    while not path.exists():
        assert time.monotonic() < end, f"{path} was not written"
        time.sleep(0.01)
    return [int(word) for word in path.read_text().split()]


def test_exit_code_and_both_streams_are_the_result() -> None:
    code = """
    import sys
    data = sys.stdin.buffer.read()
    sys.stdout.write(data.decode().upper())
    sys.stderr.write("beside")
    sys.exit(3)
    """
    result = run_process(python(code), stdin=b"quiet", timeout_s=30)
    assert (result.exit_code, result.signal, result.timed_out) == (3, None, False)
    assert (result.stdout, result.stderr) == (b"QUIET", b"beside")
    assert result.duration_s > 0


def test_nothing_goes_through_a_shell() -> None:
    words = ["$(id)", "a b", "; rm -rf /", "*", ""]
    result = run_process(python("import sys; print(sys.argv[1:])", *words), timeout_s=30)
    assert result.stdout.decode().strip() == str(words)
    for wrong in ("ls -l", b"ls", [], ["", "x"], ["a\0b"], [1]):
        with pytest.raises(ConfigurationError, match="argv"):
            run_process(wrong)  # type: ignore[arg-type]


def test_environment_and_folder_are_given(tmp_path: Path) -> None:
    code = "import os; print(os.getcwd(), os.environ.get('WORD'), 'HOME' in os.environ)"
    result = run_process(python(code), env={"WORD": "x"}, cwd=str(tmp_path), timeout_s=30)
    assert result.stdout.decode().split() == [str(tmp_path), "x", "False"]


def test_a_program_that_is_not_there_is_an_error() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        run_process(["no-such-program"], timeout_s=30)
    with pytest.raises(FileNotFoundError):
        run_process(python(""), cwd="/no/such/folder")


def test_output_is_cut_and_the_program_goes_on() -> None:
    code = "import sys; sys.stdout.write('x' * 3_000_000); sys.stderr.write('end'); sys.exit(5)"
    result = run_process(python(code), max_output_bytes=1000, timeout_s=60)
    assert (result.exit_code, len(result.stdout), result.stdout_truncated) == (5, 1000, True)
    assert (result.stderr, result.stderr_truncated) == (b"end", False)


def test_large_input_is_fed_while_output_is_read() -> None:
    code = "import sys; data = sys.stdin.buffer.read(); sys.stdout.buffer.write(data)"
    data = b"y" * 2_000_000
    assert run_process(python(code), stdin=data, max_output_bytes=len(data), timeout_s=60).stdout == data
    assert run_process(python("pass"), stdin=data, timeout_s=60).exit_code == 0, "it need not read it"


def test_a_signal_is_a_result() -> None:
    result = run_process(python("import os; os.kill(os.getpid(), 11)"), timeout_s=30)
    assert (result.exit_code, result.signal) == (None, 11)


def test_at_the_timeout_the_whole_group_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    result = run_process(python(FAMILY, str(file)), timeout_s=1.5)
    assert result.timed_out
    assert result.signal == signal.SIGKILL
    assert not processes.wait_dead(pids_in(file), timeout_s=20)


def test_a_cancelled_call_kills_the_whole_group(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    stop = threading.Event()
    caught: list[BaseException] = []

    def body() -> None:
        with cancelled_by(stop.is_set):
            try:
                run_process(python(FAMILY, str(file)), timeout_s=60)
            except CancellationError as error:
                caught.append(error)

    thread = threading.Thread(target=body)
    thread.start()
    found = pids_in(file)
    stop.set()
    thread.join(20)
    assert len(caught) == 1
    assert not processes.wait_dead(found, timeout_s=20)


def test_when_the_asking_process_is_killed_nothing_survives(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    code = f"""
    from phronomy_ray.tools.process import run_process
    run_process({python(FAMILY, str(file))!r}, timeout_s=60)
    """
    asking = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)])
    found = pids_in(file)
    os.kill(asking.pid, signal.SIGKILL)
    asking.wait()
    assert not processes.wait_dead(found, timeout_s=20)


def test_what_a_program_leaves_behind_is_killed_and_does_not_hold_the_result(tmp_path: Path) -> None:
    file = tmp_path / "pids"
    code = """
    import os, sys, time
    child = os.fork()
    if not child:
        time.sleep(120)
    with open(sys.argv[1], "w") as file:
        file.write(str(child))
    """
    begun = time.monotonic()
    assert run_process(python(code, str(file)), timeout_s=60).exit_code == 0
    assert time.monotonic() - begun < 30
    assert not processes.wait_dead(pids_in(file), timeout_s=20)


def test_no_descriptor_is_left_open() -> None:
    run_process(python("pass"), timeout_s=30)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        run_process(python("pass"), stdin=b"x", timeout_s=30)
        with pytest.raises(FileNotFoundError):
            run_process(["no-such-program"])
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_value_of_a_tool_becomes_its_result() -> None:
    result = run_to_result(Process(python("print('hi')")), timeout_s=30)
    assert (result["exit_code"], result["stdout"]) == (0, "hi\n")
    failing = python("import sys; sys.stderr.write('no disk'); sys.exit(4)")
    assert run_to_result(Process(failing), timeout_s=30)["exit_code"] == 4
    with pytest.raises(ToolError, match="exit code 4: no disk") as caught:
        run_to_result(Process(failing, check=True), timeout_s=30)
    assert caught.value.code == "process_failed"
    with pytest.raises(ToolTimeoutError, match="killed"):
        run_to_result(Process(python("import time; time.sleep(60)")), timeout_s=0.5)
