"""Resolves inputs of `-i`: files, folders, globs, standard input, generators, or a message to send as it is."""

import glob
import os
import re
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Literal, cast
from urllib.parse import parse_qsl

from msgspec import Struct

from viva.errors import BadInput, Problem
from viva.formats.documents import Document, open_documents, open_json_stream
from viva.formats.load_options import LoadOptions
from viva.formats.viva_files import detect_viva_file
from viva.model.case import Suite
from viva.text.credentials import mask_url_credentials
from viva.text.similar_names import find_similar_names

Format = Literal["native", "playbook", "openwop"]
STDIN = "-"
SUITE_SUFFIXES = (".jsonl", ".json", ".yaml", ".yml")
_TARBALL_SUFFIXES, _MANIFEST = (".tgz", ".tar.gz"), "pack.json"
_KNOWN_SUFFIXES = (*SUITE_SUFFIXES, *_TARBALL_SUFFIXES, ".toml", ".md", ".py", ".txt")
_LOADERS: dict[Format, str] = {
    "native": "viva.formats.native",
    "openwop": "viva.formats.openwop.suite",
    "playbook": "viva.formats.playbook",
}
"""The loader of each format: a module with `load(documents, name, folder, options) -> Suite`, imported on first use."""
_OPENWOP_KEYS = frozenset({"suiteId", "tasks"})
_KEYS_OF_OTHER_TOOLS = {
    "promptfoo": ({"tests"}, {"prompts", "providers", "defaultTest"}),
    "the Agent Development Kit": ({"eval_cases"}, {"eval_cases"}),
}
"""For each tool: keys that its files have, and others of which they have at least one."""
_PLAYBOOK_KEYS = frozenset({"steps", "persona", "tmpdir", "agent_model", "evaluator_model"})


class SuiteFiles(Struct, frozen=True):
    """Existing suite files. A pack (a folder or tarball) counts as one file."""

    paths: tuple[Path, ...]
    skipped: tuple[Path, ...] = ()
    """Files of the same folder or glob that are output of Viva."""

    @property
    def note(self) -> str | None:
        """One line about the skipped files."""
        if not self.skipped:
            return None
        names = ", ".join(str(path) for path in self.skipped[:3])
        more = f" and {len(self.skipped) - 3} more" if len(self.skipped) > 3 else ""
        return f"skipped, because Viva wrote them: {names}{more}"


class StandardInput(Struct, frozen=True):
    """Cases on standard input."""


class PlainMessage(Struct, frozen=True):
    """A message to send as it is, without a case or assertions."""

    text: str


class GeneratedCases(Struct, frozen=True):
    """Cases from a generator: an agent or a script, with the parameters after `?`."""

    source: Literal["agents", "scripts"]
    reference: str
    query: dict[str, Any]

    @property
    def name(self) -> str:
        """The name of the generated suite."""
        query = "&".join(f"{key}={value}" for key, value in self.query.items())
        return mask_url_credentials(f"{self.source}:{self.reference}" + (f"?{query}" if query else ""))


Input = SuiteFiles | StandardInput | PlainMessage | GeneratedCases


def parse_input(text: str, folder: Path) -> Input:
    """Resolve the value of one `-i`. Raises BadInput for a text that looks like a mistyped path or reference."""
    for prefix in ("agents", "scripts"):
        if text.startswith(f"{prefix}:"):
            reference, _, query = text.removeprefix(f"{prefix}:").partition("?")
            return GeneratedCases(
                prefix,
                reference,
                {key: _parse_query_value(value) for key, value in parse_qsl(query, keep_blank_values=True)},
            )
    if text == STDIN:
        return StandardInput()
    if not text.strip():
        raise BadInput.of("empty input: pass a file, a folder or a message")
    path = folder / text
    if not _path_exists(path) and _AGENT_REFERENCE.fullmatch(text):
        reference = text if ":/" in text or text.startswith("python:") else f"python:{text}"
        raise BadInput.of(
            f"{mask_url_credentials(text)!r} is an agent: pass it with -n {mask_url_credentials(reference)}, and a suite or message with -i"
        )
    if not _path_exists(path) and (suggestion := _suggest_reference(text)):
        raise BadInput.of(f"{text!r} is neither a file nor a reference; did you mean {suggestion}?")
    if path.name == _MANIFEST and _path_exists(path):
        return SuiteFiles((path.parent,))
    if _path_exists(path):
        return _select_suite_files([path], text) if path.is_dir() else _check_suite_file(path, text)
    if glob.has_magic(text) and (matches := _expand_glob(text, folder)):
        return _select_suite_files(matches, text)
    if tarball := next(
        (parent for parent in path.parents if parent.name.endswith(_TARBALL_SUFFIXES) and parent.is_file()), None
    ):
        return SuiteFiles((tarball,))  # reports name files inside a tarball by such a path
    looks_like_a_path = not any(c.isspace() for c in text) and (
        "/" in text or "\\" in text or text.endswith(_KNOWN_SUFFIXES)
    )
    if looks_like_a_path:
        raise BadInput.of(_describe_missing_file(text, folder))
    return PlainMessage(text)


_AGENT_REFERENCE = re.compile(r"python:\S+|https?://\S+|\S+\.py:\w+")
_MISTYPED_REFERENCE = re.compile(r"(agents?|scripts?)([:.])([\w.:?&=%+-]+)", re.IGNORECASE)


def _suggest_reference(text: str) -> str | None:
    """A correction for a mistyped reference, such as `agents:x` for `agent:x`; None if the text is not like a reference."""
    match = _MISTYPED_REFERENCE.fullmatch(text)
    if match is None or text.endswith(_KNOWN_SUFFIXES):
        return None
    prefix = match[1].lower().removesuffix("s") + "s"
    return f"{prefix}:{match[3]}"


def _path_exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError as error:
        raise BadInput.of(f"cannot be read: {error.strerror}", str(path)) from error
    except (OSError, ValueError):  # a long message is not a valid path
        if _is_symlink(path):
            raise BadInput.of("is a broken symbolic link", str(path)) from None
        return False
    return True


def _is_symlink(path: Path) -> bool:
    try:
        return path.is_symlink()
    except (OSError, ValueError):
        return False


def _expand_glob(text: str, folder: Path) -> list[Path]:
    return sorted(Path(match) for match in glob.glob(str(folder / text), recursive=True))  # noqa: PTH207 -- patterns may be absolute


def _check_suite_file(path: Path, text: str) -> SuiteFiles:
    """A single file. Output of Viva is refused: it is never a suite."""
    if (kind := detect_viva_file(path)) is not None:
        raise BadInput.of(f"is {kind} written by Viva, not a suite; pass the file with the cases", text)
    if path.suffix == ".py":
        raise BadInput.of(
            f"is Python code, not a suite. To test an agent in it, pass -n python:{text}:NAME and a suite or message with -i; "
            f"to run the tests in it, pass -i scripts:{path.stem}",
            text,
        )
    return SuiteFiles((path,))


def _select_suite_files(matches: Sequence[Path], text: str) -> SuiteFiles:
    """The suite files in folders and globs, without output of Viva."""
    files = [file for match in matches for file in (_find_suite_files(match) if match.is_dir() else [match])]
    skipped = [file for file in files if not file.is_dir() and detect_viva_file(file) is not None]
    if len(skipped) == len(files):
        raise BadInput.of("contains no suites, only files written by Viva", text)
    return SuiteFiles(tuple(file for file in files if file not in skipped), tuple(skipped))


def _find_suite_files(folder: Path) -> Iterator[Path]:
    """The suite files below a folder, sorted. Hidden folders and schemas are skipped; a pack is one item."""
    problems: list[Problem] = []
    files_found: list[Path] = []
    packs: list[Path] = []

    def report_unreadable(error: OSError) -> None:
        problems.append(Problem(str(error.filename), 0, "", f"cannot be read: {error.strerror}"))

    for place, folders, files in os.walk(folder, onerror=report_unreadable):  # links to folders are not followed
        here = Path(place)
        if _MANIFEST in files:
            packs.append(here)
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__")) and name != "node_modules"]
        suites = [name for name in files if name.endswith(SUITE_SUFFIXES) and not name.endswith(".schema.json")]
        files_found += [here / name for name in suites if not name.startswith((".", "__")) and (here / name).is_file()]
    if problems:
        raise BadInput(*problems)
    result = sorted([*packs, *files_found])
    if not result:
        raise BadInput.of(f"contains no suite files ({', '.join(SUITE_SUFFIXES)})", str(folder))
    yield from result


def _describe_missing_file(text: str, folder: Path) -> str:
    path = folder / text
    similar: list[str] = []
    if path.parent.is_dir():
        names = [p.name for p in path.parent.iterdir()]
        similar = [str(Path(text).parent / name) for name in find_similar_names(path.name, names)]
    return f"there is no file {text!r}" + (f"; did you mean {' or '.join(similar)}?" if similar else "")


def _parse_query_value(value: str) -> Any:
    """A query value as int, float, bool or string."""
    if value in ("true", "false"):
        return value == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value


def load_files(
    paths: Sequence[Path | StandardInput], options: LoadOptions, folder: Path, format_: Format | None = None
) -> list[Suite]:
    """Load one suite per file, per standard input, or per folder of playbooks. All problems are reported at once."""
    suites: list[Suite] = []
    playbooks: list[Suite] = []
    problems: list[Problem] = []
    for path in paths:
        piped = isinstance(path, StandardInput)
        shown = STDIN if piped else _shorten_path(path, folder)
        try:
            if not piped and (pack_suites := _load_pack(path, folder, options, has_format=format_ is not None)):
                suites += pack_suites
                continue
            documents = open_json_stream(_open_stdin(options), STDIN) if piped else open_documents(path, shown)
            first = documents.read_first()
            if tool := _detect_other_tool(first):
                raise BadInput.of(f"is a file of {tool}; `viva convert {shown} -o cases.yaml` makes cases of it", shown)
            kind = format_ or detect_format(first)
            if kind == "openwop":
                import_module("viva.formats.openwop.packs").require_signature(
                    None if piped else path, shown, options.eval_options
                )
            load = import_module(_LOADERS[kind]).load
            suite = load(documents, shown, folder if piped else path.parent, options)
            (playbooks if kind == "playbook" else suites).append(suite)
        except BadInput as error:
            problems += error.problems
    try:
        suites += _join_playbooks(playbooks)
    except BadInput as error:
        problems += error.problems
    if not problems:
        problems += _find_duplicate_suites(suites)
    if problems:
        raise BadInput(*dict.fromkeys(problems))
    return suites


def _open_stdin(options: LoadOptions) -> BinaryIO:
    return sys.stdin.buffer if options.standard_input is None else BytesIO(options.standard_input)


def _load_pack(path: Path, folder: Path, options: LoadOptions, *, has_format: bool) -> list[Suite]:
    """The suites of a pack or, for a file inside a pack, the suite of that file. Empty if the path is not in a pack."""
    root: Path | None = path
    only: str | None = None
    if not path.is_dir() and not path.name.endswith(_TARBALL_SUFFIXES):
        is_free = has_format and not options.eval_options.trusted_keys
        root, only = (None, None) if is_free else find_pack(path)
    if root is None:
        return []
    return import_module("viva.formats.openwop.packs").load_pack(root, _shorten_path(root, folder), options, only)


def find_pack(path: Path) -> tuple[Path | None, str | None]:
    """The pack that a file lies in and its name there; None, None if it is in no pack.

    The file counts as it is named and as it resolves: a link in a pack may lead to a file that the signature does not cover.
    """
    for place in (Path(os.path.abspath(path)), path.resolve()):  # noqa: PTH100 -- keeps links
        for parent in place.parents:
            if (parent / _MANIFEST).is_file():
                return parent, place.relative_to(parent).as_posix()
    return None, None


def _find_duplicate_suites(suites: Sequence[Suite]) -> Iterator[Problem]:
    """A problem for each suite whose id another suite has: their results could not be distinguished."""
    seen: dict[str, Suite] = {}
    for suite in suites:
        if (other := seen.setdefault(suite.id, suite)) is not suite and suite.origin is not None:
            message = f"suite {suite.id!r} is also in {other.origin}; pass only one of them"
            yield Problem(suite.origin.file, suite.origin.line, "", message)


def _join_playbooks(playbooks: list[Suite]) -> list[Suite]:
    """One suite per folder of playbooks. In other formats each file is a suite."""
    folders: dict[str, list[Suite]] = {}
    for suite in playbooks:
        folders.setdefault(suite.id, []).append(suite)
    return [import_module(_LOADERS["playbook"]).join_playbooks(parts) for parts in folders.values()]


def _shorten_path(path: Path, folder: Path) -> str:
    """The path relative to `folder` if it is inside it; else unchanged."""
    resolved = path.resolve()
    return str(resolved.relative_to(folder.resolve())) if resolved.is_relative_to(folder.resolve()) else str(path)


def _get_keys(document: Document | None) -> set[str]:
    value = document.value if document else None
    return set(cast("dict[str, Any]", value)) if isinstance(value, dict) else set[str]()


def _detect_other_tool(first: Document | None) -> str | None:
    """The other tool that a file is made for, if `viva convert` reads it."""
    keys = _get_keys(first)
    return next(
        (tool for tool, (all_of, any_of) in _KEYS_OF_OTHER_TOOLS.items() if all_of <= keys and any_of & keys), None
    )


def detect_format(first: Document | None) -> Format:
    """Detect the format by the keys of the first document. An unreadable document counts as native: its loader reports the problem."""
    keys = _get_keys(first)
    if keys & _OPENWOP_KEYS:
        return "openwop"
    if "id" in keys:
        return "native"
    mistyped = any(find_similar_names(key, _PLAYBOOK_KEYS, 1, 0.8) for key in keys)
    return "playbook" if mistyped else "native"
