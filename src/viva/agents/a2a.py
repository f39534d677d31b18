"""Agents that speak A2A, the Agent2Agent protocol: `a2a:https://host/agent`.

    -n a2a:http://localhost:9999          or in viva.toml: type = "a2a", url = "http://localhost:9999"

The agent's card says where its service is. Viva speaks both JSON bindings (JSON-RPC and HTTP+JSON) of the versions 1.0 and
0.3. It streams if the card offers that; otherwise it polls a task that is still working. The next message continues a task
that waits for input; after a task that ended, it starts another one in the same context. Push notifications are never
requested. A task that a time limit cuts off is canceled.
"""

import asyncio
import os
import uuid
from base64 import b64encode
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import PurePath
from typing import Any
from urllib.parse import quote, urlsplit

from msgspec import UNSET, Struct, UnsetType, structs

from viva.agents.a2a_card import A2aService, list_card_urls, read_card
from viva.agents.a2a_events import END_STATES, ArtifactFile, ReportedArtifact, TaskReader
from viva.agents.agent_config import AgentSetup, AgentStatus, NonEmpty, inspect_url
from viva.agents.attachments import get_inline_data, guess_media_type
from viva.agents.cli.cli_agent import prepend_history
from viva.agents.json_objects import as_object, get_text
from viva.agents.remote_config import RemoteConfig, RemoteEndpoint
from viva.errors import AgentFailed, TrialFault, Unreachable
from viva.llm.calls import read_stream, send_request
from viva.llm.sse import SseParser
from viva.llm.target import find_url_problem
from viva.llm.transport import load_stream_client
from viva.model import codec
from viva.model.case import Feature
from viva.model.connector import Secret
from viva.model.ellipsis import cut_end
from viva.model.message import Attachment, Message, Reply
from viva.protocols import Request, Response, SessionContext, WorkspaceFactory
from viva.text.credentials import mask_url_credentials
from viva.workspace.processes import run_to_completion
from viva.workspace.safe_open import open_regular_file

PREFIX = "a2a:"
_CANCEL_S = 2.0
_FIRST_POLL_S, _LONGEST_POLL_S = 0.2, 5.0
_METHODS = {"send": "SendMessage", "stream": "SendStreamingMessage", "get": "GetTask", "cancel": "CancelTask"}
_OLD_METHODS = {"send": "message/send", "stream": "message/stream", "get": "tasks/get", "cancel": "tasks/cancel"}


class A2aConfig(RemoteConfig, frozen=True, kw_only=True):
    """An agent that speaks A2A, the Agent2Agent protocol."""

    token: NonEmpty | UnsetType = UNSET
    """A bearer token for it, best as ${NAME}."""
    service_url: str = ""
    """The address of its service, if its card names one that cannot be reached."""
    stream: bool = True
    """Stream the reply, if the card offers that."""
    task_per_turn: bool = False
    """Each turn is a task of its own: a completed task does not say that the conversation is done."""

    @classmethod
    def parse_reference(cls, reference: str) -> dict[str, Any]:
        return {"url": reference.removeprefix(PREFIX)}

    def build(self, setup: AgentSetup) -> "A2aAgent":
        token = Secret(setup.expand(self.token, "token")) if self.token else None
        service_url = setup.expand(self.service_url, "service_url")
        if service_url and (problem := find_url_problem(service_url)):
            raise setup.error(f"`service_url` {problem}", "service_url")
        return A2aAgent(
            endpoint=self.build_endpoint(setup, token),
            service_url=service_url,
            stream=self.stream,
            task_per_turn=self.task_per_turn,
        )


class A2aAgent(Struct, frozen=True, kw_only=True):
    """An A2A agent. `endpoint` has the URL of its card, or the URL below which the card is looked for."""

    endpoint: RemoteEndpoint
    service_url: str = ""
    stream: bool = True
    task_per_turn: bool = False

    @property
    def provides(self) -> frozenset[Feature]:
        """Files of its artifacts are written into a workspace."""
        return frozenset({"workspace"})

    async def inspect(self, _workspaces: WorkspaceFactory) -> AgentStatus:
        return await inspect_url(self.endpoint.url)

    @asynccontextmanager
    async def open(self, context: SessionContext) -> AsyncGenerator["A2aSession"]:
        service = await _fetch_service(self, context)
        if self.stream and service.can_stream:
            load_stream_client()
        yield A2aSession(self, context, service)


async def _fetch_service(agent: A2aAgent, context: SessionContext) -> A2aService:
    """Fetches the agent's card and returns the service that it names. Only the card's host and `service_url` get credentials."""
    endpoint = agent.endpoint
    headers = {"Accept": "application/json", **endpoint.headers}
    retry = structs.replace(endpoint.build_retry("A2A agent"), only_unsent=False)
    statuses: list[str] = []
    for url in list_card_urls(endpoint.url):
        request = Request(url, b"", headers, "GET", endpoint.timeout_s)
        answer = await send_request(context.http, request, retry, context.progress)
        if answer.status != 200:
            statuses.append(f"{mask_url_credentials(url)} (HTTP {answer.status})")
            continue
        try:
            card = codec.decode(answer.body)
        except codec.DecodeError as error:
            statuses.append(f"{mask_url_credentials(url)} ({error})")
            continue
        service = read_card(card, url, endpoint.headers)
        if agent.service_url:
            return structs.replace(service, url=agent.service_url)
        if endpoint.headers and urlsplit(service.url).hostname != urlsplit(url).hostname:
            raise Unreachable(
                f"the agent card names another host, {mask_url_credentials(service.url)}: set `service_url` to send credentials there",
                deterministic=True,
            )
        return service
    raise Unreachable(f"there is no agent card at {' or '.join(statuses)}", deterministic=True)


class A2aSession:
    """One conversation, which is a context of the protocol."""

    def __init__(self, agent: A2aAgent, context: SessionContext, service: A2aService) -> None:
        self._agent, self._context, self._service = agent, context, service
        self._retry = agent.endpoint.build_retry("A2A agent")
        self._task_id = ""
        self._context_id = ""
        self._is_task_open = False
        self._artifacts: dict[tuple[str, str], ReportedArtifact] = {}
        self._has_sent = False
        self._reader: TaskReader | None = None
        self._calls = 0

    @property
    def _is_streaming(self) -> bool:
        return self._agent.stream and self._service.can_stream

    async def send(self, message: Message, options: Mapping[str, Any]) -> Reply:
        is_old_rest = self._service.is_old and self._service.binding == "rest"
        progress = self._context.progress if self._is_streaming else None
        self._reader = reader = TaskReader(self._artifacts, progress, wraps_data=is_old_rest)
        params = self._build_params(message, options)
        try:
            await self._send_until_settled(params, reader)
            reply = reader.finish()
        except BaseException as raised:
            if (until_now := reader.build_reply()) != Reply():
                self._context.progress.partial = until_now
            if isinstance(raised, asyncio.CancelledError) and reader.task_id and reader.state not in END_STATES:
                await run_to_completion(self._cancel_task(reader.task_id))
            raise
        finally:
            self._context_id = reader.context_id or self._context_id
            self._task_id = reader.task_id or self._task_id
            self._is_task_open = bool(reader.task_id) and reader.state not in END_STATES
        self._write_files(reader.files)
        if reader.state == "completed" and not self._agent.task_per_turn:
            return structs.replace(reply, declared_state="done")
        return structs.replace(reply, protocol_state=None) if reader.state == "completed" else reply

    def _build_params(self, message: Message, options: Mapping[str, Any]) -> dict[str, Any]:
        is_old, is_rest = self._service.is_old, self._service.binding == "rest"
        text = message.text if self._has_sent else prepend_history(self._context.history, message.text)
        self._has_sent = True
        parts = [_encode_text(text, is_old=is_old and not is_rest)] if text else []
        parts += [_encode_file(part, self._service) for part in message.attachments]
        if message.data is not None:
            parts.append(_encode_data(message.data, self._service))
        encoded: dict[str, Any] = {
            "messageId": uuid.uuid4().hex,
            "role": "user" if is_old and not is_rest else "ROLE_USER",
            "content" if is_old and is_rest else "parts": parts,
        }
        if is_old and not is_rest:
            encoded["kind"] = "message"
        if self._context_id:
            encoded["contextId"] = self._context_id
        if self._is_task_open:
            encoded["taskId"] = self._task_id
        params: dict[str, Any] = {"message": encoded}
        if is_old:
            params["configuration"] = {"blocking": True}
        if metadata := options.get("metadata"):
            params["metadata"] = metadata
        return params

    async def _send_until_settled(self, params: Mapping[str, Any], reader: TaskReader) -> None:
        """Sends the message, reads the answer or its stream, and polls the task until it ends or waits for input."""
        if self._is_streaming:
            await self._read_stream(params, reader)
        else:
            reader.add(await self._send_call("send", params))
        pause_s = _FIRST_POLL_S
        while not reader.is_settled:
            if not reader.task_id:
                raise AgentFailed("its answer has neither a message nor a task")
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_POLL_S, pause_s * 2)
            reader.add(await self._send_call("get", {"id": reader.task_id}))

    async def _read_stream(self, params: Mapping[str, Any], reader: TaskReader) -> None:
        async def parse(chunks: AsyncIterator[bytes]) -> None:
            events, rest = SseParser(), b""
            async for chunk in chunks:
                data_fields = events.feed_data(chunk)
                rest = b"" if data_fields else rest + chunk[: 4096 - len(rest)]
                for data in data_fields:
                    reader.add(self._get_result(_decode_json(data)))
                if reader.is_settled:
                    return
            for data in events.feed_eof():
                reader.add(self._get_result(_decode_json(data)))
            if rest.lstrip().startswith(b"{"):  # an error of the whole request comes as plain JSON
                reader.add(self._get_result(_decode_json(rest)))

        request = self._build_request("stream", params)
        answer = await read_stream(
            partial(self._context.http.stream, request), parse, self._retry, self._context.progress
        )
        if isinstance(answer, Response):
            raise self._agent.endpoint.build_fault(answer)

    async def _send_call(self, call: str, params: Mapping[str, Any]) -> Any:
        request = self._build_request(call, params)
        # To ask for a task again changes nothing, whether or not the first question has arrived.
        retry = structs.replace(self._retry, only_unsent=call != "get")
        answer = await send_request(self._context.http, request, retry, self._context.progress)
        if not 200 <= answer.status < 300:
            raise self._agent.endpoint.build_fault(answer)
        return self._get_result(_decode_json(answer.body))

    def _build_request(self, call: str, params: Mapping[str, Any]) -> Request:
        service, endpoint = self._service, self._agent.endpoint
        headers = {"Content-Type": "application/json", **endpoint.headers}
        if not service.is_old:
            headers["A2A-Version"] = "1.0"
        if call == "stream":
            headers["Accept"] = "text/event-stream"
        is_get = call == "get"
        if service.binding == "jsonrpc":
            self._calls += 1
            method = (_OLD_METHODS if service.is_old else _METHODS)[call]
            body = codec.encode({"jsonrpc": "2.0", "id": self._calls, "method": method, "params": params})
            return Request(service.url, body, headers, "POST", endpoint.timeout_s, never_resend=not is_get)
        base = service.url.rstrip("/") + ("/v1" if service.is_old else "")
        if call in ("send", "stream"):
            body = codec.encode(params)
            return Request(f"{base}/message:{call}", body, headers, "POST", endpoint.timeout_s, never_resend=True)
        url = f"{base}/tasks/{quote(str(params['id']), safe='')}"
        if is_get:
            return Request(url, b"", headers, "GET", endpoint.timeout_s)
        return Request(f"{url}:cancel", b"{}", headers, "POST", endpoint.timeout_s, never_resend=True)

    def _get_result(self, value: Any) -> Any:
        """The result in a decoded answer. An answer with an error of the protocol is the agent's failure."""
        fields = as_object(value)
        if fields.get("error") is not None:
            error = as_object(fields["error"])
            message = get_text(error, "message") or codec.compact_json(fields["error"])
            raise AgentFailed(f"A2A error {error.get('code', '')}: {cut_end(message, 300)}".replace(" :", ":"))
        return fields.get("result") if self._service.binding == "jsonrpc" else value

    async def _cancel_task(self, task_id: str) -> None:
        """Asks the agent to cancel a task, with a short time limit. A failure is ignored."""
        with suppress(TrialFault, TimeoutError):
            async with asyncio.timeout(_CANCEL_S):
                await self._send_call("cancel", {"id": task_id})

    def _write_files(self, files: list[ArtifactFile]) -> None:
        """Writes the files of artifacts into the workspace. Folders in their names are dropped."""
        if (workspace := self._context.workspace) is None:
            return
        for at, file in enumerate(files, 1):
            if file.content is None:
                continue
            name = PurePath(file.name.replace("\\", "/")).name or f"artifact-{at}"
            try:
                path = os.path.realpath(workspace.path)
                opened = open_regular_file(f"{path}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
                with os.fdopen(opened, "wb") as target:
                    target.write(file.content)
            except OSError as error:
                self._context.progress.warnings.append(f"the file {name!r} could not be written: {error.strerror}")


def _decode_json(data: bytes) -> Any:
    try:
        return codec.decode(data)
    except codec.DecodeError as error:
        raise AgentFailed(f"its answer is not JSON: {error}") from error


def _encode_text(text: str, *, is_old: bool) -> dict[str, Any]:
    return {"kind": "text", "text": text} if is_old else {"text": text}


def _encode_data(data: Any, service: A2aService) -> dict[str, Any]:
    if not service.is_old:
        return {"data": data}
    value = data if isinstance(data, dict) else {"value": data}
    return {"data": {"data": value}} if service.binding == "rest" else {"kind": "data", "data": value}


def _encode_file(part: Attachment, service: A2aService) -> dict[str, Any]:
    data, media_type = get_inline_data(part), guess_media_type(part)
    if not service.is_old:
        source = {"url": part.url} if data is None else {"raw": data}
        return {**source, "mediaType": media_type, "filename": part.name or ""}
    if service.binding == "rest":
        # The SDKs of that version encode the bytes twice.
        source = {"fileWithUri": part.url} if data is None else {"fileWithBytes": b64encode(data.encode()).decode()}
        return {"file": {**source, "mimeType": media_type, "name": part.name or ""}}
    source = {"uri": part.url} if data is None else {"bytes": data}
    return {"kind": "file", "file": {**source, "mimeType": media_type, "name": part.name or ""}}
