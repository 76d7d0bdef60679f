"""The same turn on other agent runtimes, when the `peers` extra is installed: fake model, same bodies, nothing stored.

None of them is asked to be durable here, and each keeps its conversation in memory: the comparison is kind to them.
"""

from __future__ import annotations

import asyncio
import importlib.util
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from support.batch_scripts import FINAL_TEXT, Work
from support.tool_bodies import cpu_body, sleep_body, trivial_body

Call = Callable[[], object]

#: Import name of each peer.
PEERS = {"langgraph": "langgraph", "openai_agents": "agents", "pydantic_ai": "pydantic_ai"}


async def trivial(n: int) -> str:
    """Return at once."""
    return await trivial_body(n)


def sleep50(n: int) -> str:
    """Block for 50 ms."""
    return sleep_body(n)


def burn50(n: int, rounds: int) -> str:
    """Compute for about 50 ms."""
    return cpu_body(n, rounds)


TOOLS: dict[str, Callable[..., Any]] = {"trivial": trivial, "sleep50": sleep50, "burn50": burn50}


def missing_peers() -> list[str]:
    """Peers that are not installed here."""
    return [name for name, module in PEERS.items() if importlib.util.find_spec(module) is None]


def peers(work: Work, stack: ExitStack) -> dict[str, Call]:
    """One turn of `work` on every installed peer."""
    found: dict[str, Call] = {}
    missing = missing_peers()
    if "langgraph" not in missing:
        found |= _langgraph(work, stack)
    if "openai_agents" not in missing:
        found["openai_agents"] = _openai_agents(work)
    if "pydantic_ai" not in missing:
        found["pydantic_ai"] = _pydantic_ai(work)
    return found


def _run(make: Callable[[], Awaitable[Any]], executor: ThreadPoolExecutor | None = None) -> Any:
    async def main() -> Any:
        if executor is not None:
            asyncio.get_running_loop().set_default_executor(executor)
        return await make()

    return asyncio.run(main())


# --- LangGraph -------------------------------------------------------------------------------------------------


def _langgraph(work: Work, stack: ExitStack) -> dict[str, Call]:
    """``langgraph`` is the prebuilt agent as it comes; ``langgraph_tuned`` has as many threads as calls."""
    import warnings

    from langchain_core.language_models import BaseChatModel
    from langchain_core.messages import AIMessage, ToolMessage
    from langchain_core.outputs import ChatGeneration, ChatResult
    from langchain_core.tools import tool as langchain_tool

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the prebuilt agent is announced to move to another package
        from langgraph.prebuilt import create_react_agent

    calls = [
        {"name": work.tool, "args": arguments, "id": f"call_{arguments['n']}", "type": "tool_call"}
        for arguments in work.each()
    ]

    class FakeModel(BaseChatModel):  # type: ignore[misc]
        @property
        def _llm_type(self) -> str:
            return "fake"

        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

        def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any) -> Any:
            asked = messages[-1].type == "human"
            answer = AIMessage("", tool_calls=calls) if asked else AIMessage(FINAL_TEXT)
            return ChatResult(generations=[ChatGeneration(message=answer)])

        async def _agenerate(
            self, messages: Any, stop: Any = None, run_manager: Any = None, **kwargs: Any
        ) -> Any:
            return self._generate(messages)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = create_react_agent(FakeModel(), [langchain_tool(TOOLS[work.tool])])

    def check(state: dict[str, Any]) -> None:
        done = [item for item in state["messages"] if isinstance(item, ToolMessage)]
        assert len(done) == work.calls
        assert all(item.status == "success" for item in done), done[0].content
        assert state["messages"][-1].content == FINAL_TEXT

    given = {"messages": [("user", "go")]}
    wide = {"max_concurrency": work.calls}

    def as_it_comes() -> None:
        check(_run(lambda: graph.ainvoke(given)) if work.tool == "trivial" else graph.invoke(given))

    def tuned() -> None:
        check(graph.invoke(given, wide))

    def tuned_async() -> None:
        check(_run(lambda: graph.ainvoke(given), ThreadPoolExecutor(max(1, work.calls))))

    if work.tool == "trivial":
        return {"langgraph": as_it_comes}
    return {"langgraph": as_it_comes, "langgraph_tuned": tuned, "langgraph_tuned_async": tuned_async}


# --- OpenAI Agents SDK -----------------------------------------------------------------------------------------


def _openai_agents(work: Work) -> Call:
    import json

    from agents import (
        Agent,
        Model,
        ModelResponse,
        Runner,
        Usage,
        function_tool,
        set_tracing_disabled,
    )
    from openai.types.responses import (
        ResponseFunctionToolCall,
        ResponseOutputMessage,
        ResponseOutputText,
    )

    set_tracing_disabled(True)
    calls = [
        ResponseFunctionToolCall(
            arguments=json.dumps(arguments),
            call_id=f"call_{arguments['n']}",
            name=work.tool,
            type="function_call",
        )
        for arguments in work.each()
    ]
    final = ResponseOutputMessage(
        id="m",
        role="assistant",
        status="completed",
        type="message",
        content=[ResponseOutputText(text=FINAL_TEXT, type="output_text", annotations=[])],
    )

    class FakeModel(Model):  # type: ignore[misc]
        async def get_response(self, *args: Any, **kwargs: Any) -> Any:
            given = kwargs["input"] if "input" in kwargs else args[1]
            answered = isinstance(given, list) and any(
                isinstance(item, dict) and item.get("type") == "function_call_output" for item in given
            )
            output = [final] if answered else list(calls)
            return ModelResponse(output=output, usage=Usage(), response_id=None)

        def stream_response(self, *args: Any, **kwargs: Any) -> Any:
            raise NotImplementedError

    agent = Agent(name="bench", model=FakeModel(), tools=[function_tool(TOOLS[work.tool])])

    def turn() -> None:
        result = _run(lambda: Runner.run(agent, "go"))
        outputs = [item for item in result.new_items if item.type == "tool_call_output_item"]
        assert len(outputs) == work.calls
        assert all(str(item.output).isdecimal() for item in outputs), outputs[0].output
        assert result.final_output == FINAL_TEXT

    return turn


# --- pydantic-ai -----------------------------------------------------------------------------------------------


def _pydantic_ai(work: Work) -> Call:
    from pydantic_ai import Agent
    from pydantic_ai.messages import (
        ModelResponse,
        TextPart,
        ToolCallPart,
        ToolReturnPart,
    )
    from pydantic_ai.models.function import FunctionModel

    calls = [
        ToolCallPart(work.tool, arguments, tool_call_id=f"call_{arguments['n']}") for arguments in work.each()
    ]

    def answer(messages: Any, info: Any) -> Any:
        answered = any(isinstance(part, ToolReturnPart) for part in messages[-1].parts)
        return ModelResponse(parts=[TextPart(FINAL_TEXT)] if answered else list(calls))

    agent: Any = Agent(FunctionModel(answer), tools=[TOOLS[work.tool]])

    def turn() -> None:
        result = _run(lambda: agent.run("go"))
        parts = [part for message in result.all_messages() for part in message.parts]
        assert sum(isinstance(part, ToolReturnPart) for part in parts) == work.calls
        assert result.output == FINAL_TEXT

    return turn
