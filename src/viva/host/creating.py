"""`POST /v1/runs`: what has to hold before a run exists. All of it is checked first; then the run is written down."""

from typing import Any

from viva.host import bodies, evals, invocations
from viva.host.auth import Principal
from viva.host.host import Host
from viva.host.idempotency import Deed
from viva.host.refusals import Refusal, forbidden, invalid, not_provided
from viva.host.store import Run
from viva.host.workflows import AGENT, check_inputs, kept_inputs
from viva.model import codec

MAX_METADATA = 50 * 1024


async def checked_run(host: Host, principal: Principal, raw: bytes) -> Deed:
    """A run that may be. Raises a Refusal for one that may not."""
    value = bodies.parsed(raw)
    if not host.modes and isinstance(value, dict) and value.get("mode") == "eval":
        raise not_provided("agents.evalSuite")
    body = bodies.fitting("CREATE_RUN", value)
    _check_what_every_run_has(principal, body)
    host.runs.make_room()
    if body.get("mode") == "eval":
        run = await evals.checked_run(host, principal, body)
    elif body["workflowId"] == AGENT:
        run = invocations.checked_run(host, principal, body)
    else:
        run = _workflow_run(host, principal, body)
    run.tags, run.metadata = body.get("tags"), body.get("metadata")
    return deed_of(host, run)


def deed_of(host: Host, run: Run) -> Deed:
    """The run is written down together with the answer that announces it, and begun after that."""
    created = {
        "runId": run.id,
        "status": "pending",
        "eventsUrl": f"{host.url(run)}/events",
        "statusUrl": host.url(run),
    }
    return Deed(201, codec.encode(created), write=lambda: host.store.keep(run), begin=lambda: host.runs.begin(run))


def _check_what_every_run_has(principal: Principal, body: dict[str, Any]) -> None:
    """What cannot be kept is refused, not ignored."""
    if body.get("tenantId", principal.tenant) != principal.tenant:
        raise forbidden("tenantId is not the tenant of this key")
    configurable = body.get("configurable", {})
    if "mockProvider" in configurable:
        raise Refusal(403, "mock_provider_forbidden", "this host mocks no provider")
    for given, key, capability in (
        (configurable, "budget", "budget"),
        (body, "callbackUrl", "webhooks"),
        (body, "residency", "residency"),
    ):
        if key in given:
            raise not_provided(capability)
    if len(codec.encode(body.get("metadata", {}))) > MAX_METADATA:
        raise invalid(f"metadata has at most {MAX_METADATA} bytes", "metadata")


def _workflow_run(host: Host, principal: Principal, body: dict[str, Any]) -> Run:
    workflow = host.workflows.get(body["workflowId"])
    if workflow is None:
        raise invalid("there is no such workflow", "workflowId")
    inputs = body.get("inputs", {})
    check_inputs(workflow, inputs)
    return host.new_run(principal, kind="workflow", workflow=workflow["id"], asked=kept_inputs(workflow, inputs))
