"""``phronomy demo``: the command around the story, and how it is shown."""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from phronomy_ray.cli.exit_codes import ExitCode
from phronomy_ray.cli.session import session_of
from phronomy_ray.errors import InvalidInputError, PhronomyError

if TYPE_CHECKING:
    from phronomy_ray.cli.demo.checker import Check, Counts
    from phronomy_ray.cli.demo.story import Outcome, Step

#: Larger folders are refused: a demo must not take all day.
MAX_FILES, MAX_BYTES = 20_000, 200_000_000
NOISE_LINES = 15
PLAIN_WIDTH = 140


def demo(
    context: typer.Context,
    path: Annotated[
        Path | None,
        typer.Option(
            exists=True, file_okay=False, help="Folder to survey; this repository, else the present folder."
        ),
    ] = None,
    output: Annotated[Path, typer.Option(file_okay=False, help="Where REPORT.md goes.")] = Path(
        "demo-output"
    ),
    random_tree: Annotated[
        bool, typer.Option("--random", help="Survey a random folder, made for this run.")
    ] = False,
    seed: Annotated[int | None, typer.Option(help="Seed of the random folder; implies --random.")] = None,
    model: Annotated[str, typer.Option(help="A litellm model instead of the scripted one.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON document instead of the table.")] = False,
) -> None:
    """Watch an agent work, lose its node to SIGKILL, come back on another, wait for a human and finish.

    Starts a Ray cluster of three nodes of its own and ends it. --store takes sqlite (default), postgres (a private
    server) or a store URL. Exit code 0 only if every check held.
    """
    from phronomy_ray.cli.demo import stage

    session = session_of(context)
    if random_tree and path is not None:
        raise InvalidInputError("--random surveys a folder of its own: leave out --path")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    for name in [name for name in os.environ if name.startswith(("PHRONOMY_", "RAY_ADDRESS"))]:
        del os.environ[name]  # a running cluster, a store or a model of this machine changes nothing
    begun = time.monotonic()
    with stage.work_folder() as work:
        noise = work / "ray.log"
        with stage.quiet_ray(noise) as (out, err):
            show = Show(console_on(err if as_json else out), begun)
            try:
                document = _run(
                    show,
                    work=work,
                    folder=path,
                    seed=(seed if seed is not None else secrets.randbelow(10**6))
                    if random_tree or seed is not None
                    else None,
                    output=output.resolve(),
                    store=session.store or "sqlite",
                    model=model,
                )
            except KeyboardInterrupt:
                show.end(f"interrupted after {time.monotonic() - begun:.0f} s; everything is cleaned up")
                raise typer.Exit(ExitCode.INTERRUPTED) from None
            except Exception as error:  # noqa: BLE001 - whatever broke the demo is told in one line
                show.failed(error, noise)
                if session.debug:
                    show.console.print_exception()
                raise typer.Exit(ExitCode.FAILED) from None
    if as_json:
        from phronomy_ray.cli.output import print_json

        print_json(document)
    if not document["ok"]:
        raise typer.Exit(ExitCode.FAILED)


def _run(
    show: Show, *, work: Path, folder: Path | None, seed: int | None, output: Path, store: str, model: str
) -> dict[str, Any]:
    from phronomy_ray.cli.demo import checker, stage
    from phronomy_ray.cli.demo.random_tree import make_tree
    from phronomy_ray.cli.demo.story import Narrator, Story

    if seed is not None:
        folder = work / f"random-{seed}"
        make_tree(folder, seed)
    else:
        folder = (folder or default_folder()).resolve()
    refuse_large(folder)
    counted = checker.count_folder(folder, output=output)
    files, _, _, size = checker.total(counted)
    show.say(
        f"folder: {folder} ({files} files, {size:,} bytes" + (f", seed {seed})" if seed is not None else ")")
    )
    output.mkdir(parents=True, exist_ok=True)
    (output / "REPORT.md").unlink(missing_ok=True)

    class Live(Narrator):
        def step(self, step: Step) -> None:
            show.step(step)

        def now(self, text: str) -> None:
            show.now(text)

    show.now("a head node and two worker nodes start")
    with stage.set_up(work=work, output=output, store=store, model=model, say=show.say) as ready:
        mark = str(ready.cluster.folder)
        outcome = Story(ready, folder=folder, output=output, narrator=Live(), begun=show.begun).run(counted)
        show.now("everything is taken down")
        store_name, store_url, model_name = ready.store_name, ready.store_url, ready.model_name
    checks = [*checker.judge(outcome.evidence), _nothing_left(mark)]
    seconds = time.monotonic() - show.begun
    show.result(outcome, checks, output / "REPORT.md", seconds, store_url if store == "sqlite" else "")
    return {
        "ok": all(check.ok for check in checks),
        "failed": [check.name for check in checks if not check.ok],
        "checks": [checker.check_wire(check) for check in checks],
        "steps": [
            {"at_s": round(step.at_s, 3), "text": step.text, "pid": step.pid, "node": step.node}
            for step in outcome.steps
        ],
        "calls": outcome.calls,
        "seconds": {
            **{name: round(value, 3) for name, value in outcome.seconds.items()},
            "all": round(seconds, 3),
        },
        "journal_length": outcome.journal_length,
        "agent_id": outcome.agent_id,
        "execution_id": outcome.execution_id,
        "folder": str(folder),
        "seed": seed,
        "totals": _totals(counted),
        "store": store_name,
        "model": model_name,
        "report": str(output / "REPORT.md"),
    }


def _nothing_left(mark: str) -> Check:
    from phronomy_ray.cli.demo.checker import Check
    from phronomy_ray.testing import processes
    from phronomy_ray.testing.local_cluster import MARK_ENV

    left = processes.with_environment(MARK_ENV, mark)
    gone = not left and not Path(mark).exists()
    return Check(
        "no process and no folder of the cluster is left",
        gone,
        "none" if gone else f"left: {sorted(left) or mark}",
    )


def _totals(counted: dict[str, Counts]) -> dict[str, int]:
    from phronomy_ray.cli.demo.checker import total

    return dict(zip(("files", "lines", "words", "bytes"), total(counted), strict=True))


def default_folder() -> Path:
    """The repository that this package runs from, else the present folder."""
    import phronomy_ray

    root = Path(phronomy_ray.__file__).resolve().parents[1]
    return root if (root / "pyproject.toml").is_file() and (root / "tests").is_dir() else Path.cwd()


def refuse_large(folder: Path) -> None:
    """Raises `InvalidInputError` for a folder that a demo should not read."""
    files = size = 0
    for where, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in names:
            try:
                size += os.lstat(os.path.join(where, name)).st_size
            except OSError:
                continue
            files += 1
            if files > MAX_FILES or size > MAX_BYTES:
                raise InvalidInputError(
                    f"{folder} holds more than {MAX_FILES:,} files or {MAX_BYTES // 10**6} MB: name a smaller folder with --path"
                )


def console_on(file: TextIO) -> Console:
    """A console on `file`; one that is no terminal gets room for whole lines."""
    return Console(file=file, highlight=False, emoji=False, width=None if file.isatty() else PLAIN_WIDTH)


class Show:
    """What a person sees: a line for each step, what is going on now, and the table at the end."""

    def __init__(self, console: Console, begun: float) -> None:
        self.console = console
        self.begun = begun
        self._status = console.status("", spinner="dots") if console.is_terminal else None
        if self._status is not None:
            self._status.start()

    def now(self, text: str) -> None:
        """Show what is waited for."""
        if self._status is not None:
            self._status.update(Text(text, style="dim"))

    def say(self, text: str) -> None:
        """A line about the set-up."""
        self.console.print(
            Text(f"{time.monotonic() - self.begun:6.1f} s  {text}", style="dim"), soft_wrap=True
        )

    def step(self, step: Step) -> None:
        """A line about a step."""
        line = Text(f"{step.at_s:6.1f} s  ", style="dim")
        line.append(step.text, style="bold red" if "SIGKILL" in step.text else "")
        who = f"pid {step.pid}" if step.pid else ""
        where = " on ".join(filter(None, (who, step.node)))
        line.append(f"  [{where}]", style="cyan")
        self.console.print(line, soft_wrap=True)

    def end(self, text: str = "") -> None:
        """Stop the live part."""
        if self._status is not None:
            self._status.stop()
            self._status = None
        if text:
            self.console.print(text, markup=False)

    def failed(self, error: Exception, noise: Path) -> None:
        """Say why it could not be told to the end, with the last lines of what Ray had to say."""
        self.end()
        code = f" [{error.code}]" if isinstance(error, PhronomyError) else f" [{type(error).__name__}]"
        lines = noise.read_text(errors="replace").splitlines()[-NOISE_LINES:] if noise.exists() else []
        if lines:
            self.console.print("last words of Ray and the processes:", style="dim")
            for line in lines:
                self.console.print(Text(f"  {line[:300]}", style="dim"), soft_wrap=True)
        self.console.print(Text(f"the demo failed: {error}{code}", style="red"), soft_wrap=True)

    def result(
        self, outcome: Outcome, checks: list[Check], report: Path, seconds: float, store_url: str
    ) -> None:
        """The tables at the end."""
        self.end()
        console = self.console
        steps = Table(
            title="What happened", title_justify="left", box=None, header_style="bold", pad_edge=False
        )
        for column in ("at", "step", "pid", "node"):
            steps.add_column(column, overflow="fold")
        for step in outcome.steps:
            steps.add_row(f"{step.at_s:.1f} s", Text(step.text), str(step.pid or ""), step.node)
        numbers = Table(title="In numbers", title_justify="left", box=None, show_header=False, pad_edge=False)
        numbers.add_column()
        numbers.add_column(justify="right")
        for name, value in (
            ("calls in the batch", outcome.calls["in_batch"]),
            ("  done before the kill, kept, not run again", outcome.calls["kept"]),
            ("  lost with their node or owner, run again", outcome.calls["run_again"]),
            ("from kill to recovered", f"{outcome.seconds['kill_to_recovered']:.1f} s"),
            (
                "from kill to the first lost call running again",
                f"{outcome.seconds['kill_to_continued']:.1f} s",
            ),
            ("journal records", outcome.journal_length),
            ("the whole demo", f"{seconds:.0f} s"),
        ):
            numbers.add_row(name, str(value))
        judged = Table(
            title="Checked from outside", title_justify="left", box=None, show_header=False, pad_edge=False
        )
        for _ in range(3):
            judged.add_column(overflow="fold")
        for check in checks:
            mark = Text("ok", style="green") if check.ok else Text("WRONG", style="bold red")
            judged.add_row(mark, Text(check.name), Text(check.detail, style="dim"))
        for table in (steps, numbers, judged):
            console.print()
            console.print(table)
        console.print()
        failed = [check.name for check in checks if not check.ok]
        if failed:
            console.print(Text(f"The demo failed: {'; '.join(failed)}", style="bold red"), soft_wrap=True)
        else:
            console.print(
                Text(f"All {len(checks)} checks held. The report: {report}", style="bold green"),
                soft_wrap=True,
            )
        if store_url:
            command = f"phronomy inspect {outcome.execution_id} --store {store_url}"
            console.print(Text(f"See the whole execution: {command}", style="dim"), soft_wrap=True)


__all__ = ["demo"]
