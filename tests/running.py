"""`viva.run` for tests: options that are not keywords of it go into `RunOptions`."""

from dataclasses import fields
from typing import Any

import viva
from viva.api.run_options import RunOptions

_OTHER = {field.name for field in fields(RunOptions)}


def run_cases(inputs: Any, agent: Any = None, **keywords: Any) -> viva.RunResult:
    others = {name: keywords.pop(name) for name in list(keywords) if name in _OTHER}
    return viva.run(inputs, agent, **keywords, options=RunOptions(**others) if others else None)
