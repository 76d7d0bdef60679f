"""`cluster.yaml`: Ray accepts it, its set-up commands work on an empty node, and a job runs on such a cluster."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import sysconfig
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import psutil
import pytest
import ray.autoscaler
import yaml
from ray.autoscaler._private.util import prepare_config, validate_config

ROOT = Path(__file__).resolve().parents[2]
EXAMPLE = "examples/quickstart.py"


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load((ROOT / "cluster.yaml").read_text(encoding="utf-8"))
    return loaded


# --- what Ray says about it -------------------------------------------------------------------------------------


def test_ray_accepts_it(config: dict[str, Any]) -> None:
    schema = json.loads(
        (Path(ray.autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8")
    )
    jsonschema.validate(config, schema)
    prepared = prepare_config(config)
    validate_config(prepared)
    (node_type,) = prepared["available_node_types"].values()
    assert node_type["min_workers"] == node_type["max_workers"] == len(config["provider"]["worker_ips"]) >= 2


def test_a_lost_node_is_noticed_within_about_ten_seconds(config: dict[str, Any]) -> None:
    words = " ".join(config["setup_commands"]).split()
    environment = dict(word.split("=", 1) for word in words if word.startswith("RAY_health_check_"))
    assert environment["RAY_health_check_period_ms"] == "1000"
    assert environment["RAY_health_check_timeout_ms"] == "2000"
    assert environment["RAY_health_check_failure_threshold"] == "3"


def test_only_who_holds_the_token_may_use_the_cluster(config: dict[str, Any]) -> None:
    """Whoever reaches a Ray cluster without authentication can run code on it."""
    assert "RAY_AUTH_MODE=token" in " ".join(config["setup_commands"]).split()
    assert "~/.ray/auth_token" in config["file_mounts"]


def test_every_ray_process_gets_the_environment(config: dict[str, Any]) -> None:
    for command in config["head_start_ray_commands"] + config["worker_start_ray_commands"]:
        assert command.startswith('. "$HOME/phronomy-env/phronomy.sh"; ')
    assert any("ray start --head" in command for command in config["head_start_ray_commands"])
    assert any("ray start --address=" in command for command in config["worker_start_ray_commands"])


# --- the set-up commands on an empty node -----------------------------------------------------------------------


class Node:
    """An account on a node: an empty home with the files that Ray would have put there."""

    def __init__(
        self, home: Path, config: dict[str, Any], *, extra_env: dict[str, str] | None = None
    ) -> None:
        self.home = home
        # Nothing of this test's own environment but a way to an interpreter and to the package index.
        kept = {
            name: value
            for name, value in os.environ.items()
            if name.startswith("PIP_") or name == "TEST_RUN_MARK"
        }
        interpreters = Path(sys.base_prefix) / "bin"
        self.environment = {
            **kept,
            "HOME": str(home),
            "PATH": f"{interpreters}:/usr/local/bin:/usr/bin:/bin",
            "PIP_CACHE_DIR": os.environ.get("PIP_CACHE_DIR", str(Path.home() / ".cache" / "pip")),
            **(extra_env or {}),
        }
        for remote, local in config["file_mounts"].items():
            target = home / remote.removeprefix("~/")
            target.parent.mkdir(parents=True, exist_ok=True)
            if local.startswith("~/"):
                target.write_text("something of the user's own")
                continue
            source = ROOT / local
            if source.is_dir():
                shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, target)

    def run(self, command: str) -> str:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.home,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=900,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    @property
    def site_packages(self) -> Path:
        return (
            self.home / "phronomy-env" / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
        )


def _assert_installed(node: Node) -> None:
    source = '. "$HOME/phronomy-env/phronomy.sh"; '
    where = node.run(source + 'python -c "import phronomy_ray; print(phronomy_ray.__file__)"').strip()
    assert Path(where).resolve() == (node.site_packages / "phronomy_ray" / "__init__.py").resolve()
    assert node.run(source + "command -v phronomy").strip() == str(
        node.home / "phronomy-env" / "bin" / "phronomy"
    )
    assert node.run(source + "echo $RAY_health_check_period_ms").strip() == "1000"
    assert node.run(source + "echo $PHRONOMY_STORE_URL").startswith("postgresql+psycopg://")


@pytest.fixture(scope="module")
def node(config: dict[str, Any], tmp_path_factory: pytest.TempPathFactory) -> Node:
    """A node after the set-up commands as they stand; the pinned dependencies are lent by our own environment."""
    # pip reads this switch the wrong way round: 0 is "no isolation", so the back end is ours and no network is needed.
    node = Node(
        tmp_path_factory.mktemp("node") / "home",
        config,
        extra_env={"PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_INDEX": "1"},
    )
    create, *others = config["setup_commands"]
    node.run(create)
    assert not (node.site_packages / "phronomy_ray").exists()
    for bundled in node.site_packages.glob("setuptools*"):  # what venv brings may be too old to build with
        shutil.rmtree(bundled)
    (node.site_packages / "lent.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    for command in others:
        node.run(command)
    return node


def test_setup_commands_prepare_an_empty_node_and_can_be_repeated(config: dict[str, Any], node: Node) -> None:
    _assert_installed(node)
    for command in config["setup_commands"]:
        node.run(command)
    _assert_installed(node)


def test_head_setup_brings_the_schema_up_and_can_be_repeated(config: dict[str, Any], node: Node) -> None:
    settings = node.home / "phronomy-env" / "phronomy.sh"
    (changed,) = [line for line in settings.read_text().splitlines() if "PHRONOMY_STORE_URL" in line]
    store = node.home / "store.db"
    settings.write_text(settings.read_text().replace(changed, f"export PHRONOMY_STORE_URL=sqlite:///{store}"))
    for command in config["head_setup_commands"] * 2:
        node.run(command)
    assert store.exists()
    node.run('. "$HOME/phronomy-env/phronomy.sh"; phronomy db check')


@pytest.mark.full
def test_setup_commands_install_everything_from_the_index(config: dict[str, Any], tmp_path: Path) -> None:
    node = Node(tmp_path / "home", config)
    for command in config["setup_commands"]:
        node.run(command)
    _assert_installed(node)
    node.run('. "$HOME/phronomy-env/phronomy.sh"; ray --version; python -m pip check')


# --- a job ------------------------------------------------------------------------------------------------------


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def job_server(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A head of our own, started the way `cluster.yaml` starts one; the environment in which to submit jobs to it."""
    port, dashboard = _free_port(), _free_port()
    # Short, because Ray puts UNIX sockets below it and their paths are limited to 107 bytes.
    temp = Path(f"/tmp/phr-job-{os.getpid()}")
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PHRONOMY_STORE_URL": f"sqlite:///{tmp_path / 'jobs.db'}",
        # The token by value, so that nobody's ~/.ray is read or written.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": secrets.token_hex(32),
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
        "RAY_health_check_period_ms": "1000",
        "RAY_health_check_timeout_ms": "2000",
        "RAY_health_check_failure_threshold": "3",
    }
    log = (tmp_path / "head.log").open("w+")
    # --block: the head lives in this process group and dies with it; `ray stop` would stop other people's Ray too.
    head = subprocess.Popen(
        [
            "ray",
            "start",
            "--head",
            "--block",
            f"--port={port}",
            f"--temp-dir={temp}",
            "--num-cpus=2",
            "--include-dashboard=true",
            f"--dashboard-port={dashboard}",
            "--dashboard-agent-listen-port=0",
            "--disable-usage-stats",
        ],
        env=environment,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 90
        while not _takes_jobs(environment):
            assert head.poll() is None, f"the head ended early:\n{Path(log.name).read_text()}"
            if time.monotonic() > deadline:
                pytest.fail(f"no job server within 90 s:\n{Path(log.name).read_text()}")
            time.sleep(0.2)
        yield environment
    finally:
        _kill_head(head, temp)
        log.close()
        shutil.rmtree(temp, ignore_errors=True)


def _takes_jobs(environment: dict[str, str]) -> bool:
    """Whether the job server answers; ``ray job list`` asks the same, after seconds of imports."""
    request = urllib.request.Request(
        environment["RAY_API_SERVER_ADDRESS"] + "/api/jobs/",
        headers={"Authorization": f"Bearer {environment['RAY_AUTH_TOKEN']}"},
    )
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with direct.open(request, timeout=30):
            return True
    except OSError:
        return False


def _kill_head(head: subprocess.Popen[Any], temp: Path) -> None:
    """Kill the head and all that it started; what left its process tree is known by its session folder."""
    ours = psutil.Process(head.pid).children(recursive=True) if head.poll() is None else []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(temp) in word for word in process.info["cmdline"] or ()):
            ours.append(process)
    head.kill()
    for process in ours:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    head.wait(timeout=15)
    psutil.wait_procs(ours, timeout=15)


def test_the_example_runs_as_a_job(job_server: dict[str, str], tmp_path: Path) -> None:
    checkout = (
        tmp_path / "checkout"
    )  # without .venv and whatever else lies in ours, which Ray would look through
    for name in ("phronomy_ray", "examples"):
        shutil.copytree(ROOT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    deadline = time.monotonic() + 90
    while True:
        done = subprocess.run(
            ["ray", "job", "submit", "--working-dir", str(checkout), "--", "python", EXAMPLE],
            env=job_server,
            capture_output=True,
            text=True,
            timeout=180,
        )
        # the server answers before the agent that starts jobs has joined it
        if "No available agent" not in done.stderr or time.monotonic() > deadline:
            break
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "succeeded" in done.stdout + done.stderr
