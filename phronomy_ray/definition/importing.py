"""Objects by import path: how another process finds what a user wrote."""

from __future__ import annotations

import importlib
from typing import Any

from phronomy_ray.errors import DefinitionUnavailableError, PhronomyError, safe_message


def import_object(path: str, *, what: str, form: str = "module:Class") -> Any:
    """The object at ``module:name``, dots after the colon included.

    Raises:
        DefinitionUnavailableError: it cannot be imported here; `what` and `form` say in words what was looked for.
        PhronomyError: a declaration in its module is wrong.
    """
    module_name, _, qualname = path.partition(":")
    if not module_name or not qualname:
        raise DefinitionUnavailableError(f"{path!r} is not {what} path; write {form}")
    subject = what.removeprefix("an ").removeprefix("a ")
    try:
        target: Any = importlib.import_module(module_name)
        for part in qualname.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError) as error:
        raise DefinitionUnavailableError(
            f"{subject} {path!r} cannot be imported here ({error}); install its package on every node, or give "
            "the runtime working_dir= or py_modules= so that Ray ships it"
        ) from error
    except PhronomyError:
        raise
    except (Exception, SystemExit) as error:
        # a user's module may raise anything, for instance for a variable that this node lacks; a script says sys.exit()
        raise DefinitionUnavailableError(
            f"{subject} {path!r} cannot be imported here: its module raised {type(error).__name__}: "
            f"{safe_message(error)}"
        ) from error
    return target


def class_path_of(cls: type) -> str:
    """``module:Class``, or empty when other processes cannot import it (``__main__`` or inside a function)."""
    if cls.__module__ == "__main__" or "<locals>" in cls.__qualname__:
        return ""
    return f"{cls.__module__}:{cls.__qualname__}"
