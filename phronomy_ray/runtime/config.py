"""Configuration of a runtime: arguments first, then ``PHRONOMY_*`` environment variables, then defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phronomy_ray.definition.options import InstanceOptions, RuntimeDefaults
from phronomy_ray.definition.placement import Dedicated, InProcess, Packed, Placement
from phronomy_ray.definition.pool_names import check_pool_name
from phronomy_ray.errors import ConfigurationError
from phronomy_ray.faults import FAULTS_ENV
from phronomy_ray.hosting.wiring import NAMESPACE, AgentWiring, DefinitionSource, StoreConfig
from phronomy_ray.store.content_codec import ENV_CONTENT_KEY
from phronomy_ray.supervision.limits import SupervisionLimits
from phronomy_ray.tools.pool_config import PoolConfig, check_pool_config

ADDRESS_ENV = "PHRONOMY_RAY_ADDRESS"
NAMESPACE_ENV = "PHRONOMY_NAMESPACE"
STORE_ENV = "PHRONOMY_STORE_URL"
GATEWAYS_ENV = "PHRONOMY_MODEL_GATEWAYS"
REGISTRY_ENV = "PHRONOMY_REGISTRY"
PLACEMENT_ENV = "PHRONOMY_PLACEMENT"
SUPERVISOR_ENV = "PHRONOMY_SUPERVISOR"
DEFAULT_STORE = "sqlite:///phronomy.db"


@dataclass(frozen=True, slots=True)
class RuntimeConfig:
    """A resolved configuration."""

    #: Ray address: ``local`` starts a cluster of its own; ``auto`` or ``host:port`` connects.
    address: str
    namespace: str
    store: StoreConfig
    gateways: int
    placement: Placement
    #: ``module:function`` that gives the tool registries of agents whose class names none; empty for none.
    registry: str = ""
    #: Offload pools by name.
    pools: Mapping[str, PoolConfig] = field(default_factory=dict)
    #: Ray runtime environment for the driver's job; empty unless given (a non-empty one doubles worker start time).
    runtime_env: Mapping[str, Any] = field(default_factory=dict)
    #: More arguments for ``ray.init``.
    ray_options: Mapping[str, Any] = field(default_factory=dict)
    #: How a supervisor looks after the agents; ``None`` for no supervisor.
    supervisor: SupervisionLimits | None = field(default_factory=SupervisionLimits)
    #: What is set for all agents.
    defaults: RuntimeDefaults = field(default_factory=RuntimeDefaults)

    def wiring(
        self,
        source: DefinitionSource,
        options: InstanceOptions | None = None,
        own_placement: Dedicated | Packed | None = None,
    ) -> AgentWiring:
        """What an agent of this runtime is started with; `own_placement` is what its class says."""
        return AgentWiring(
            replace(source, registry=self.registry),
            self.store,
            self.namespace,
            self.gateways,
            os.environ.get(FAULTS_ENV),
            self.pools,
            self.placement,
            own_placement,
            options or InstanceOptions(),
            self.defaults,
            supervised=self.supervisor is not None,
        )


def resolve_config(
    *,
    address: str | None = None,
    namespace: str | None = None,
    store: str | None = None,
    content_key: str | None = None,
    model_gateways: int | None = None,
    placement: Placement | None = None,
    registry: str | None = None,
    pools: Mapping[str, PoolConfig] | None = None,
    working_dir: str | os.PathLike[str] | None = None,
    py_modules: Sequence[Any] = (),
    runtime_env: Mapping[str, Any] | None = None,
    ray_options: Mapping[str, Any] | None = None,
    before_llm_input: Sequence[Any] = (),
    max_result_chars: int | None = None,
    supervisor: bool | SupervisionLimits | None = None,
) -> RuntimeConfig:
    """Fill in what was not given. Raises `ConfigurationError` for a value that cannot be used."""
    environment = os.environ
    gateways = model_gateways if model_gateways is not None else environment.get(GATEWAYS_ENV, "2")
    try:
        count = int(gateways)
    except ValueError:
        raise ConfigurationError(f"{GATEWAYS_ENV} must be a whole number, not {gateways!r}") from None
    if count < 1:
        raise ConfigurationError(f"model_gateways must be at least 1, not {count}")
    env: dict[str, Any] = dict(runtime_env or {})
    if working_dir is not None:
        env["working_dir"] = os.fspath(working_dir)
    if py_modules:
        env["py_modules"] = list(py_modules)
    return RuntimeConfig(
        address=address or environment.get(ADDRESS_ENV) or environment.get("RAY_ADDRESS") or "local",
        namespace=namespace or environment.get(NAMESPACE_ENV) or NAMESPACE,
        store=StoreConfig(
            absolute_store_url(store or environment.get(STORE_ENV) or DEFAULT_STORE),
            content_key or environment.get(ENV_CONTENT_KEY),
        ),
        gateways=count,
        placement=check_placement(placement) or placement_of_environment(),
        registry=_registry_path(registry or environment.get(REGISTRY_ENV) or ""),
        pools={check_pool_name(name): check_pool_config(pool) for name, pool in (pools or {}).items()},
        runtime_env=env,
        ray_options=dict(ray_options or {}),
        supervisor=_supervision(supervisor, environment.get(SUPERVISOR_ENV)),
        defaults=RuntimeDefaults(before_llm_input, max_result_chars),
    )


def check_placement(given: object) -> Placement | None:
    """A placement given as an argument. Raises `ConfigurationError`."""
    if given is None or isinstance(given, Dedicated | Packed | InProcess):
        return given
    raise ConfigurationError(
        f"placement must be Dedicated(...), Packed(...) or InProcess(...), not {given!r}"
    )


def placement_of_environment() -> Placement:
    """What ``PHRONOMY_PLACEMENT`` says: ``dedicated`` (the default), ``packed:<hosts>`` or ``in-process``.

    Raises:
        ConfigurationError: none of these.
    """
    text = os.environ.get(PLACEMENT_ENV, "")
    kind, _, hosts = text.partition(":")
    if kind == "packed" and (not hosts or hosts.isdecimal()):
        return Packed(hosts=int(hosts or 1))
    if text in ("", "dedicated"):
        return Dedicated()
    if text == "in-process":
        return InProcess()
    raise ConfigurationError(
        f"{PLACEMENT_ENV} must be 'dedicated', 'packed:<hosts>' or 'in-process', not {text!r}"
    )


def _supervision(given: object, text: str | None) -> SupervisionLimits | None:
    if isinstance(given, SupervisionLimits):
        return given
    if given is None:
        words = {"on": True, "1": True, "true": True, "off": False, "0": False, "false": False}
        given = words.get((text or "on").lower(), text)
    if not isinstance(given, bool):
        raise ConfigurationError(
            f"supervisor must be True, False or SupervisionLimits(...) ({SUPERVISOR_ENV}: on or off), not {given!r}"
        )
    return SupervisionLimits() if given else None


def _registry_path(path: object) -> str:
    if path and not (isinstance(path, str) and all(path.partition(":"))):
        raise ConfigurationError(f"registry must be 'module:function', not {path!r}")
    return str(path)


def absolute_store_url(url: str) -> str:
    """`url` with an absolute path if it names an SQLite file: actors run in other directories than the driver."""
    prefix = "sqlite:///"
    if not url.startswith(prefix) or url.startswith(prefix + ":memory:") or url == prefix:
        return url
    path, separator, query = url.removeprefix(prefix).partition("?")
    return prefix + str(Path(path).expanduser().resolve()) + separator + query
