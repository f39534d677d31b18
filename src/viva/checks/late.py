"""A check that holds `{{variables}}`: it is built anew when it is asked, with what is known by then."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from viva.errors import CheckBroken
from viva.model import codec
from viva.model.case import Claim
from viva.model.judging import judge
from viva.model.talk import Evidence, Judged, Verdict, shown
from viva.model.template import fill


class Late(Struct, frozen=True):
    """What was written, and how to build a claim of it."""

    written: Mapping[str, Any]
    build: Callable[[Mapping[str, Any]], Claim]
    costly: bool
    label: str
    looks_outside: bool = False

    def check(self, evidence: Evidence) -> Verdict | Awaitable[Verdict]:
        try:
            claim = self._claim(evidence.talk.variables)
        except (ValueError, codec.ValidationError) as wrong:
            raise CheckBroken(str(wrong), deterministic=True) from wrong
        found = judge(claim, evidence)
        return _verdict(found) if inspect.isawaitable(found) else found.verdict

    def _claim(self, variables: Mapping[str, Any]) -> Claim:
        try:
            return self.build(fill(self.written, variables))
        except codec.ValidationError:  # a number, say, where only a text can stand
            return self.build(fill(self.written, {name: shown(value) for name, value in variables.items()}))


async def _verdict(found: Awaitable[Judged]) -> Verdict:
    return (await found).verdict
