"""What agents behind a protocol over HTTP have in common: address, headers, limits, and errors of their answers."""

from collections.abc import Mapping
from typing import Annotated

from msgspec import Meta, Struct, UnsetType, field

from viva.agents.agent_config import AgentConfig, AgentSetup, Duration, NonEmpty, StringMap
from viva.errors import AgentFailed, TrialFault, Unreachable
from viva.llm.calls import RetryPolicy, describe_status, extract_error_message, find_header_secrets, is_overload_status
from viva.llm.target import find_url_problem
from viva.model.connector import Secret
from viva.protocols import Response
from viva.text import credentials
from viva.text.duration import parse_duration

_NO_ACCESS = frozenset({401, 403, 407})


class RemoteEndpoint(Struct, frozen=True, kw_only=True):
    """Where an agent is, and what every request to it has."""

    url: str
    headers: Mapping[str, str] = {}
    timeout_s: float = 120.0
    retries: int = 4

    def build_retry(self, name: str) -> RetryPolicy:
        """How failed requests are retried. One that may have arrived is not sent again: the agent may have acted on it."""
        return RetryPolicy(
            name, self.retries, is_overload_status, only_unsent=True, secrets=find_header_secrets(self.headers)
        )

    def build_fault(self, answer: Response) -> TrialFault:
        """The fault behind a status that is not a success."""
        detail = extract_error_message(answer.body, find_header_secrets(self.headers))
        message = f"HTTP {describe_status(answer.status)}"
        if 300 <= answer.status < 400 and (place := answer.headers.get("location")):
            message += f" to {credentials.mask_url_credentials(place)}: redirects are not followed; give the agent that address"
        elif detail:
            message += f": {detail}"
        return Unreachable(message) if answer.status in _NO_ACCESS else AgentFailed(message)


class RemoteConfig(AgentConfig, frozen=True, kw_only=True):
    """The fields of agents behind a protocol over HTTP."""

    use: NonEmpty | UnsetType = ""
    """A reference: the kind, a colon and the address."""
    url: str = ""
    """The address."""
    headers: StringMap = field(default_factory=dict[str, str])
    """HTTP headers of every request. A value $NAME is taken from the environment."""
    timeout: Duration = "120s"
    """Time limit of one answer; of a stream, the longest pause between two pieces."""
    retries: Annotated[int, Meta(ge=0)] = 4
    """Number of retries of a call that failed for a transient reason."""

    def build_endpoint(self, setup: AgentSetup, token: Secret | None = None) -> RemoteEndpoint:
        """The endpoint with `$NAME` filled in. Its credentials are secrets from then on."""
        if not self.url:
            raise setup.error("is missing `url`")
        url = setup.expand(self.url, "url")
        if problem := find_url_problem(url):
            raise setup.error(f"`url` {problem}", "url")
        headers = {name: setup.expand(value, "headers") for name, value in self.headers.items()}
        if token:
            headers["Authorization"] = f"Bearer {token.reveal()}"
        setup.add_secrets((*credentials.find_header_credentials(headers), *credentials.find_url_credentials(url)))
        return RemoteEndpoint(url=url, headers=headers, timeout_s=parse_duration(self.timeout), retries=self.retries)
