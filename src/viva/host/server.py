"""`viva serve`: the application with its routes and error responses, and the server that runs it until a signal."""

import asyncio
import logging
import signal
import socket
import sys
import threading
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from secrets import token_hex
from types import FrameType
from typing import Any, cast

import uvicorn
from msgspec import structs
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from viva.concurrency.garbage import collect_less_often
from viva.concurrency.sockets import open_listening_socket
from viva.errors import BadInput
from viva.host import operations, routes
from viva.host.connections import Connection, ConnectionRegistry, RequestChecks, fit_to_open_file_limit
from viva.host.discovery import ENDPOINTS
from viva.host.errors import ApiError, not_found
from viva.host.evals import run_eval
from viva.host.host import Host, HostSetup
from viva.host.monitoring import RequestMonitor
from viva.host.operations import watch_retention
from viva.host.routes import make_unsupported_endpoint, respond_json, unknown_endpoint
from viva.host.runs import NotReadyReason, log_error, not_ready_error
from viva.host.sqlite_store import SqliteStore
from viva.host.store import Store, StoreUnavailable
from viva.host.workflows import run_invocation, run_workflow
from viva.session.file_limit import raise_file_limit
from viva.session.loop import run_coroutine

SHUTDOWN_TIMEOUT_S = 5
SWITCH_INTERVAL_S = 0.0005
"""After this time a thread that computes lets others continue. Python's own 5 ms let ten of them delay each request by 50 ms."""
UNSUPPORTED_PATHS = {
    "interrupts": ("/v1/runs/{runId}/interrupts", "/v1/runs/{runId}/interrupts/{nodeId}", "/v1/interrupts/{token}"),
    "artifacts": ("/v1/runs/{runId}/artifacts", "/v1/runs/{runId}/artifacts/{artifactId}"),
    "webhooks": ("/v1/webhooks", "/v1/webhooks/{webhookId}"),
    "replay.fork": ("/v1/runs/{runId}:fork",),
    "prompts": ("/v1/prompts", "/v1/prompts/{prompt:path}"),
    "agents.deployment": ("/v1/agents/{agentId}/deployments", "/v1/agents/{agentId}/deployments/{rest:path}"),
}
"""Endpoints of OpenWOP that this host does not provide, by capability."""
UNIMPLEMENTED_PATHS = tuple(f"/v1/runs/{{runId}}{mark}{name}" for name in ("pause", "resume") for mark in ":/")
"""Optional endpoints of OpenWOP for which there is no capability."""
PUBLIC_PATHS = ("/healthz", "/readyz", "/.well-known/openwop", "/v1/openapi.json")
ALL_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def make_app(
    open_host: Callable[[], Host], connections: ConnectionRegistry, *, has_test_routes: bool = False
) -> Starlette:
    """Builds the ASGI application. `open_host` is called on the event loop that serves requests."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        with collect_less_often():  # once for all runs
            host = app.state.host = open_host()
            host.runs.open()
            host.monitor.audit("start")
            retention = asyncio.create_task(watch_retention(host))
            yield
            retention.cancel()
            await host.close()

    app = Starlette(
        routes=build_routes(has_test_routes=has_test_routes),
        lifespan=lifespan,
        exception_handlers={
            ApiError: _handle_api_error,
            HTTPException: _handle_http_error,
            StoreUnavailable: _handle_unavailable_store,
        },
    )
    app.router.redirect_slashes = False  # a redirect would reveal paths to callers without a token
    app.add_middleware(RequestChecks)
    app.add_middleware(ErrorBoundary)
    app.add_middleware(RequestMonitor)
    if proxies := connections.limits.trusted_proxies:  # headers of others about the client are not believed
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(proxies))
    app.state.connections = connections
    return app


def build_routes(*, has_test_routes: bool = False) -> list[Route]:
    unsupported = [
        Route(path, make_unsupported_endpoint(capability), methods=ALL_METHODS)
        for capability, paths in UNSUPPORTED_PATHS.items()
        for path in paths
    ]
    unsupported += [Route(path, unknown_endpoint, methods=["POST"]) for path in UNIMPLEMENTED_PATHS]
    test_routes: list[Route] = []
    if has_test_routes:
        from viva.host.conformance import build_test_routes

        test_routes = build_test_routes()
    supported = [Route(each.path, _HANDLERS[each.name], methods=[each.method]) for each in ENDPOINTS]
    return [*test_routes, *unsupported, *supported]


_HANDLERS: Mapping[str, Callable[[Request], Awaitable[Response]]] = {
    "discover": routes.get_capabilities,
    "openapi": routes.get_openapi,
    "health": operations.get_health,
    "readiness": operations.get_readiness,
    "metrics": operations.get_metrics,
    "adminListRuns": operations.list_runs,
    "adminCancelRuns": operations.cancel_runs,
    "adminDeleteRun": operations.delete_run,
    "adminDeleteTenant": operations.delete_tenant,
    "createRun": routes.create_run,
    "cancelRuns": routes.cancel_runs,
    "diffRun": routes.diff_runs,
    "getRun": routes.get_run,
    "getEvalSummary": routes.get_eval_summary,
    "listAnnotations": routes.list_annotations,
    "annotateRun": routes.create_annotation,
    "cancelRun": routes.cancel_run,
    "streamEvents": routes.stream_events,
    "pollEvents": routes.poll_events,
    "listAgents": routes.list_agents,
    "getAgent": routes.get_agent,
    "getWorkflow": routes.get_workflow,
}
"""The function of each endpoint, by its name in the OpenAPI document."""


class ErrorBoundary:
    """ASGI middleware that responds 500 to a request that raises, and logs the exception without its message."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        is_started = False

        async def send_message(message: Message) -> None:
            nonlocal is_started
            is_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_message)
        except ClientDisconnect:
            return
        except Exception as error:  # a bug in one request must not reach other requests or the log of the server
            correlation = token_hex(8)
            log_error(f"request {correlation}", error)
            if not is_started:
                details = {"correlationId": correlation}
                body = {"error": "internal_error", "message": "Internal error of the host", "details": details}
                await respond_json(body, 500)(scope, receive, send)


async def _handle_api_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return respond_json(error.to_json(), error.status, error.headers)


async def _handle_unavailable_store(request: Request, error: Exception) -> Response:
    assert isinstance(error, StoreUnavailable)
    return await _handle_api_error(request, not_ready_error(NotReadyReason(error.reason)))


async def _handle_http_error(request: Request, error: Exception) -> Response:
    """Handles an unknown path or method. Without a valid token, all paths but the public ones respond 401."""
    assert isinstance(error, HTTPException)
    try:
        if request.url.path not in PUBLIC_PATHS:
            routes.authenticate(request)
        if error.status_code == 404:
            raise not_found("endpoint")
    except ApiError as api_error:
        return await _handle_api_error(request, api_error)
    if error.status_code == 405:
        body = {"error": "method_not_allowed", "message": "This endpoint does not support the method"}
    else:
        body = {"error": "bad_request", "message": "The request cannot be parsed"}
    return respond_json(body, error.status_code, error.headers)


def open_store(setup: HostSetup) -> Store:
    """Opens the PostgreSQL database of `[serve] store` or, by default, an SQLite file. Raises BadInput."""
    if setup.store_url is None:
        return SqliteStore(setup.settings.data_folder / "host")
    try:
        from viva.host.postgres_store import PostgresStore
    except ImportError as missing:
        raise BadInput.of(
            f"[serve] store needs the extra `postgres` ({missing.name} is missing): pip install 'viva-eval[postgres]'"
        ) from missing
    return PostgresStore(setup.store_url, setup.options.lease_s)


def open_host(setup: HostSetup, shutdown: asyncio.Event, store: Store | None = None) -> Host:
    """Opens a host. Call it on the event loop that serves requests."""
    store = store or open_store(setup)
    return Host(setup, store, {"eval": run_eval, "invocation": run_invocation, "workflow": run_workflow}, shutdown)


class HostServer(uvicorn.Server):
    """A uvicorn server that calls `on_ready` when it accepts requests, and handles signals.

    After SIGTERM the host takes no new runs, and those that execute have `drain_s` to end. SIGINT, or a second signal, stops
    the server at once: `shutdown` is set, so that open streams end. SIGHUP reloads the config.
    """

    def __init__(
        self, config: uvicorn.Config, shutdown: asyncio.Event, on_ready: Callable[[], None], drain_s: float = 0.0
    ) -> None:
        super().__init__(config)
        self._shutdown = shutdown
        self._on_ready = on_ready
        self._drain_s = drain_s
        self._drain_until: float | None = None
        self._reloads: set[asyncio.Task[None]] = set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if not self.started:
            return
        if threading.current_thread() is threading.main_thread():
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reload)
        self._on_ready()

    @property
    def _host(self) -> Host:
        app = self.config.app
        assert isinstance(app, Starlette)
        return app.state.host

    def _reload(self) -> None:
        task = asyncio.ensure_future(self._host.reload())
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and self._drain_s and self._drain_until is None:
            self._drain_until = time.monotonic() + self._drain_s
            return
        self._shutdown.set()
        # Not that of uvicorn: it raises the signal again after an orderly stop.
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        if self._drain_until is not None:
            runs = self._host.runs
            runs.drain()
            if not runs.running_count or time.monotonic() >= self._drain_until:
                self._shutdown.set()
                self.should_exit = True
        return await super().on_tick(counter)


def build_server(setup: HostSetup, on_ready: Callable[[], None], store: Store | None = None) -> HostServer:
    """Builds the server of a host. Without `store`, the server opens the store of the setup when it starts."""
    shutdown = asyncio.Event()
    registry = ConnectionRegistry(setup.connection_limits)
    app = make_app(lambda: open_host(setup, shutdown, store), registry, has_test_routes=setup.options.conformance)
    # No access log of uvicorn: paths contain ids of tenants' runs.
    server_config = uvicorn.Config(
        app,
        http=cast("Any", partial(Connection, registry)),
        ws="none",
        log_level="warning",
        access_log=False,
        timeout_graceful_shutdown=SHUTDOWN_TIMEOUT_S,
        server_header=False,
        proxy_headers=False,
    )
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # a mistake of a client is not a warning
    return HostServer(server_config, shutdown, on_ready, setup.options.drain_s)


def serve(setup: HostSetup, on_ready: Callable[[str], None]) -> None:
    """Runs the server until a signal ends it. `on_ready` gets the public URL."""
    store = open_store(setup)  # before the socket: a second host must fail
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    connections, metrics_address = setup.connection_limits, setup.operations.metrics_address
    with ExitStack() as stack:
        stack.enter_context(raise_file_limit(connections.max_connections))
        addresses = [(setup.bind_address, setup.port), *([metrics_address] if metrics_address else [])]
        listeners = [stack.enter_context(open_listening_socket(*address)) for address in addresses]
        url = setup.options.public_url
        if setup.port == 0 and url.endswith(":0"):
            url = f"{url.removesuffix(':0')}:{listeners[0].getsockname()[1]}"
            setup = structs.replace(setup, options=structs.replace(setup.options, public_url=url))
        setup = structs.replace(setup, connection_limits=fit_to_open_file_limit(connections))
        server = build_server(setup, lambda: on_ready(url), store)
        run_coroutine(server.serve(listeners))
