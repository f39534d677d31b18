"""Graphs of LangGraph in the shapes that its users write."""

from typing import Annotated, Any, TypedDict

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain.tools import ToolRuntime
from langchain_core.chat_history import InMemoryChatMessageHistory
from langchain_core.messages import AIMessage, AnyMessage, ToolMessage
from langchain_core.output_parsers import StrOutputParser
from langchain_core.prompts import ChatPromptTemplate
from langchain_core.runnables import RunnableLambda, RunnablePassthrough
from langchain_core.runnables.history import RunnableWithMessageHistory
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, interrupt

from apps import langgraph as app
from apps.tools import book


@tool
def ask(question: str = "When?") -> str:
    """Asks the user."""
    return f"the user says {interrupt(question)}"


@tool
def add(a: int, b: int) -> dict[str, int]:
    """Adds two numbers."""
    return {"sum": a + b}


def make_graph(**compile_options: Any) -> Any:
    """A loop of model and tools, in a subgraph, not compiled unless options are given."""

    async def call_model(state: MessagesState) -> Any:
        return {"messages": [await app.get_model().bind_tools([ask, add]).ainvoke(state["messages"])]}

    inner = StateGraph(MessagesState)
    inner.add_node("think", call_model)
    inner.add_node("tools", ToolNode([ask, add]))
    inner.add_edge(START, "think")
    inner.add_conditional_edges("think", tools_condition)
    inner.add_edge("tools", "think")
    if compile_options:
        return inner.compile(**compile_options)
    outer = StateGraph(MessagesState)
    outer.add_node("assistant", inner.compile())
    outer.add_edge(START, "assistant")
    return outer


def make_pair() -> Any:
    """Two nodes that each add a message."""

    def write(state: MessagesState) -> Any:
        return {"messages": [("ai", f"writer: {len(state['messages'])}")]}

    def criticise(state: MessagesState) -> Any:
        return {"messages": [("ai", f"critic: {len(state['messages'])}")]}

    graph = StateGraph(MessagesState)
    graph.add_node("writer", write)
    graph.add_node("critic", criticise)
    graph.add_edge(START, "writer")
    graph.add_edge("writer", "critic")
    return graph.compile()


def make_supervisor() -> Any:
    """A node that adds what langgraph-supervisor adds when a worker is done, and a last answer."""
    back: dict[str, Any] = {"response_metadata": {"__is_handoff_back": True}}

    def work(state: MessagesState) -> Any:
        call = {"name": "transfer_back_to_supervisor", "args": {}, "id": "back"}
        asked = AIMessage("Transferring back to supervisor", tool_calls=[call], **back)
        done = ToolMessage("Successfully transferred back to supervisor", tool_call_id="back", **back)
        return {"messages": [asked, done, AIMessage("done")]}

    graph = StateGraph(MessagesState)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    return graph.compile()


def make_loose_graph() -> Any:
    """Its node calls tools by itself, without a ToolNode."""

    class State(TypedDict):
        messages: Annotated[list[AnyMessage], add_messages]

    async def work(state: State) -> Any:
        answer = await app.get_model().bind_tools([add]).ainvoke(state["messages"])
        results = [await add.ainvoke(call) for call in answer.tool_calls]
        return {"messages": [answer, *results, "done"]}

    graph = StateGraph(State)
    graph.add_node("work", work)
    graph.add_edge(START, "work")
    return graph.compile()


def make_graph_without_reducer() -> Any:
    """Its state has a plain list of messages, in which its node writes dicts."""

    class State(TypedDict):
        messages: list[Any]

    def count(state: State) -> Any:
        said = {"role": "assistant", "content": f"{len(state['messages'])} messages"}
        return {"messages": [*state["messages"], said]}

    graph = StateGraph(State)
    graph.add_node("count", count)
    graph.add_edge(START, "count")
    return graph.compile()


def make_handoff() -> Any:
    """Two agents, of which one hands over to the other by a Command."""

    @tool
    def hand_over(runtime: ToolRuntime) -> Any:
        """Hands over."""
        done = ToolMessage("handed over", tool_call_id=runtime.tool_call_id)
        return Command(goto="booking", graph=Command.PARENT, update={"messages": [*runtime.state["messages"], done]})

    graph = StateGraph(MessagesState)
    graph.add_node("triage", create_agent(app.get_model(), [hand_over]), destinations=("booking",))
    graph.add_node("booking", create_agent(app.get_model(), [add]))
    graph.add_edge(START, "triage")
    return graph.compile()


def make_partly_approving_agent() -> Any:
    """The tool `book` waits for an approval, `add` does not."""
    approve = HumanInTheLoopMiddleware(interrupt_on={"book": True})
    return create_agent(app.get_model(), [tool(book), add], middleware=[approve])


def make_retriever_chain() -> Any:
    """A chain that takes a text, as in the examples of retrieval."""

    def retrieve(question: str) -> str:
        return f"a document on {question.upper()}"

    prompt = ChatPromptTemplate([("user", "{context}: {question}")])
    return {"context": RunnableLambda(retrieve), "question": RunnablePassthrough()} | prompt | app.get_model()


def make_graph_without_messages() -> Any:
    class State(TypedDict):
        question: str
        answer: str

    graph = StateGraph(State)
    graph.add_node("answer_it", lambda state: {"answer": state["question"]})
    graph.add_edge(START, "answer_it")
    return graph.compile()


def make_chain() -> Any:
    prompt = ChatPromptTemplate([("system", "Be brief."), ("placeholder", "{history}"), ("user", "{question}")])
    return prompt | app.get_model() | StrOutputParser()


def make_chain_with_history() -> Any:
    histories: dict[str, Any] = {}
    prompt = ChatPromptTemplate([("placeholder", "{history}"), ("user", "{question}")])
    return RunnableWithMessageHistory(
        prompt | app.get_model(),
        lambda session_id: histories.setdefault(session_id, InMemoryChatMessageHistory()),
        input_messages_key="question",
        history_messages_key="history",
    )
