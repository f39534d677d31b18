"""Agents that speak A2A and AG-UI by the protocols' own SDKs. Runs in the environment of `tests/real_protocols.py`.

/rpc /rest             A2A 1.0 over JSON-RPC, over HTTP+JSON
/rpc-old /rest-old     the same in version 0.3
/rpc-whole /rest-whole without streaming
/agui                  AG-UI
/rpc-push /rest-push   that offer push notifications, without streaming
/canceled              the A2A tasks that were canceled
/push-configs          the A2A tasks of which a client wanted push notifications
"""

import asyncio
import json
import socket
from typing import Any

import uvicorn
from a2a.helpers.proto_helpers import (
    new_data_part,
    new_raw_part,
    new_task_from_user_message,
    new_text_message,
    new_text_part,
)
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.request_handlers import DefaultRequestHandlerV2
from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_routes import create_jsonrpc_routes
from a2a.server.routes.rest_routes import create_rest_routes
from a2a.server.tasks import InMemoryPushNotificationConfigStore, InMemoryTaskStore, TaskUpdater
from a2a.types.a2a_pb2 import AgentCapabilities, AgentCard, AgentInterface, AgentSkill, TaskState
from ag_ui.core import (
    Interrupt,
    RunAgentInput,
    RunErrorEvent,
    RunFinishedEvent,
    RunFinishedInterruptOutcome,
    RunStartedEvent,
    StateDeltaEvent,
    StateSnapshotEvent,
    TextMessageContentEvent,
    TextMessageEndEvent,
    TextMessageStartEvent,
    TokenUsage,
    ToolCallArgsEvent,
    ToolCallEndEvent,
    ToolCallResultEvent,
    ToolCallStartEvent,
)
from ag_ui.encoder import EventEncoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Mount, Route

CANCELED: list[str] = []
PUSH_CONFIGS: list[str] = []


class PushConfigs(InMemoryPushNotificationConfigStore):
    """Notes who asks for push notifications."""

    async def set_info(self, task_id: str, notification_config: Any, context: Any) -> Any:
        PUSH_CONFIGS.append(task_id)
        return await super().set_info(task_id, notification_config, context)


class Travel(AgentExecutor):
    """Books a flight: it asks for the date, then reports in an artifact of text, one of data and one of a file."""

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        text = context.get_user_input()
        ids = {"context_id": context.context_id, "task_id": context.task_id}
        if "hello" in text:
            echoed = [part.text or "a part" for part in context.message.parts]
            await event_queue.enqueue_event(
                new_text_message("Heard: " + " | ".join(echoed), context_id=context.context_id)
            )
            return
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(context.message))
        updater = TaskUpdater(event_queue, context.task_id, context.context_id)
        await updater.update_status(TaskState.TASK_STATE_WORKING, new_text_message("I am on it.", **ids))
        if "slow" in text:
            await asyncio.Event().wait()
        elif "fail" in text:
            await updater.failed(new_text_message("No such flight.", **ids))
        elif "login" in text:
            await updater.update_status(TaskState.TASK_STATE_AUTH_REQUIRED, new_text_message("Please log in.", **ids))
        elif context.current_task is None or (not context.current_task.artifacts and "book" in text):
            await updater.add_artifact([new_text_part("Flights: AB1, AB2.")], artifact_id="list", name="flights")
            await updater.requires_input(new_text_message("Which date?", **ids))
        else:
            await updater.add_artifact([new_text_part("Booked for ")], artifact_id="ticket")
            await updater.add_artifact([new_text_part(f"{text}.")], artifact_id="ticket", append=True, last_chunk=True)
            await updater.add_artifact([new_data_part({"flight": "AB1", "seats": 2})], artifact_id="data")
            await updater.add_artifact(
                [new_raw_part(b"PDF", media_type="application/pdf", filename="../ticket.pdf")], artifact_id="file"
            )
            await updater.complete(new_text_message("Have a good flight.", **ids))

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        CANCELED.append(context.task_id)
        await TaskUpdater(event_queue, context.task_id, context.context_id).cancel()


def build_card(url: str, binding: str, *, streaming: bool, push: bool) -> AgentCard:
    return AgentCard(
        name="Travel",
        description="Books flights",
        version="1",
        supported_interfaces=[AgentInterface(url=url, protocol_binding=binding, protocol_version="1.0")],
        capabilities=AgentCapabilities(streaming=streaming, push_notifications=push),
        default_input_modes=["text/plain"],
        default_output_modes=["text/plain"],
        skills=[AgentSkill(id="book", name="book", description="Books a flight", tags=["travel"])],
    )


def mount_agent(origin: str, path: str) -> Mount:
    binding = "JSONRPC" if "rpc" in path else "HTTP+JSON"
    url = f"{origin}{path}/"
    has_push = path.endswith("push")
    card = build_card(url, binding, streaming="whole" not in path and not has_push, push=has_push)
    handler = DefaultRequestHandlerV2(
        agent_executor=Travel(),
        task_store=InMemoryTaskStore(),
        agent_card=card,
        push_config_store=PushConfigs() if has_push else None,
    )
    is_old = path.endswith("old")
    if is_old:
        old_card = {
            "name": "Travel",
            "protocolVersion": "0.3.0",
            "url": url,
            "preferredTransport": binding,
            "capabilities": {"streaming": True},
        }
        routes: list[Any] = [Route("/.well-known/agent-card.json", lambda _request: JSONResponse(old_card))]
    else:
        routes = list(create_agent_card_routes(card))
    if binding == "JSONRPC":
        routes += create_jsonrpc_routes(handler, "/", enable_v0_3_compat=is_old)
    else:
        routes += create_rest_routes(handler, enable_v0_3_compat=is_old)
    return Mount(path, routes=routes)


async def run_agui(request: Request) -> StreamingResponse:
    run = RunAgentInput.model_validate(await request.json())
    return StreamingResponse(_encode(run), media_type=EventEncoder().get_content_type())


async def _encode(run: RunAgentInput) -> Any:
    encoder = EventEncoder()
    async for event in _run_events(run):
        yield encoder.encode(event)


async def _run_events(run: RunAgentInput) -> Any:
    ids = {"thread_id": run.thread_id, "run_id": run.run_id}
    text = next(message.content for message in reversed(run.messages) if message.role == "user")
    yield RunStartedEvent(**ids)
    if "fail" in text:
        yield RunErrorEvent(message="no such flight")
        return
    if run.resume:
        answers = json.dumps([entry.payload for entry in run.resume])
        for event in _say("m9", f"Resumed with {answers}; {len(run.messages)} messages."):
            yield event
        yield StateDeltaEvent(delta=[{"op": "add", "path": "/booked", "value": True}])
        yield RunFinishedEvent(**ids)
        return
    for event in _say("m1", "Let me ", "see."):
        yield event
    yield ToolCallStartEvent(tool_call_id="c1", tool_call_name="search")
    yield ToolCallArgsEvent(tool_call_id="c1", delta='{"to": ')
    yield ToolCallArgsEvent(tool_call_id="c1", delta='"Rome"}')
    yield ToolCallEndEvent(tool_call_id="c1")
    yield ToolCallResultEvent(message_id="m2", tool_call_id="c1", content="AB1")
    yield StateSnapshotEvent(snapshot={"flight": "AB1"})
    for event in _say("m3", "Shall I book AB1?"):
        yield event
    usage = [TokenUsage(provider="openai", model="m", input_tokens=7, output_tokens=3)]
    if "stop" in text:
        yield RunFinishedEvent(**ids, usage=usage, result={"found": 1})
        return
    pause = RunFinishedInterruptOutcome(interrupts=[Interrupt(id="i1", reason="approval", message="Book it?")])
    yield RunFinishedEvent(**ids, usage=usage, outcome=pause)


def _say(message: str, *pieces: str) -> list[Any]:
    content = [TextMessageContentEvent(message_id=message, delta=piece) for piece in pieces]
    return [
        TextMessageStartEvent(message_id=message, role="assistant"),
        *content,
        TextMessageEndEvent(message_id=message),
    ]


def main() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    origin = f"http://127.0.0.1:{listener.getsockname()[1]}"
    paths = ("/rpc", "/rest", "/rpc-old", "/rest-old", "/rpc-whole", "/rest-whole", "/rpc-push", "/rest-push")
    routes = [
        Route("/agui", run_agui, methods=["POST"]),
        Route("/canceled", lambda _request: JSONResponse(CANCELED)),
        Route("/push-configs", lambda _request: JSONResponse(PUSH_CONFIGS)),
        *(mount_agent(origin, path) for path in paths),
    ]
    print(origin, flush=True)
    uvicorn.Server(uvicorn.Config(Starlette(routes=routes), log_level="error")).run(sockets=[listener])


if __name__ == "__main__":
    main()
