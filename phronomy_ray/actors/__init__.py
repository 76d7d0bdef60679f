"""The Ray actors and tasks: wiring and life cycle only."""

from __future__ import annotations

if (
    __name__ != "phronomy_ray.actors"
):  # the repository's top holds a link `actors`; a second copy must never load
    raise ImportError("import phronomy_ray.actors, not the link 'actors' at the repository's top")
