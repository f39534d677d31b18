"""What `-i` names: files, folders, globs, standard input, generators, or a message to send as it is."""

import glob
import os
import re
import sys
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, cast
from urllib.parse import parse_qsl

from msgspec import Struct

from viva.errors import BadInput, Problem
from viva.formats.documents import Document, open_documents, read_document_stream
from viva.formats.load_options import LoadOptions
from viva.formats.viva_files import detect_viva_file
from viva.model.case import Suite
from viva.text.credentials import mask_text

Format = Literal["native", "playbook", "openwop"]
STDIN = "-"
SUFFIXES = (".jsonl", ".json", ".yaml", ".yml")
_TARBALLS, _MANIFEST = (".tgz", ".tar.gz"), "pack.json"
_KNOWN = (*SUFFIXES, *_TARBALLS, ".toml", ".md", ".py", ".txt")
_LOADERS: dict[Format, str] = {
    "native": "viva.formats.native",
    "openwop": "viva.formats.openwop.suite",
    "playbook": "viva.formats.playbook",
}
"""Who reads a format: a module with `load(documents, name, folder, reading) -> Suite`, imported when it is needed."""
_OPENWOP = frozenset({"suiteId", "tasks"})
_PLAYBOOK = frozenset({"steps", "persona", "tmpdir", "agent_model", "evaluator_model"})


class SuiteFiles(Struct, frozen=True):
    """Suite files that exist. A pack of several files, in a folder or a tarball, is one of them."""

    paths: tuple[Path, ...]
    skipped: tuple[Path, ...] = ()
    """Files of the same folder or glob that Viva wrote itself."""

    @property
    def note(self) -> str | None:
        """What was left out, in one line."""
        if not self.skipped:
            return None
        names = ", ".join(str(path) for path in self.skipped[:3])
        more = f" and {len(self.skipped) - 3} more" if len(self.skipped) > 3 else ""
        return f"left out of the input, because Viva wrote them: {names}{more}"


class StandardInput(Struct, frozen=True):
    """Cases on standard input."""


class PlainMessage(Struct, frozen=True):
    """A message to send as it is: no case, no verdict."""

    text: str


class GeneratedCases(Struct, frozen=True):
    """Cases that somebody makes: an agent or a script, with the values behind `?`."""

    source: Literal["agents", "scripts"]
    reference: str
    query: dict[str, Any]

    @property
    def name(self) -> str:
        """How the suite is called that comes of it."""
        query = "&".join(f"{key}={value}" for key, value in self.query.items())
        return mask_text(f"{self.source}:{self.reference}" + (f"?{query}" if query else ""))


Input = SuiteFiles | StandardInput | PlainMessage | GeneratedCases


def parse_input(text: str, folder: Path) -> Input:
    """What one `-i` means. A mistyped path is never taken for a message."""
    for prefix in ("agents", "scripts"):
        if text.startswith(f"{prefix}:"):
            reference, _, query = text.removeprefix(f"{prefix}:").partition("?")
            return GeneratedCases(
                prefix, reference, {key: _typed(value) for key, value in parse_qsl(query, keep_blank_values=True)}
            )
    if text == STDIN:
        return StandardInput()
    if not text.strip():
        raise BadInput.of("an input is empty: give a file, a folder, or a message")
    path = folder / text
    if not _exists(path) and (meant := _meant_reference(text)):
        raise BadInput.of(f"{text!r} is neither a file nor a reference; did you mean {meant}?")
    if path.name == _MANIFEST and _exists(path):
        return SuiteFiles((path.parent,))
    if _exists(path):
        return _without_own([path], text) if path.is_dir() else _named(path, text)
    if glob.has_magic(text) and (found := _globbed(text, folder)):
        return _without_own(found, text)
    if tarball := next((each for each in path.parents if each.name.endswith(_TARBALLS) and each.is_file()), None):
        return SuiteFiles((tarball,))  # as reports name what stands in one
    looks_like_a_path = not any(c.isspace() for c in text) and ("/" in text or "\\" in text or text.endswith(_KNOWN))
    if looks_like_a_path:
        raise BadInput.of(_not_there(text, folder))
    return PlainMessage(text)


_REFERENCE = re.compile(r"(agents?|scripts?)([:.])([\w.:?&=%+-]+)", re.IGNORECASE)


def _meant_reference(text: str) -> str | None:
    """`agents:x` or `scripts:x`, where a text is almost that: no such thing is sent to a model as a message."""
    found = _REFERENCE.fullmatch(text)
    if found is None or text.endswith(_KNOWN):
        return None
    prefix = found[1].lower().removesuffix("s") + "s"
    return f"{prefix}:{found[3]}"


def _exists(path: Path) -> bool:
    try:
        path.stat()
    except PermissionError as wrong:
        raise BadInput.of(f"cannot be read: {wrong.strerror}", str(path)) from wrong
    except (OSError, ValueError):  # a long message is no path
        if _is_link(path):
            raise BadInput.of("is a link that leads to nothing, or to itself", str(path)) from None
        return False
    return True


def _is_link(path: Path) -> bool:
    try:
        return path.is_symlink()
    except (OSError, ValueError):
        return False


def _globbed(text: str, folder: Path) -> list[Path]:
    return sorted(Path(match) for match in glob.glob(str(folder / text), recursive=True))  # noqa: PTH207 -- patterns may be absolute


def _named(path: Path, text: str) -> SuiteFiles:
    """A file that is named itself. One that Viva wrote is no suite, and that is surely a mistake."""
    if (kind := detect_viva_file(path)) is not None:
        raise BadInput.of(f"is {kind} that Viva wrote, not a suite; name the file with the cases", text)
    return SuiteFiles((path,))


def _without_own(matches: Sequence[Path], text: str) -> SuiteFiles:
    """The suite files of folders and of a glob, less those that Viva wrote."""
    found = [file for match in matches for file in (_files_in(match) if match.is_dir() else [match])]
    own = [file for file in found if not file.is_dir() and detect_viva_file(file) is not None]
    if len(own) == len(found):
        raise BadInput.of("holds no suites, only files that Viva wrote itself", text)
    return SuiteFiles(tuple(file for file in found if file not in own), tuple(own))


def _files_in(folder: Path) -> Iterator[Path]:
    """The suite files below a folder, in order; hidden folders and schemas are left out, and packs stay whole."""
    problems: list[Problem] = []
    found: list[Path] = []
    packs: list[Path] = []

    def unreadable(wrong: OSError) -> None:
        problems.append(Problem(str(wrong.filename), 0, "", f"cannot be read: {wrong.strerror}"))

    for place, folders, files in os.walk(folder, onerror=unreadable):  # links to folders are not followed
        here = Path(place)
        if _MANIFEST in files:
            packs.append(here)
            folders.clear()
            continue
        folders[:] = [name for name in folders if not name.startswith((".", "__")) and name != "node_modules"]
        suites = [name for name in files if name.endswith(SUFFIXES) and not name.endswith(".schema.json")]
        found += [here / name for name in suites if not name.startswith((".", "__")) and (here / name).is_file()]
    if problems:
        raise BadInput(*problems)
    kept = sorted([*packs, *found])
    if not kept:
        raise BadInput.of(f"holds no suite files ({', '.join(SUFFIXES)})", str(folder))
    yield from kept


def _not_there(text: str, folder: Path) -> str:
    wanted = folder / text
    near: list[str] = []
    if wanted.parent.is_dir():
        names = [p.name for p in wanted.parent.iterdir()]
        near = [str(Path(text).parent / name) for name in get_close_matches(wanted.name, names, 3, 0.5)]
    return f"there is no file {text!r}" + (f"; did you mean {' or '.join(near)}?" if near else "")


def _typed(value: str) -> Any:
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
    """A suite for each file and for standard input, or for a folder of playbooks. All problems are reported in one go."""
    suites: list[Suite] = []
    playbooks: list[Suite] = []
    problems: list[Problem] = []
    for path in paths:
        piped = isinstance(path, StandardInput)
        shown = STDIN if piped else _shown(path, folder)
        try:
            if not piped and (packed := _packed(path, folder, options, alone=format_ is not None)):
                suites += packed
                continue
            documents = read_document_stream(sys.stdin.buffer, STDIN) if piped else open_documents(path, shown)
            kind = format_ or detect_format(documents.peek())
            if kind == "openwop":
                import_module("viva.formats.openwop.packs").require_signature(
                    None if piped else path, shown, options.eval_options
                )
            load = import_module(_LOADERS[kind]).load
            suite = load(documents, shown, folder if piped else path.parent, options)
            (playbooks if kind == "playbook" else suites).append(suite)
        except BadInput as wrong:
            problems += wrong.problems
    try:
        suites += _joined(playbooks)
    except BadInput as wrong:
        problems += wrong.problems
    if not problems:
        problems += _twins(suites)
    if problems:
        raise BadInput(*dict.fromkeys(problems))
    return suites


def _packed(path: Path, folder: Path, reading: LoadOptions, *, alone: bool) -> list[Suite]:
    """The suites of a pack. Of a file in one that is not read `alone`: the suite as the pack has it, if it is one of its."""
    root, only = path, None
    if not path.is_dir() and not path.name.endswith(_TARBALLS):
        around = () if alone and not reading.eval_options.trusted_keys else path.resolve().parents
        root = next((each for each in around if (each / _MANIFEST).is_file()), None)
        only = root and path.resolve().relative_to(root).as_posix()
    if root is None:
        return []
    return import_module("viva.formats.openwop.packs").load_pack(root, _shown(root, folder), reading, only)


def _twins(suites: Sequence[Suite]) -> Iterator[Problem]:
    """Suites that name themselves may be the same: their results could not be told apart."""
    seen: dict[str, Suite] = {}
    for suite in suites:
        if (other := seen.setdefault(suite.id, suite)) is not suite and suite.origin is not None:
            what = f"the suite {suite.id!r} is also in {other.origin}; give one of them"
            yield Problem(suite.origin.file, suite.origin.line, "", what)


def _joined(playbooks: list[Suite]) -> list[Suite]:
    """Playbooks of one folder are one suite; in all other formats a file is one."""
    folders: dict[str, list[Suite]] = {}
    for suite in playbooks:
        folders.setdefault(suite.id, []).append(suite)
    return [import_module(_LOADERS["playbook"]).join_suites(parts) for parts in folders.values()]


def _shown(path: Path, folder: Path) -> str:
    """As short as it can be said: relative to the working folder where it lies in it."""
    resolved = path.resolve()
    return str(resolved.relative_to(folder.resolve())) if resolved.is_relative_to(folder.resolve()) else str(path)


def detect_format(first: Document | None) -> Format:
    """The format by the keys of the first document. One that cannot be read is left to the native loader's complaints."""
    value = first.value if first else None
    keys = set(cast("dict[str, Any]", value)) if isinstance(value, dict) else set[str]()
    if keys & _OPENWOP:
        return "openwop"
    if "id" in keys:
        return "native"
    mistyped = any(get_close_matches(key, _PLAYBOOK, 1, 0.8) for key in keys)
    return "playbook" if mistyped else "native"
