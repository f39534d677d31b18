"""Cases that nobody wrote down: `-i agents:id?count=10` and `-i scripts:module.function?k=v`.

They are validated like hand-written ones. What a generator gets wrong is asked for once more, and then is its fault.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from msgspec import UNSET

from viva.catalog import find_script
from viva.concurrency.threads import run_in_thread
from viva.config import Settings
from viva.engine.helpers import HelperPool, helper_time_limit
from viva.errors import BadInput, HelperFailed
from viva.formats import native
from viva.formats.documents import wrap_values
from viva.formats.load_options import LoadOptions
from viva.formats.sources import GeneratedCases
from viva.model.message import Reply
from viva.model.tracebacks import error_text
from viva.session.agents import ConfiguredAgent
from viva.state.trial_state import structured_answer

DEFAULT_CASE_COUNT = 5
"""How many cases an agent is asked for, unless `?count=` says otherwise."""
_ASK = 'Write the cases now, as JSON: {"cases": [...]}'


async def generate_cases(
    made: GeneratedCases,
    target: ConfiguredAgent,
    helper_pool: HelperPool,
    settings: Settings,
    reading: LoadOptions,
    timeout_s: float,
) -> list[Any]:
    """The cases that an agent or a script makes for the agent under test; each of them loads. An agent has so much time."""
    about = {
        "target_agent": target.name,
        "target_description": target.description,
        "target_tools": list(target.tools),
        "count": DEFAULT_CASE_COUNT,
        **made.query,
    }

    def checked(answer: Any) -> list[Any]:
        cases = parse_cases(answer)
        native.load(wrap_values(cases, made.name), made.name, settings.folder, reading)
        return list(cases)

    if made.source == "scripts":
        answer = await _from_script(made.reference, about, settings)
        try:
            return checked(answer)
        except ValueError as wrong:
            raise BadInput.of(f"{made.name}: what it returned cannot be used: {wrong}") from wrong

    def parse(reply: Reply) -> list[Any]:
        try:
            return checked(structured_answer(reply))
        except BadInput as wrong:
            raise ValueError(str(wrong)) from wrong

    try:
        asked = helper_pool.open("generator", made.reference, None, {"metadata": about})
        async with helper_time_limit("generator", timeout_s), asked as generator:
            return await generator.ask(_ASK, parse)
    except HelperFailed as broken:
        raise HelperFailed("generator", f"generator {made.reference}: {broken.message}") from broken


def parse_cases(answer: Any) -> Sequence[Any]:
    """`{cases|test_cases: [...]}`, a bare array, or one case."""
    if isinstance(answer, list):
        return cast("list[Any]", answer)
    if isinstance(answer, Mapping):
        given = cast("Mapping[str, Any]", answer)
        for key in ("cases", "test_cases"):
            if key in given:
                if not isinstance(given[key], list):
                    raise ValueError(f"its `{key}` is no list")
                return given[key]
        return [given]
    raise ValueError("it holds no JSON" if answer is UNSET else "it is no list of cases")


async def _from_script(reference: str, about: Mapping[str, Any], settings: Settings) -> Any:
    """Calls `generate`, or the named function, with the query and the target by parameter name."""
    try:
        module, function = find_script(reference, (str(settings.folder), str(Path.cwd())))
    except ValueError as wrong:
        raise BadInput.of(f"scripts:{reference}: {wrong}") from wrong
    if function is None:
        function = getattr(module, "generate", None)
    if not callable(function):
        raise BadInput.of(f"scripts:{reference}: {module.__name__} has neither test_* functions nor `generate`")
    call = cast("Callable[..., Any]", function)
    parameters = inspect.signature(call).parameters
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters.values())
    given = {key: value for key, value in about.items() if open_ended or key in parameters}
    missing = [
        n
        for n, p in parameters.items()
        if p.default is p.empty and n not in given and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    if missing:
        names = "&".join(f"{each}=..." for each in missing)
        raise BadInput.of(f"scripts:{reference} needs {', '.join(missing)}; give it as scripts:{reference}?{names}")
    try:
        made = await run_in_thread(lambda: call(**given))
        return await made if inspect.isawaitable(made) else made
    except Exception as raised:  # the script is other people's code: name it, whatever it raised
        raise BadInput.of(f"scripts:{reference} raised {error_text(raised)}") from raised
