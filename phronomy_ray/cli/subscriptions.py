"""``subscriptions``: who is told of events for certain. They live in the store; no cluster is needed to change them."""

from __future__ import annotations

import uuid
from typing import Annotated

import typer

from phronomy_ray.cli.exit_codes import ExitCode
from phronomy_ray.cli.listings import JsonOption
from phronomy_ray.cli.output import local_time, print_json, print_table
from phronomy_ray.cli.session import Session, session_of
from phronomy_ray.clock import utc_now
from phronomy_ray.errors import InvalidInputError
from phronomy_ray.ids import check_id
from phronomy_ray.subscriptions import Callback, Subscription, Target, Webhook

subscriptions_app = typer.Typer(
    help="Subscriptions: events that are delivered to a webhook or a function, at least once.",
    no_args_is_help=True,
)

IdArgument = Annotated[str, typer.Argument(metavar="SUBSCRIPTION", help="Its id.")]


@subscriptions_app.command("list")
def list_subscriptions(context: typer.Context, as_json: JsonOption = False) -> None:
    """List subscriptions with what waits and what was given up."""
    session = session_of(context)
    with session.open_store() as store:
        states = store.subscriptions()
    if as_json:
        print_json([state.to_wire() for state in states])
        return
    print_table(
        session.console,
        ("SUBSCRIPTION", "TARGET", "EVENTS", "WAITING", "OLDEST", "DEAD", "DELIVERED BY"),
        (
            (
                state.subscription.subscription_id,
                _shown(state.subscription.target),
                ",".join(map(str, state.subscription.target.events)) or "(all)",
                str(state.waiting),
                local_time(state.oldest_waiting_at) if state.oldest_waiting_at is not None else "",
                str(state.dead),
                state.holder or "(nobody)",
            )
            for state in states
        ),
        empty="nobody has subscribed",
    )


@subscriptions_app.command()
def add(
    context: typer.Context,
    url: Annotated[str, typer.Option(help="Webhook that events are posted to.")] = "",
    function: Annotated[str, typer.Option(help="module:function that is called instead.")] = "",
    secret_env: Annotated[
        str, typer.Option(help="Environment variable of the delivering process with the signing secret.")
    ] = "",
    event: Annotated[
        list[str] | None, typer.Option("--event", help="Type of events; may be repeated; all by default.")
    ] = None,
    id: Annotated[str, typer.Option("--id", help="Its id; one is made up unless given.")] = "",
    max_attempts: Annotated[int | None, typer.Option(help="Attempts per event.")] = None,
) -> None:
    """Subscribe; the same id and target again is one subscription."""
    session = session_of(context)
    if bool(url) == bool(function):
        raise InvalidInputError("say where events go: --url or --function")
    target: Target
    if url:
        target = Webhook(url=url, secret_env=secret_env, events=event or (), max_attempts=max_attempts)
    else:
        target = Callback(function=function, events=event or (), max_attempts=max_attempts)
    id_ = check_id(id, "id") if id else f"sub_{uuid.uuid4().hex[:16]}"
    with session.open_store() as store:
        added = store.add_subscription(Subscription(id_, target, utc_now()))
    _say(session, f"subscription {added.subscription_id}")


@subscriptions_app.command()
def remove(context: typer.Context, subscription: IdArgument) -> None:
    """End a subscription and forget what was still to be delivered to it; exit code 4 when there was none."""
    session = session_of(context)
    with session.open_store() as store:
        removed = store.remove_subscription(subscription)
    _say(session, f"{subscription} is removed" if removed else f"there is no subscription {subscription}")
    if not removed:
        raise typer.Exit(ExitCode.NOT_FOUND)


@subscriptions_app.command("dead-letters")
def dead_letters(
    context: typer.Context,
    subscription: Annotated[str, typer.Option(help="Only those of this subscription.")] = "",
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    as_json: JsonOption = False,
) -> None:
    """List events that were given up, with the last error."""
    session = session_of(context)
    with session.open_store() as store:
        found = store.dead_letters(subscription_id=subscription or None, limit=limit)
    if as_json:
        print_json([item.to_wire() for item in found])
        return
    print_table(
        session.console,
        ("DELIVERY", "SUBSCRIPTION", "AGENT", "EXECUTION", "SEQ", "TYPE", "ATTEMPTS", "ERROR"),
        (
            (
                str(item.delivery_id),
                item.subscription_id,
                item.event.agent_id,
                item.event.execution_id,
                str(item.event.seq),
                item.event.type,
                str(item.attempts),
                item.error.message if item.error is not None else "",
            )
            for item in found
        ),
        empty="nothing was given up",
    )


@subscriptions_app.command()
def redeliver(
    context: typer.Context,
    subscription: Annotated[str, typer.Option(help="Only those of this subscription.")] = "",
    delivery: Annotated[
        list[int] | None, typer.Option("--delivery", help="Only this one; may be repeated.")
    ] = None,
) -> None:
    """Try events that were given up again, all unless some are named."""
    session = session_of(context)
    with session.open_store() as store:
        count = store.redeliver(
            now=utc_now(), subscription_id=subscription or None, delivery_ids=delivery or None
        )
    _say(session, f"{count} to be delivered again")


def _shown(target: Target) -> str:
    return target.url if isinstance(target, Webhook) else target.function


def _say(session: Session, text: str) -> None:
    session.console.print(text, markup=False, soft_wrap=True)


__all__ = ["subscriptions_app"]
