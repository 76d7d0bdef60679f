"""One execution, three workers: each lets go of it while a human is waited for, and another one goes on.

python examples/hosting.py            # runs three processes, one after the other, on a store in a temporary folder

The workers have nothing in common but the store. What one of them hands on (`ApprovalWait`) is JSON; here it travels through a file,
in your system it travels through a queue, or nobody sends it and `approval_wait` finds it.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from phronomy_ray import Agent, ApprovalWait, InProcess, RunResult, Runtime, tool
from phronomy_ray.models.script import ScriptRequest, Step, call, calls, final
from phronomy_ray.models.scripted import ScriptedModel


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an invoice."""
    return f"paid {amount}"


def script(request: ScriptRequest) -> Step:
    """What the scripted model answers: two payments, one after the other, each of which a human has to agree to."""
    if request.sequence > 2:
        return final("both invoices are paid")
    return calls(call("pay", {"amount": 100 * request.sequence}))


class Payer(Agent):
    """Pays invoices."""

    definition_id = "payer"
    model = ScriptedModel(script)
    tools = (pay,)


def work(store: str, desk: Path) -> None:
    """One worker: go on with what lies on the desk, or begin; then put on the desk what another worker needs."""
    with Runtime(placement=InProcess(), store=store) as runtime:
        payer = runtime.load_or_create(Payer, "payer-1")
        if desk.exists():
            wait = ApprovalWait.from_wire(json.loads(desk.read_text(encoding="utf-8")))
            print(f"  a human says yes to {payer.pending_approvals()[0].arguments}")
            run = payer.approve_hosted(wait.execution_id, wait.approval_request_id)
        else:
            run = payer.start_hosted(payer.reserve(execution_id="invoices-of-may"), "Pay the invoices.")
        state = payer.execution(run.execution_id).wait("suspended")
        if state.approval is not None:
            run.detach(state.approval.approval_request_id)
        outcome = run.result()
        if isinstance(outcome, RunResult):
            print(f"  {outcome.output}")
            desk.unlink()
        else:
            print(f"  lets go of {outcome.execution_id}, revision {outcome.execution_revision}")
            desk.write_text(json.dumps(outcome.to_wire()), encoding="utf-8")


def main() -> None:
    """Run three workers, each in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        store, desk = f"sqlite:///{folder}/agents.db", Path(folder) / "wait.json"
        for number in (1, 2, 3):
            print(f"worker {number}", flush=True)
            subprocess.run([sys.executable, __file__, store, str(desk)], check=True)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        work(sys.argv[1], Path(sys.argv[2]))
    else:
        main()
