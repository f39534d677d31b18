"""Endpoints for operators: health, readiness and metrics. They have no content of runs."""

from starlette.requests import Request
from starlette.responses import Response

from viva.host.errors import forbidden
from viva.host.metrics import CONTENT_TYPE, format_metrics
from viva.host.request_checks import is_metrics_address
from viva.host.routes import authenticate, get_host, respond_json


async def get_health(_request: Request) -> Response:
    """Answers 200 as long as the process can answer at all. Public."""
    return respond_json({"status": "ok"})


async def get_readiness(request: Request) -> Response:
    """Answers 200 if the host takes new runs, else 503 with the reasons. Public."""
    reasons = [{"code": reason.code, "message": reason.message} for reason in get_host(request).readiness().reasons]
    return respond_json({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)


async def get_metrics(request: Request) -> Response:
    """Prometheus text, for tokens with the scope metrics or admin; without a token on the address for metrics."""
    if not is_metrics_address(request):
        principal = authenticate(request)
        if not principal.scopes & {"metrics", "admin"}:
            raise forbidden("This token lacks the scope metrics", requiredScope="metrics")
    text = format_metrics(get_host(request), request.app.state.connections)
    return Response(text, 200, {"Cache-Control": "no-store"}, CONTENT_TYPE)
