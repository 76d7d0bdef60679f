"""Commands whose own process is the agents' (`PHRONOMY_PLACEMENT=in-process`): no cluster, and classes of the present folder."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from phronomy_ray import InProcess, Runtime

MODULE = """
from phronomy_ray import Agent, tool
from phronomy_ray.models.scripted import ScriptedModel, call, calls, final

@tool(requires_approval=True)
async def pay(amount: int) -> str:
    '''Pay.'''
    return f"paid {amount}"

class Payer(Agent):
    model = ScriptedModel([calls(call("pay", {"amount": 3})), final("done")])
    tools = (pay,)
"""


def test_an_answer_is_given_where_the_class_is_in_the_present_folder(
    run_cli: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "payers_here.py").write_text(MODULE)
    url = f"sqlite:///{tmp_path}/agents.db"
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    import payers_here  # type: ignore[import-not-found]

    with Runtime(store=url, placement=InProcess(), supervisor=False) as runtime:
        assert runtime.create(payers_here.Payer, "one").invoke("go", execution_id="ex-one").suspended
    # the command starts with what a console script has
    sys.modules.pop("payers_here")
    monkeypatch.setattr(sys, "path", [item for item in sys.path if item not in ("", str(tmp_path))])
    monkeypatch.setenv("PHRONOMY_PLACEMENT", "in-process")
    monkeypatch.setenv("PHRONOMY_STORE_URL", url)
    result = run_cli("approve", "ex-one", "--wait")
    assert result.exit_code == 0, result.output
    with Runtime(store=url, placement=InProcess(), supervisor=False) as runtime:
        assert runtime.execution("ex-one").view().output == "done"
