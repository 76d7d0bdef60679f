"""The `phronomy` command.

`app` holds the commands and the exit codes; every other module is one subject. Commands that only read the store never
import Ray; nothing here imports litellm.
"""

from __future__ import annotations


def main() -> None:
    """Entry point of the `phronomy` script."""
    from phronomy_ray.cli.app import app

    app(prog_name="phronomy")


__all__ = ["main"]
