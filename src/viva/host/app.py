"""The ASGI application: the table of routes, and error responses."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from secrets import token_hex

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

from viva.host import admin, operations, routes
from viva.host.connections import ConnectionRegistry
from viva.host.errors import ApiError, not_found
from viva.host.host import Host
from viva.host.monitoring import RequestMonitor
from viva.host.readiness import NotReadyReason, not_ready
from viva.host.request_checks import RequestChecks
from viva.host.retention import watch_retention
from viva.host.routes import respond_json, unknown_endpoint, unsupported_endpoint
from viva.host.runs import log_error
from viva.host.store import StoreUnavailable

UNSUPPORTED_PATHS = {
    "interrupts": ("/v1/runs/{run_id}/interrupts", "/v1/runs/{run_id}/interrupts/{node_id}", "/v1/interrupts/{token}"),
    "artifacts": ("/v1/runs/{run_id}/artifacts", "/v1/runs/{run_id}/artifacts/{artifact_id}"),
    "webhooks": ("/v1/webhooks", "/v1/webhooks/{webhook_id}"),
    "replay.fork": ("/v1/runs/{run_id}:fork",),
    "prompts": ("/v1/prompts", "/v1/prompts/{prompt:path}"),
    "agents.deployment": ("/v1/agents/{agent_id}/deployments", "/v1/agents/{agent_id}/deployments/{rest:path}"),
}
"""Endpoints of OpenWOP that this host does not provide, by capability."""
UNKNOWN_PATHS = tuple(f"/v1/runs/{{run_id}}{mark}{name}" for name in ("pause", "resume") for mark in ":/")
"""Optional endpoints that no capability names."""
PUBLIC_PATHS = ("/healthz", "/readyz", "/.well-known/openwop", "/v1/openapi.json")
ALL_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def make_app(
    open_host: Callable[[], Host], connections: ConnectionRegistry, *, has_test_routes: bool = False
) -> Starlette:
    """Builds the application. `open_host` is called on the event loop that serves it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
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
    run = "/v1/runs/{run_id}"
    unsupported = [
        Route(path, unsupported_endpoint(capability), methods=ALL_METHODS)
        for capability, paths in UNSUPPORTED_PATHS.items()
        for path in paths
    ]
    unsupported += [Route(path, unknown_endpoint, methods=["POST"]) for path in UNKNOWN_PATHS]
    test_routes: list[Route] = []
    if has_test_routes:
        from viva.host.conformance import build_test_routes

        test_routes = build_test_routes()
    return [
        *test_routes,
        *unsupported,
        Route("/.well-known/openwop", routes.get_capabilities),
        Route("/v1/openapi.json", routes.get_openapi),
        Route("/v1/runs", routes.create_run, methods=["POST"]),
        Route("/v1/runs:bulk-cancel", routes.cancel_runs, methods=["POST"]),
        Route(f"{run}:diff", routes.diff_runs),
        Route(run, routes.get_run),
        Route(f"{run}/events", routes.stream_events),
        Route(f"{run}/events/poll", routes.poll_events),
        Route(f"{run}/cancel", routes.cancel_run, methods=["POST"]),
        Route(f"{run}/eval-summary", routes.get_eval_summary),
        Route(f"{run}/annotations", routes.list_annotations),
        Route(f"{run}/annotations", routes.create_annotation, methods=["POST"]),
        Route("/healthz", operations.get_health),
        Route("/readyz", operations.get_readiness),
        Route("/metrics", operations.get_metrics),
        Route("/v1/admin/runs", admin.list_runs),
        Route("/v1/admin/runs:cancel", admin.cancel_runs, methods=["POST"]),
        Route("/v1/admin/runs/{run_id}", admin.delete_run, methods=["DELETE"]),
        Route("/v1/admin/tenants/{tenant}/runs", admin.delete_tenant, methods=["DELETE"]),
        Route("/v1/agents", routes.list_agents),
        Route("/v1/agents/{agent_id}", routes.get_agent),
        Route("/v1/workflows/{workflow_id}", routes.get_workflow),
    ]


class ErrorBoundary:
    """Answers a request that raises an unexpected exception with 500, and logs it without its message."""

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
    return await _handle_api_error(request, not_ready(NotReadyReason(error.reason)))


async def _handle_http_error(request: Request, error: Exception) -> Response:
    """Errors of Starlette: an unknown path or method. Without a token, all paths but the public ones answer 401."""
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
