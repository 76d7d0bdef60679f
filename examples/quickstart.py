"""An agent that counts the words of a file and reports, once you have agreed.

python examples/quickstart.py                         # a scripted model: no key, no network
python examples/quickstart.py openai/gpt-4o-mini      # any litellm model
ray job submit --working-dir . -- python examples/quickstart.py
"""

import sys
from pathlib import Path

from phronomy_ray import Agent, Runtime, tool
from phronomy_ray.models.script import ScriptRequest, Step, call, calls, final
from phronomy_ray.models.scripted import ScriptedModel


@tool(replay="safe")  # may run again after a crash
def count_words(path: str) -> int:
    """Count the words of a text file."""
    return len(Path(path).read_text(encoding="utf-8").split())


@tool(requires_approval=True)  # asks a human; without a word about replay it never runs twice
def send_report(text: str) -> str:
    """Send the report to the customer."""
    return f"sent: {text}"


def script(request: ScriptRequest) -> Step:
    """What the scripted model answers: it counts, reports what the tool really returned, and says so."""
    if request.sequence == 1:
        return calls(call("count_words", {"path": __file__}))
    result = next(iter(request.tool_results.values()), "")
    return calls(call("send_report", {"text": f"{result} words"})) if request.sequence == 2 else final(result)


class Clerk(Agent):
    """Counts and reports."""

    model = sys.argv[1] if len(sys.argv) > 1 else ScriptedModel(script)
    instructions = f"Count the words of {__file__}, then send a report that names their number."
    tools = (count_words, send_report)


if __name__ == "__main__":
    with (
        Runtime() as runtime
    ):  # PHRONOMY_RAY_ADDRESS and PHRONOMY_STORE_URL say where, else all is on this machine
        agent = runtime.load_or_create(Clerk, "clerk-1")
        result = agent.invoke("Count and report.")
        while result.approval is not None:  # any driver can answer, also days later and after any crash
            print("it asks for", result.approval.tool_name, result.approval.arguments)
            agent.approve(result.execution_id, result.approval.approval_request_id)
            result = agent.execution(result.execution_id).wait("suspended")
        print(result.status.value, "-", result.output, "-", result.usage.input_tokens, "tokens in")
