"""The command line's root: global options, commands, and how every error becomes one line and an exit code."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from phronomy_ray import __version__
from phronomy_ray.cli import (
    collecting,
    decisions,
    doctor,
    draining,
    inspecting,
    lifecycle,
    listings,
    running,
    supervising,
    tracing,
)
from phronomy_ray.cli.db import db_app
from phronomy_ray.cli.demo.command import demo
from phronomy_ray.cli.exit_codes import ExitCode, exit_code_for
from phronomy_ray.cli.retentions import retentions_app
from phronomy_ray.cli.rules import rules_app
from phronomy_ray.cli.session import Session
from phronomy_ray.cli.subscriptions import subscriptions_app
from phronomy_ray.errors import PhronomyError, safe_message

_GLOBAL_VALUES = ("--address", "--namespace", "--store")
_GLOBAL_FLAGS = ("--debug",)
_EPILOG = (
    "The global options may stand before or after the command. "
    "Exit codes: 0 ok, 1 failed or unhealthy, 2 usage, 3 a human is needed, 4 not found, 5 conflict or busy, "
    "6 cluster or store unreachable, 130 interrupted (the execution goes on)."
)


class PhronomyGroup(TyperGroup):
    """Commands whose errors end in one line on standard error and a documented exit code."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Let global options stand anywhere."""
        return list(super().parse_args(ctx, hoist_global_options(args)))

    def invoke(self, ctx: Any) -> Any:
        """Run the command; a failure that the user can do something about shows no traceback."""
        try:
            return super().invoke(ctx)
        except PhronomyError as error:
            session = ctx.find_object(Session) or Session()
            if session.debug:
                session.error_console.print_exception()
            _complain(session, f"{_one_line(error.message)} [{error.code}]")
            raise typer.Exit(exit_code_for(error)) from None
        except BrokenPipeError:
            sys.stderr.close()  # `phronomy ... | head`: nobody reads any more, and nobody wants to hear of it
            raise typer.Exit(ExitCode.OK) from None
        except KeyboardInterrupt:
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        except Exception as error:
            if isinstance(error, typer.Exit) or hasattr(
                error, "exit_code"
            ):  # Typer's own: usage, abort, exit
                raise
            session = ctx.find_object(Session) or Session()
            if session.debug:
                raise
            text = f"{type(error).__name__}: {_one_line(safe_message(error))}"
            _complain(session, f"{text} [internal]; run again with --debug for the traceback")
            raise typer.Exit(ExitCode.FAILED) from None


def hoist_global_options(args: Sequence[str]) -> list[str]:
    """`args` with the global options first; what stands after ``--`` is not touched."""
    front: list[str] = []
    rest: list[str] = []
    waiting = list(args)
    while waiting:
        word = waiting.pop(0)
        if word == "--":
            rest += [word, *waiting]
            break
        name, equals, _ = word.partition("=")
        if name in _GLOBAL_FLAGS or (name in _GLOBAL_VALUES and equals):
            front.append(word)
        elif name in _GLOBAL_VALUES and waiting:
            front += [word, waiting.pop(0)]
        else:
            rest.append(word)
    return front + rest


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _complain(session: Session, text: str) -> None:
    session.error_console.print(f"error: {text}", markup=False, soft_wrap=True, style="red")


app = typer.Typer(
    cls=PhronomyGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    epilog=_EPILOG,
    help="Durable LLM agents on a Ray cluster.",
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"phronomy-ray {__version__}")
        raise typer.Exit


@app.callback()
def global_options(
    context: typer.Context,
    address: Annotated[
        str, typer.Option(help="Ray cluster: auto, host:port or local.", envvar="PHRONOMY_RAY_ADDRESS")
    ] = "",
    namespace: Annotated[
        str, typer.Option(help="Ray namespace of the agents.", envvar="PHRONOMY_NAMESPACE")
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            help="Store URL: sqlite:///file or postgresql://... (default: PHRONOMY_STORE_URL, else sqlite:///phronomy.db)."
        ),
    ] = "",
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.", envvar="PHRONOMY_DEBUG")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Durable LLM agents on a Ray cluster."""
    context.obj = Session(address=address, namespace=namespace, store=store, debug=debug)


app.command()(demo)
app.command()(running.run)
app.command()(running.watch)
app.command()(listings.agents)
app.command()(listings.executions)
app.command(name="inspect")(inspecting.inspect_execution)
app.command()(listings.approvals)
app.command()(tracing.traces)
app.command()(decisions.approve)
app.command()(decisions.reject)
app.command()(decisions.resolve)
app.command()(decisions.cancel)
app.command()(lifecycle.unload)
app.command()(lifecycle.close)
app.command()(lifecycle.purge)
app.command()(supervising.up)
app.command()(supervising.supervisor)
app.command()(supervising.unpark)
app.command()(draining.move)
app.command()(draining.drain)
app.command()(draining.shutdown)
app.command()(collecting.gc)
app.command()(doctor.doctor)
app.add_typer(db_app, name="db")
app.add_typer(retentions_app, name="retentions")
app.add_typer(rules_app, name="rules")
app.add_typer(subscriptions_app, name="subscriptions")

__all__ = ["app", "hoist_global_options"]
