"""Names of pools: a tool names the pool that runs it, and the runtime configures pools by name."""

from __future__ import annotations

import re

from phronomy_ray.errors import ConfigurationError

DEFAULT_POOL = "default"
POOL_NAME_RULE = "1 to 64 letters, digits, '_', '.' or '-'"
_LEGAL = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def is_pool_name(name: object) -> bool:
    """Whether `name` can name a pool."""
    return isinstance(name, str) and _LEGAL.fullmatch(name) is not None


def check_pool_name(name: object) -> str:
    """`name` if it can name a pool.

    Raises:
        ConfigurationError: it cannot.
    """
    if isinstance(name, str) and is_pool_name(name):
        return name
    raise ConfigurationError(f"pool name {name!r} is not allowed: {POOL_NAME_RULE}")
