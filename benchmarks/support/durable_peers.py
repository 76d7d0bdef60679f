"""The same turn on other durable runtimes, when the `peers` extra is installed: fake model, the same tool, their own stores.

Each is used as its manual says and with all that helps it: LangGraph's prebuilt agent on its asynchronous checkpointers, one
for all conversations, PostgreSQL with a pool; DBOS with one workflow per turn and its model and tool calls as steps, and no
conversation to read or to keep.
"""

from __future__ import annotations

import asyncio
import importlib.util
import uuid
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from sqlalchemy import make_url

MESSAGE = "What is the price of the thing that we spoke of?"
ANSWER = "The price is 42 euros, as the table says."

#: One turn of the conversation of this name.
Turn = Callable[[str], Awaitable[None]]

#: What must be importable for each.
NEEDED = {
    "langgraph": (
        "langgraph",
        "langgraph.checkpoint.sqlite",
        "langgraph.checkpoint.postgres",
        "psycopg_pool",
    ),
    "dbos": ("dbos",),
}


def missing_peers() -> list[str]:
    """Peers that are not installed here."""
    return [name for name, modules in NEEDED.items() if not all(map(_is_there, modules))]


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


async def lookup(key: str) -> str:
    """Look a value up."""
    return f"{key}=42"


@asynccontextmanager
async def langgraph(engine: str, url: str, *, durability: str) -> AsyncIterator[Turn]:
    """LangGraph on its checkpointer for `engine`; `durability` is one of its modes (``async`` is its default)."""
    graph = await _Graph.make(engine, url)
    async with graph.stack:
        yield lambda name: graph.turn(name, durability)


class _Graph:
    """The prebuilt agent with a fake model."""

    def __init__(self, graph: Any, stack: AsyncExitStack) -> None:
        self._graph = graph
        self.stack = stack

    @classmethod
    async def make(cls, engine: str, url: str) -> _Graph:
        from langchain_core.language_models import BaseChatModel
        from langchain_core.messages import AIMessage
        from langchain_core.outputs import ChatGeneration, ChatResult
        from langchain_core.tools import tool as langchain_tool

        class FakeModel(BaseChatModel):  # type: ignore[misc]
            @property
            def _llm_type(self) -> str:
                return "fake"

            def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
                return self

            def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **kw: Any) -> Any:
                if messages[-1].type == "human":
                    call = {"name": "lookup", "args": {"key": "price"}, "id": uuid.uuid4().hex}
                    answer = AIMessage("", tool_calls=[call])
                else:
                    answer = AIMessage(ANSWER)
                return ChatResult(generations=[ChatGeneration(message=answer)])

            async def _agenerate(
                self, messages: Any, stop: Any = None, run_manager: Any = None, **kw: Any
            ) -> Any:
                return self._generate(messages)

        stack = AsyncExitStack()
        saver = await stack.enter_async_context(_saver(engine, url))
        await saver.setup()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the prebuilt agent is announced to move to another package
            from langgraph.prebuilt import create_react_agent

            graph = create_react_agent(FakeModel(), [langchain_tool(lookup)], checkpointer=saver)
        return cls(graph, stack)

    async def turn(self, name: str, durability: str) -> None:
        given = {"messages": [("user", MESSAGE)]}
        config = {"configurable": {"thread_id": name}}
        state = await self._graph.ainvoke(given, config, durability=durability)
        assert state["messages"][-1].content == ANSWER


@asynccontextmanager
async def _saver(engine: str, url: str) -> AsyncIterator[Any]:
    if engine == "sqlite":
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        async with AsyncSqliteSaver.from_conn_string(url.removeprefix("sqlite:///")) as saver:
            yield saver
        return
    from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
    from psycopg.rows import dict_row
    from psycopg_pool import AsyncConnectionPool

    options = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=4, max_size=20, kwargs=options) as pool:
        yield AsyncPostgresSaver(pool)


@asynccontextmanager
async def dbos(url: str) -> AsyncIterator[Turn]:
    """DBOS on PostgreSQL: a workflow per turn, three steps in it."""
    from dbos import DBOS

    DBOS(
        config={
            "name": "bench",
            "system_database_url": make_url(url).set(drivername="postgresql+psycopg").render_as_string(False),
            "sys_db_pool_size": 20,
            "log_level": "ERROR",
            "console_log_level": "ERROR",
            "executor_id": "bench",
            "application_version": "1",
        }
    )

    @DBOS.step()
    async def ask_model(messages: list[dict[str, Any]]) -> dict[str, Any]:
        if messages[-1]["role"] == "user":
            call = {"id": uuid.uuid4().hex, "name": "lookup", "arguments": {"key": "price"}}
            return {"role": "assistant", "content": "", "tool_calls": [call]}
        return {"role": "assistant", "content": ANSWER}

    @DBOS.step()
    async def run_tool(call: dict[str, Any]) -> dict[str, Any]:
        return {"role": "tool", "tool_call_id": call["id"], "content": await lookup(**call["arguments"])}

    @DBOS.workflow()
    async def one_turn(message: str) -> str:
        messages: list[dict[str, Any]] = [{"role": "user", "content": message}]
        answer = await ask_model(messages)
        while calls := answer.get("tool_calls"):
            messages += [answer, *[await run_tool(call) for call in calls]]
            answer = await ask_model(messages)
        return str(answer["content"])

    async def turn(_: str) -> None:
        assert await one_turn(MESSAGE) == ANSWER

    DBOS.launch()
    try:
        yield turn
    finally:
        DBOS.destroy()  # with the executor that it has made the loop's default
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())


__all__ = ["NEEDED", "dbos", "langgraph", "missing_peers"]
