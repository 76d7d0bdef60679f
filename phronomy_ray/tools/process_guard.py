"""Parent of one external process: kills its group when whoever asked for it is gone, by whatever death.

Run as a script by `phronomy_ray.tools.process`, with nothing but a few modules of the standard library, so that it starts in
milliseconds: ``process_guard.py CONTROL_FD STATUS_FD PROGRAM ARGUMENT...``. It holds the reading end of a pipe whose writing
end only the asking process has. When that end is closed (also by a SIGKILL) the group of the program is killed. What
became of the program is written to the status pipe: ``exit N``, ``signal N`` or ``error ERRNO``.
"""

import os
import select
import signal
import sys


def main() -> None:
    """Start the program, wait for its end or for the order to end it, and report."""
    control, status, argv = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    wake_reader, wake_writer = os.pipe()
    os.set_blocking(wake_writer, False)
    signal.set_wakeup_fd(wake_writer)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        child = os.posix_spawnp(
            argv[0],
            argv,
            os.environ,
            setsid=True,
            # what is ignored here must not be ignored there
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE],
        )
    except OSError as error:
        os.write(status, f"error {error.errno}".encode())
        return
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):  # else the pipes of the program would stay open as long as this process lives
        os.dup2(nothing, stream)
    while True:
        ready, _, _ = select.select([control, wake_reader], [], [])
        if control in ready:
            _kill(child)
        # not reaped yet: its number cannot belong to anybody else
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | (0 if control in ready else os.WNOHANG)):
            break
        os.read(wake_reader, 64)
    _kill(child)  # what it has left behind in its group
    _, result = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(result)
    try:
        os.write(status, (f"exit {code}" if code >= 0 else f"signal {-code}").encode())
    except BrokenPipeError:
        return  # whoever asked is gone


def _kill(group: int) -> None:
    try:
        os.killpg(group, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


if __name__ == "__main__":
    main()
