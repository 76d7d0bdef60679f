"""Where the classes of a command are looked for: in the present folder first, as `python script.py` does."""

from __future__ import annotations

import os
import sys


def import_from_here() -> None:
    """Have modules of the present folder found by this process."""
    here = os.getcwd()
    if not {here, ""} & set(sys.path):
        sys.path.insert(0, here)


__all__ = ["import_from_here"]
