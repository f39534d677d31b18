"""The application: which path is which endpoint, and how a refusal becomes an answer."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from secrets import token_hex
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from viva.host import routes
from viva.host.errors import ApiError, forbidden, not_found
from viva.host.host import Host
from viva.host.routes import respond_json, unsupported_endpoint
from viva.host.runs import log_error

UNSUPPORTED_PATHS = {
    "interrupts": ("/v1/runs/{run_id}/interrupts", "/v1/runs/{run_id}/interrupts/{node_id}", "/v1/interrupts/{token}"),
    "artifacts": ("/v1/runs/{run_id}/artifacts", "/v1/runs/{run_id}/artifacts/{artifact_id}"),
    "webhooks": ("/v1/webhooks", "/v1/webhooks/{webhook_id}"),
    "bulk-cancel": ("/v1/runs:bulk-cancel", "/v1/runs/bulk-cancel"),
    "replay.fork": ("/v1/runs/{run_id}:fork",),
    "pause": ("/v1/runs/{run_id}:pause", "/v1/runs/{run_id}/pause"),
    "resume": ("/v1/runs/{run_id}:resume", "/v1/runs/{run_id}/resume"),
    "prompts": ("/v1/prompts", "/v1/prompts/{prompt:path}"),
    "agents.deployment": ("/v1/agents/{agent_id}/deployments", "/v1/agents/{agent_id}/deployments/{rest:path}"),
}
"""Endpoints of the protocol that are not built here, by the capability that would announce them."""
PUBLIC_PATHS = ("/.well-known/openwop", "/v1/openapi.json")
ALL_METHODS = ["GET", "POST", "PUT", "PATCH", "DELETE"]


def make_app(open_host: Callable[[], Host], on_open: Callable[[Host], Awaitable[None]] | None = None) -> Starlette:
    """The application around a host, which is opened on the loop that serves it."""

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[None]:
        host = app.state.host = open_host()
        if host.options.conformance:
            from viva.host.conformance import build_test_routes

            app.router.routes[:0] = build_test_routes()
        host.runs.resume_unfinished()
        if on_open is not None:
            await on_open(host)
        yield
        await host.close()

    app = Starlette(
        routes=_routes(),
        lifespan=lifespan,
        exception_handlers={ApiError: _refused, HTTPException: _odd},
    )
    app.router.redirect_slashes = False  # a redirect would tell more than a refusal
    app.add_middleware(SameOriginCheck)
    app.add_middleware(ErrorBoundary)
    return app


def _routes() -> list[Route]:
    run = "/v1/runs/{run_id}"
    elsewhere = [
        Route(path, unsupported_endpoint(capability), methods=ALL_METHODS)
        for capability, paths in UNSUPPORTED_PATHS.items()
        for path in paths
    ]
    return [
        *elsewhere,
        Route("/.well-known/openwop", routes.get_capabilities),
        Route("/v1/openapi.json", routes.get_openapi),
        Route("/v1/runs", routes.create_run, methods=["POST"]),
        Route(f"{run}:diff", routes.diff_runs),
        Route(run, routes.get_run),
        Route(f"{run}/events", routes.stream_events),
        Route(f"{run}/events/poll", routes.poll_events),
        Route(f"{run}/cancel", routes.cancel_run, methods=["POST"]),
        Route(f"{run}/eval-summary", routes.get_eval_summary),
        Route(f"{run}/annotations", routes.list_annotations),
        Route(f"{run}/annotations", routes.create_annotation, methods=["POST"]),
        Route("/v1/agents", routes.list_agents),
        Route("/v1/agents/{agent_id}", routes.get_agent),
        Route("/v1/workflows/{workflow_id}", routes.get_workflow),
    ]


class ErrorBoundary:
    """A request that breaks us is answered, and told of without its words: whoever serves us would log all of them."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun = False

        async def sending(message: Message) -> None:
            nonlocal begun
            begun = True
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except ClientDisconnect:
            return  # nobody is left to be answered
        except Exception as broken:  # our own bug in one request must not show in another's, nor in the log
            correlation = token_hex(8)
            log_error(f"request {correlation}", broken)
            if not begun:
                await respond_json(
                    {"error": "internal_error", "message": "the host broke", "details": {"correlationId": correlation}},
                    500,
                )(scope, receive, send)


class SameOriginCheck:
    """A page of another origin has no business here, whatever a browser would let it do."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            request = Request(scope)
            origin = request.headers.get("origin")
            public = request.app.state.host.serving.public_url
            if origin is not None and _place(origin) not in (request.headers.get("host"), _place(public)):
                refused = forbidden("requests from pages of other origins are refused")
                await respond_json(refused.to_json(), refused.status)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _place(url: str) -> str | None:
    try:
        return urlsplit(url).netloc
    except ValueError:
        return None


async def _refused(_request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, ApiError)
    return respond_json(refusal.to_json(), refusal.status, refusal.headers)


async def _odd(request: Request, odd: Exception) -> Response:
    """What Starlette itself refuses: a path that is none, or a method that an endpoint does not have.

    Which of them there are is nobody's business who has no key, but for the two that everybody may read.
    """
    assert isinstance(odd, HTTPException)
    try:
        if request.url.path not in PUBLIC_PATHS:
            routes.authenticate(request)
        if odd.status_code == 404:
            raise not_found("endpoint")
    except ApiError as refusal:
        return await _refused(request, refusal)
    code = "method_not_allowed" if odd.status_code == 405 else "bad_request"
    message = "this endpoint does not have that method" if odd.status_code == 405 else "the request cannot be read"
    return respond_json({"error": code, "message": message}, odd.status_code, odd.headers)
