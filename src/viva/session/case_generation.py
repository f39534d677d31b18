"""Generated cases: `-i agents:id?count=10` and `-i scripts:module.function?k=v`.

They are validated like cases in files. An agent whose answer does not load is asked a second time; if that fails too, the fault is the agent's.
"""

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec import UNSET, Struct

from viva.catalog import find_script
from viva.concurrency.threads import run_in_thread
from viva.config import Settings
from viva.engine.helpers import HelperPool, limit_helper_time
from viva.errors import BadInput, HelperFailed
from viva.formats import native
from viva.formats.documents import wrap_values
from viva.formats.load_options import LoadOptions
from viva.formats.sources import GeneratedCases
from viva.model.event import CaseGenerated
from viva.model.message import Reply
from viva.model.tracebacks import format_error
from viva.session.agents import ConfiguredAgent
from viva.state.trial_state import get_structured_answer
from viva.text.credentials import MASK

DEFAULT_CASE_COUNT = 5
"""Number of cases to generate, unless `?count=` is given."""
_REQUEST_TEXT = 'Write the cases now, as JSON: {"cases": [...]}'


class CaseGenerator(Struct, frozen=True):
    """Asks agents and scripts for cases that test `target`. A generator agent has `timeout_s` for its answer."""

    target: ConfiguredAgent
    helpers: HelperPool
    settings: Settings
    load_options: LoadOptions
    timeout_s: float

    async def generate(self, source: GeneratedCases) -> list[Any]:
        """The generated cases. Each of them loads; secrets in an agent's answer are masked, as in the journal."""
        if MASK in source.query.values():
            raise BadInput.of(f"-i {source.name}: {MASK} stands for a secret; write the secret itself")
        metadata = {
            "target_agent": self.target.name,
            "target_description": self.target.description,
            "target_tools": list(self.target.tools),
            "count": DEFAULT_CASE_COUNT,
            **source.query,
        }
        if source.source == "scripts":
            answer = await _call_generator_script(source.reference, metadata, self.settings)
            try:
                return self._load_cases(answer, source.name)
            except ValueError as error:
                raise BadInput.of(f"{source.name}: cannot use what the script returned: {error}") from error
        # A resumed run reads these cases from the journal and must find the same ones.
        redact = self.settings.redactor.redact
        return [redact(CaseGenerated(source.name, case)).case for case in await self._ask_agent(source, metadata)]

    async def _ask_agent(self, source: GeneratedCases, metadata: Mapping[str, Any]) -> list[Any]:
        def parse(reply: Reply) -> list[Any]:
            try:
                return self._load_cases(get_structured_answer(reply), source.name)
            except BadInput as error:
                raise ValueError(str(error)) from error

        session = self.helpers.open("generator", source.reference, None, {"metadata": metadata})
        try:
            async with limit_helper_time("generator", self.timeout_s), session as generator:
                return await generator.ask(_REQUEST_TEXT, parse)
        except HelperFailed as error:
            raise HelperFailed("generator", f"generator {source.reference}: {error.message}") from error

    def _load_cases(self, answer: Any, name: str) -> list[Any]:
        """The cases of an answer. Raises ValueError or BadInput if one does not load."""
        cases = parse_cases(answer)
        native.load(wrap_values(cases, name), name, self.settings.folder, self.load_options)
        return list(cases)


def parse_cases(answer: Any) -> Sequence[Any]:
    """The list of cases in an answer: `{cases|test_cases: [...]}`, an array, or one case. Raises ValueError for anything else."""
    if isinstance(answer, list):
        return cast("list[Any]", answer)
    if isinstance(answer, Mapping):
        fields = cast("Mapping[str, Any]", answer)
        for key in ("cases", "test_cases"):
            if key in fields:
                if not isinstance(fields[key], list):
                    raise ValueError(f"`{key}` is not a list")
                return fields[key]
        return [fields]
    raise ValueError("the answer contains no JSON" if answer is UNSET else "the answer is not a list of cases")


async def _call_generator_script(reference: str, metadata: Mapping[str, Any], settings: Settings) -> Any:
    """Calls the function that a reference names (default: `generate`) with those metadata that it has parameters for."""
    try:
        module, function = find_script(reference, (str(settings.folder), str(Path.cwd())))
    except ValueError as error:
        raise BadInput.of(f"scripts:{reference}: {error}") from error
    if function is None:
        function = getattr(module, "generate", None)
    if not callable(function):
        raise BadInput.of(f"scripts:{reference}: {module.__name__} has neither test_* functions nor `generate`")
    call = cast("Callable[..., Any]", function)
    parameters = inspect.signature(call).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    arguments = {key: value for key, value in metadata.items() if takes_all or key in parameters}
    missing = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and name not in arguments and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if missing:
        query = "&".join(f"{name}=..." for name in missing)
        raise BadInput.of(f"scripts:{reference} needs {', '.join(missing)}; pass it as scripts:{reference}?{query}")
    try:
        result = await run_in_thread(lambda: call(**arguments))
        return await result if inspect.isawaitable(result) else result
    except (KeyboardInterrupt, asyncio.CancelledError):
        raise
    except BaseException as error:  # user code may raise anything; the message names the script
        raise BadInput.of(f"scripts:{reference} raised {format_error(error)}") from error
