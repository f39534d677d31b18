"""`POST /v1/runs`: what has to hold before a run exists. All of it is checked first; then the run is written down."""

from typing import Any

from viva.host import evals, invocations
from viva.host import schemas as bodies
from viva.host.auth import Principal
from viva.host.errors import ApiError, forbidden, not_provided, validation_error
from viva.host.host import Host
from viva.host.idempotency import Mutation
from viva.host.store import Run
from viva.host.workflows import AGENT_WORKFLOW, select_inputs, validate_inputs
from viva.model import codec

MAX_METADATA = 50 * 1024


async def prepare_run(host: Host, principal: Principal, raw: bytes) -> Mutation:
    """A run that may be. Raises a Refusal for one that may not."""
    value = bodies.parse_json(raw)
    if not host.eval_modes and isinstance(value, dict) and value.get("mode") == "eval":
        raise not_provided("agents.evalSuite")
    body = bodies.validate_body("CREATE_RUN", value)
    _check_what_every_run_has(principal, body)
    host.runs.check_capacity()
    if body.get("mode") == "eval":
        run = await evals.validate_eval_run(host, principal, body)
    elif body["workflowId"] == AGENT_WORKFLOW:
        run = invocations.validate_invocation(host, principal, body)
    else:
        run = _workflow_run(host, principal, body)
    run.tags, run.metadata = body.get("tags"), body.get("metadata")
    return build_mutation(host, run)


def build_mutation(host: Host, run: Run) -> Mutation:
    """The run is written down together with the answer that announces it, and begun after that."""
    created = {
        "runId": run.id,
        "status": "pending",
        "eventsUrl": f"{host.run_url(run)}/events",
        "statusUrl": host.run_url(run),
    }
    return Mutation(
        201, codec.encode(created), write=lambda: host.store.save_run(run), start=lambda: host.runs.start(run)
    )


def _check_what_every_run_has(principal: Principal, body: dict[str, Any]) -> None:
    """What cannot be kept is refused, not ignored."""
    if body.get("tenantId", principal.tenant) != principal.tenant:
        raise forbidden("tenantId is not the tenant of this key")
    configurable = body.get("configurable", {})
    if "mockProvider" in configurable:
        raise ApiError(403, "mock_provider_forbidden", "this host mocks no provider")
    for given, key, capability in (
        (configurable, "budget", "budget"),
        (body, "callbackUrl", "webhooks"),
        (body, "residency", "residency"),
    ):
        if key in given:
            raise not_provided(capability)
    if len(codec.encode(body.get("metadata", {}))) > MAX_METADATA:
        raise validation_error(f"metadata has at most {MAX_METADATA} bytes", "metadata")


def _workflow_run(host: Host, principal: Principal, body: dict[str, Any]) -> Run:
    workflow = host.workflows.get(body["workflowId"])
    if workflow is None:
        raise validation_error("there is no such workflow", "workflowId")
    inputs = body.get("inputs", {})
    validate_inputs(workflow, inputs)
    return host.build_run(principal, kind="workflow", workflow=workflow["id"], asked=select_inputs(workflow, inputs))
