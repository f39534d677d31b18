"""The reference pages under docs/reference, made from the code itself.

Run as a program it says what is stale; with `--write` it writes the pages: `make reference`. What has no words of its own
anywhere in the code is in `Pages.unexplained`, and a test fails on it.
"""

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, is_typeddict

import click
import msgspec

import viva
import viva.testing
from reference_schemas import check_pages, config_page, file_page, replies_table
from viva import errors
from viva.cli.main import COMMANDS
from viva.engine.summary import exit_code
from viva.host import conformance, discovery
from viva.host import server as host_server
from viva.model import case, codec, event, finding, message, record, turn
from viva.testing.__main__ import main as stand_in
from viva.text import tool_names
from viva.viewer.app import ViewerRoutes

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "docs" / "reference"
MADE = "<!-- Made from the code by tests/reference.py: `make reference` regenerates it. -->\n\n"
EVENTS = [each for each in vars(event).values() if isinstance(each, type) and issubclass(each, event.Event)][1:]
RECORDS = [
    record.TrialRecord, record.TurnRecord, record.ToolCallRecord, record.CheckpointRecord, message.Usage, message.ModelCall,
    turn.FileChange, finding.Finding, case.Key,
]  # fmt: skip
WORDS = {
    "Status": record.Status, "Fault": errors.Fault, "By": case.InputSource, "AwaitingReason": turn.AwaitingReason,
    "FindingKind": finding.FindingKind, "Severity": finding.Severity, "Stopped": event.StopReason,
}  # fmt: skip
SUMMARIES = [event.RunSummary, event.SuiteSummary, case.Threshold]
SERVERS = {"GeminiServer", "OpenAIServer", "AnthropicServer", "HttpServer"}


class Pages:
    """All pages by name, and everything without an explanation."""

    def __init__(self) -> None:
        self.unexplained: list[str] = []
        self.texts = {name: MADE + "\n".join(made).rstrip() + "\n" for name, made in self._made()}

    def _made(self) -> Iterator[tuple[str, list[str]]]:
        yield "commands.md", list(self._commands())
        yield "checks.md", list(check_pages(self._complain))
        yield "config.md", list(config_page(self._complain))
        yield "native.md", list(file_page("native", self._complain))
        yield "playbook.md", [*file_page("playbook", self._complain), *_tool_names()]
        yield (
            "openwop.md",
            list(file_page("openwop", self._complain)) + list(file_page("pack", self._complain, level=2)),
        )
        yield "events.md", list(self._events())
        yield "records.md", list(self._records())
        yield "errors.md", list(self._errors())
        yield "routes.md", list(self._routes())
        yield "python.md", list(self._python())
        yield "testing.md", list(self._testing())

    def _complain(self, what: str) -> None:
        self.unexplained.append(what)

    def _said(self, what: str, words: str | None) -> str:
        if not words or not words.strip():
            self._complain(what)
            return ""
        return words.strip()

    # Commands

    def _commands(self) -> Iterator[str]:
        yield "# Commands\n"
        yield "Every command has `-h`, `--help`. Durations are `30s`, `2m30s`, `500ms`; a bare number is seconds.\n"
        for name in COMMANDS:
            yield from self._command(f"viva {name}", import_module(f"viva.cli.{name}").command, 2)
        yield "## Exit codes\n"
        yield self._said("exit codes", inspect.getdoc(exit_code)).split("\n")[0] + "\n"
        yield "3 is a bug in Viva, with its traceback; 4 is bad input, found before anything runs.\n"

    def _command(self, name: str, command: click.Command, level: int) -> Iterator[str]:
        arguments = [each for each in command.params if isinstance(each, click.Argument)]
        usage = " ".join([name, *(_argument(each) for each in arguments)])
        yield f"{'#' * level} {name}\n"
        yield self._said(name, command.help) + "\n"
        if not isinstance(command, click.Group) or arguments:
            yield f"    {usage} [OPTIONS]\n"
        options = [each for each in command.params if isinstance(each, click.Option)]
        if options:
            yield "| flag | meaning |\n| --- | --- |"
            for option in options:
                yield _row(_flags(option), self._said(f"{name} {option.opts[0]}", option.help) + _default(option))
            yield ""
        if command.epilog:
            yield "```text\n" + textwrap.dedent(command.epilog.replace("\b\n", "")).strip() + "\n```\n"
        if isinstance(command, click.Group):
            for sub in command.commands.values():
                yield from self._command(f"{name} {sub.name}", sub, level + 1)

    # Structs

    def _struct(self, struct: type[Any], level: int = 2, title: str | None = None) -> Iterator[str]:
        written = {name: (kind, words) for name, kind, words in _fields(struct)}
        yield f"{'#' * level} {title or struct.__name__}\n"
        yield _prose(self._said(struct.__name__, _own_doc(struct))) + "\n"
        yield "| field | type | meaning |\n| --- | --- | --- |"
        for field in msgspec.structs.fields(struct):
            kind, words = written[field.name]
            yield _row(
                f"`{field.encode_name}`",
                f"`{kind}`",
                self._said(f"{struct.__name__}.{field.name}", words) + _left_out(field),
            )
        yield ""

    def _events(self) -> Iterator[str]:
        yield "# Events\n"
        yield (
            "What happens in a run is data. `viva test --json` prints one event a line, the journal (`.viva/runs/ID/journal.jsonl`) "
            "keeps them, `viva view` streams them. `event` is the name; fields that are as if left out are not written. `key` "
            "names a trial ([its fields](records.md#key)).\n"
        )
        for each in EVENTS:
            yield from self._struct(each, title=f"`{each.__struct_config__.tag}`")
        yield "# What they hold\n"
        for each in SUMMARIES:
            yield from self._struct(each)

    def _records(self) -> Iterator[str]:
        yield "# Records\n"
        yield (
            "A line of the `.jsonl` report is one trial, as a `TrialRecord`; the journal's `trial_ended` holds the same. Fields that "
            "are as if left out are not written.\n"
        )
        for each in RECORDS:
            yield from self._struct(each)
        yield "## Words\n\n| type | one of |\n| --- | --- |"
        for name, kind in WORDS.items():
            yield _row(f"`{name}`", ", ".join(f"`{word}`" for word in get_args(kind)))

    # Errors

    def _errors(self) -> Iterator[str]:
        yield "# Errors\n"
        tree, _, rest = self._said("errors", errors.__doc__).partition("\n\nErrors carry")
        first, _, drawn = tree.partition("\n\n")
        yield f"{first}\n\n```text\n{textwrap.dedent(drawn)}\n```\n\nErrors carry{rest}\n"
        yield "Import them from `viva.errors`.\n"
        yield "| error | when |\n| --- | --- |"
        for name, each in vars(errors).items():
            if isinstance(each, type) and issubclass(each, errors.VivaError):
                yield _row(f"`{name}`", _prose(self._said(name, _own_doc(each))))
        yield ""
        yield "## Exit codes\n\n| code | meaning |\n| --- | --- |"
        for code, meaning in _exit_codes():
            yield _row(code, meaning)
        yield "\n## Whose fault\n\nSee [verdicts and faults](../explanation/verdicts.md).\n"

    # Routes

    def _routes(self) -> Iterator[str]:
        yield "# Routes\n\n## viva view\n"
        told = _read_viewer_routes()
        yield "On 127.0.0.1 only, for the browser that opened the one-time link. `POST` needs `--allow-run`.\n"
        yield "| route | answer |\n| --- | --- |"
        for route in ViewerRoutes(None, None, None, lambda: False).routes():  # type: ignore[arg-type]
            for method in sorted(route.methods - {"HEAD"}):  # type: ignore[attr-defined]
                path = re.sub(r":int\}", "}", route.path)  # type: ignore[attr-defined]
                yield _row(
                    f"`{method} {path}`",
                    _code_free(self._said(f"viva view {method} {path}", told.pop((method, path), None))),
                )
        for method, path in told:
            self._complain(f"viva view has no {method} {path}, but tells of it")
        yield "\n## viva serve\n"
        yield (
            "An OpenWOP host. Every request but for the public ones needs `Authorization: Bearer TOKEN`. "
            "`GET /v1/openapi.json` has the bodies.\n"
        )
        yield "| route | meaning | answers |\n| --- | --- | --- |"
        yield from self._host_routes()
        yield "\nThese are in the protocol, but not built: they answer 501 with the capability that is missing.\n"
        yield "| capability | routes |\n| --- | --- |"
        for capability, paths in host_server.UNSUPPORTED_PATHS.items():
            yield _row(capability, ", ".join(f"`{path.replace(':path}', '}')}`" for path in paths))
        yield "\n## viva serve --conformance\n"
        yield _prose(self._said("conformance", conformance.__doc__)) + "\n"
        yield "| route | meaning |\n| --- | --- |"
        for route in conformance.build_test_routes():
            method = next(iter(sorted((route.methods or set()) - {"HEAD"})))
            words = self._said(f"seam {route.path}", inspect.getdoc(route.endpoint))
            yield _row(f"`{method} {route.path}`", _prose(words))

    def _host_routes(self) -> Iterator[str]:
        for each in discovery.ENDPOINTS:
            words = self._said(f"{each.method} {each.path}", each.summary) + (" Public." if each.is_public else "")
            answers = ", ".join(map(str, sorted((each.status, *each.errors))))
            yield _row(f"`{each.method} {each.path}`", words, answers)

    # Python

    def _python(self) -> Iterator[str]:
        yield "# Python\n"
        yield _prose(self._said("viva", viva.__doc__)) + "\n"
        things = {name: getattr(viva, name) for name in viva.__all__ if name != "__version__"}
        modules = {name: thing for name, thing in things.items() if inspect.ismodule(thing)}
        for name in sorted(things.keys() - modules.keys(), key=lambda name: (_shelf(things[name]), name)):
            yield from self._api(f"viva.{name}", things[name])
        yield "The errors are in `viva.errors`: see [errors](errors.md).\n"
        for name, module in ((name, modules[name]) for name in ("check", "types", "plugins")):
            yield f"# viva.{name}\n"
            yield _prose(self._said(f"viva.{name}", module.__doc__)) + "\n"
            for member in _public_names(module):
                thing = getattr(module, member)
                if (inspect.isclass(thing) and not is_typeddict(thing)) or inspect.isroutine(
                    thing
                ):  # not an alias of a type
                    yield from self._api(f"viva.{name}.{member}", thing)

    def _testing(self) -> Iterator[str]:
        yield "# viva.testing\n"
        yield _prose(self._said("viva.testing", viva.testing.__doc__)) + "\n"
        yield from self._command("python -m viva.testing", stand_in, 2)
        yield "## Replies in a file\n"
        yield from replies_table(self._complain)
        for name in viva.testing.__all__:
            yield from self._api(f"viva.testing.{name}", getattr(viva.testing, name))

    def _api(self, name: str, thing: Any) -> Iterator[str]:
        yield f"## {name}\n"
        yield f"```python\n{_signature(name.rpartition('.')[2], thing)}\n```\n"
        yield _prose(self._said(name, _own_doc(thing))) + "\n"
        if not isinstance(thing, type):
            return
        if is_dataclass(thing) or (issubclass(thing, msgspec.Struct) and thing.__module__.startswith("viva.")):
            rows = [_row(f"`{name}`", f"`{kind}`", words) for name, kind, words in _fields(thing) if words]
            if rows:
                yield "| field | type | meaning |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
        for member, found in _members(thing):
            words = self._said(f"{name}.{member}", inspect.getdoc(found))
            yield f"- `{' '.join(_signature(member, found).split())}`: {' '.join(words.split())}"
        yield ""


def _tool_names() -> Iterator[str]:
    """The table of the names that other CLIs have for the same tool, for `tool_calls_contain`."""
    yield "## Tool names"
    yield ""
    yield "`tool_calls_contain` means a tool by any of its names. Names that stand after a namespace count only as they are written."
    yield ""
    yield "| Gemini CLI | elsewhere |"
    yield "| --- | --- |"
    for name, *others in tool_names.CLI_TOOL_NAMES:
        yield f"| `{name}` | {', '.join(f'`{other}`' for other in others)} |"
    yield ""


def _public_names(module: Any) -> list[str]:
    """`__all__` or, without it, the public functions and classes that the module defines, but no types of keywords."""
    own = [
        name
        for name, thing in vars(module).items()
        if getattr(thing, "__module__", "") == module.__name__ and not is_typeddict(thing)
    ]
    return list(getattr(module, "__all__", [name for name in own if not name.startswith("_")]))


def _shelf(thing: Any) -> int:
    """The sort key of a public name: running, conversations and assertions first, then data, interfaces and errors."""
    order = (
        "viva.api.run",
        "viva.session.run_result",
        "viva.api.conversation",
        "viva.api.sync_conversation",
        "viva.session",
        "viva.stats",
        "viva.model",
    )
    return next((at for at, room in enumerate(order) if thing.__module__.startswith(room)), len(order)) + (
        2 * (thing.__module__ == "viva.errors")
    )


def _members(thing: type[Any]) -> Iterator[tuple[str, Any]]:
    for name, found in vars(thing).items():
        if name.startswith("_") or name in getattr(thing, "__struct_fields__", ()):
            continue
        if isinstance(found, classmethod | staticmethod):
            yield name, found.__func__
        elif inspect.isfunction(found) or isinstance(found, property | cached_property):
            yield name, found


def _signature(name: str, thing: Any) -> str:
    """The signature as a call; a long one has one argument per line."""
    if isinstance(thing, property | cached_property):
        return name
    if isinstance(thing, type) and issubclass(thing, msgspec.Struct):
        given = _struct_parameters(thing)
    elif isinstance(thing, type) and issubclass(thing, Exception) and "__init__" not in thing.__dict__:
        given = ["message"] if issubclass(thing, errors.TrialFault) else ["*args"]
    else:
        signature = inspect.signature(thing)
        shown = [_parameter(each) for each in signature.parameters.values() if each.name not in ("self", "cls")]
        given = _with_star(signature, shown)
    whole = f"{name}({', '.join(given)})"
    return whole if len(whole) <= 110 else f"{name}(\n    " + ",\n    ".join(given) + ",\n)"


def _struct_parameters(struct: type[msgspec.Struct]) -> list[str]:
    """Fields with their defaults. (`inspect` would evaluate annotations, and some name what only type checkers import.)"""
    defaults = struct.__struct_defaults__
    plain = len(struct.__struct_fields__) - len(defaults)
    shown: list[str] = []
    for at, name in enumerate(struct.__struct_fields__):
        if name.startswith("_"):
            continue
        default = msgspec.NODEFAULT if at < plain else defaults[at - plain]
        if default is msgspec.NODEFAULT:
            shown.append(name)
        else:
            simple = default is None or isinstance(default, str | int | float | bool | tuple)
            shown.append(f"{name}={default!r}" if simple else f"{name}=...")
    by_place = sum(not name.startswith("_") for name in struct.__match_args__)
    return shown if by_place == len(shown) else [*shown[:by_place], "*", *shown[by_place:]]


def _with_star(signature: inspect.Signature, given: list[str]) -> list[str]:
    named = [each for each in signature.parameters.values() if each.name not in ("self", "cls")]
    if any(each.kind == each.VAR_POSITIONAL for each in named):
        return given
    first = next((at for at, each in enumerate(named) if each.kind == each.KEYWORD_ONLY), None)
    return given if first is None else [*given[:first], "*", *given[first:]]


def _parameter(each: inspect.Parameter) -> str:
    star = {each.VAR_POSITIONAL: "*", each.VAR_KEYWORD: "**"}.get(each.kind, "")
    plain = each.default is None or isinstance(each.default, str | int | float | bool | tuple | dict)
    default = "" if each.default is each.empty else f"={each.default!r}" if plain else "=..."
    return f"{star}{each.name}{default}"


def _own_doc(thing: Any) -> str | None:
    """The docstring of an object, if it has one of its own and not one that Python or msgspec generates."""
    if isinstance(thing, type):
        return inspect.cleandoc(thing.__dict__["__doc__"]) if thing.__dict__.get("__doc__") else None
    return inspect.getdoc(thing)


def _fields(struct: type[Any]) -> Iterator[tuple[str, str, str]]:
    """Name, type and docstring of each field, from the source: Python does not keep the string below a field."""
    for each in reversed(struct.__mro__):
        if each.__module__.startswith("viva."):
            (written,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
            assert isinstance(written, ast.ClassDef)
            for at, field in enumerate(written.body):
                if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
                    kind = ast.unparse(field.annotation).strip("'").replace(" | UnsetType", "").replace("|", "\\|")
                    yield field.target.id, kind, _string(written.body[at + 1 : at + 2])


def _string(after: list[ast.stmt]) -> str:
    match after:
        case [ast.Expr(ast.Constant(str() as words))]:
            return words
        case _:
            return ""


def _left_out(field: Any) -> str:
    """What a missing field means, unless that is obvious."""
    default = field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
    plain = default in (msgspec.NODEFAULT, msgspec.UNSET, None, (), "", [], {})
    return "" if plain else f" Left out: `{codec.compact_json(default)}`."


def _row(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()) for cell in cells) + " |"


def _prose(words: str) -> str:
    """A docstring as Markdown. Indented lines are code blocks already."""
    return words.replace("<", "&lt;") if "<" in words and "`" not in words else words


def _code_free(words: str) -> str:
    return f"`{words}`" if words.startswith(("{", "[")) and "`" not in words else words


def _argument(each: click.Argument) -> str:
    return each.make_metavar(click.Context(click.Command("x")))


def _flags(option: click.Option) -> str:
    names = ", ".join(f"`{each}`" for each in (*option.opts, *option.secondary_opts))
    if option.is_flag:
        return names
    metavar = option.make_metavar(click.Context(click.Command("x")))
    return f"{names} `{metavar}`".replace("|", "\\|")


def _default(option: click.Option) -> str:
    default = ", ".join(map(str, option.default)) if isinstance(option.default, tuple | list) else option.default
    return f" Default: {default}." if option.show_default else ""


def _exit_codes() -> list[tuple[str, str]]:
    epilog = re.search(r"Exit codes: (.*?)\.\s*$", import_module("viva.cli.test").command.epilog, re.MULTILINE)
    assert epilog is not None
    return [(part.partition(" ")[0], part.partition(" ")[2]) for part in epilog[1].split(", ")]


def _read_viewer_routes() -> dict[tuple[str, str], str]:
    """The routes of the viewer with their descriptions, from the table in its module docstring."""
    doc = import_module("viva.viewer.app").__doc__ or ""
    told: dict[tuple[str, str], str] = {}
    last: tuple[str, str] | None = None
    for line in doc.splitlines():
        if found := re.match(r"    (GET|POST)\s+(\S+)\s+(.*)", line):
            path = found[2].partition("?")[0]
            last = (found[1], path if path.startswith("/") else f"/{path}")
            told[last] = found[3].removeprefix("-> ")
        elif last and line.startswith(" " * 20):
            told[last] += " " + line.strip()
    return told


def stale(pages: Mapping[str, str], folder: Path = FOLDER) -> list[str]:
    """The stale pages: those that differ from the generated ones, and those that are not generated."""
    kept = {path.name: path.read_text(encoding="utf-8") for path in folder.glob("*.md")}
    return sorted(name for name in {*pages, *kept} if pages.get(name) != kept.get(name))


if __name__ == "__main__":
    made = Pages()
    if "--write" in sys.argv:
        FOLDER.mkdir(parents=True, exist_ok=True)
        for name in stale(made.texts):
            print("wrote" if name in made.texts else "removed", name)
            if name in made.texts:
                (FOLDER / name).write_text(made.texts[name], encoding="utf-8")
            else:
                (FOLDER / name).unlink()
    for what in made.unexplained:
        print("unexplained:", what)
    sys.exit(bool(stale(made.texts)) or bool(made.unexplained))
