"""Whatever is done to files: the changes that are told are those that a comparison of all bytes finds, and a replay makes them."""

import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from viva.workspace import snapshot
from viva.workspace.snapshot import EMPTY_SNAPSHOT, ContentStore, take_snapshot

NAMES = st.sampled_from(["a", "b", "ü x", "d", "d/a", "d/e", "d/e/f", "\udcff", "back\\slash"])
CONTENTS = st.sampled_from([b"", b"x", b"y", b"x\ny\n", b"\0\1", b"\xff\xfe"])
"""Small ones: those above 256 kB are compared by size and time, so one that is written again counts as changed."""
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("write"), NAMES, CONTENTS),
        st.tuples(st.just("append"), NAMES, CONTENTS),
        st.tuples(st.just("remove"), NAMES),
        st.tuples(st.just("folder"), NAMES),
        st.tuples(st.just("link"), NAMES, NAMES),
        st.tuples(st.just("rename"), NAMES, NAMES),
        st.tuples(st.just("executable"), NAMES),
    ),
    max_size=12,
)
Held = dict[str, tuple[str, bytes | str | bool, bool]]


def do(root: str, step: tuple[str, ...]) -> None:
    """One step, unless it makes no sense just now."""
    what, path, *rest = step
    place = f"{root}/{path}"
    try:
        match what:
            case "write" | "append":
                os.makedirs(os.path.dirname(place), exist_ok=True)
                with open(place, "wb" if what == "write" else "ab") as file:
                    file.write(rest[0])  # pyright: ignore[reportArgumentType]
            case "remove":
                shutil.rmtree(place) if os.path.isdir(place) and not os.path.islink(place) else os.unlink(place)
            case "folder":
                os.makedirs(place)
            case "link":
                os.symlink(rest[0], place)
            case "rename":
                os.rename(place, f"{root}/{rest[0]}")
            case _:
                os.chmod(place, os.stat(place).st_mode ^ 0o100)
    except OSError:
        return


def held(root: str) -> Held:
    """Every file and link, by its bytes."""
    found: Held = {}
    for folder, folders, names in os.walk(root):
        for name in (*names, *folders):
            path = f"{folder}/{name}"
            short = os.path.relpath(path, root)
            if os.path.islink(path):
                found[short] = ("link", os.readlink(path), False)
            elif os.path.isfile(path):
                found[short] = ("file", Path(path).read_bytes(), bool(os.stat(path).st_mode & 0o100))
            else:
                found[f"{short}/"] = ("folder", "", False)
    return found


def kinds(before: Held, after: Held) -> dict[str, str]:
    """What a comparison of all bytes finds; folders are not told."""
    return {
        path: "added" if path not in before else "removed" if path not in after else "changed"
        for path in before.keys() | after.keys()
        if before.get(path) != after.get(path) and not path.endswith("/")
    }


@given(st.lists(STEPS, min_size=2, max_size=4))
def test_changes_are_those_of_a_comparison_of_all_bytes_and_a_replay_makes_them(turns: list[list[tuple[str, ...]]]):
    """P4; cassettes: turn by turn, in a second folder that only ever sees the images."""
    with tempfile.TemporaryDirectory() as top:
        root, copy = f"{top}/root", f"{top}/copy"
        os.mkdir(root)
        os.mkdir(copy)
        texts = ContentStore()
        mark, before = EMPTY_SNAPSHOT, held(root)
        for steps in turns:
            for step in steps:
                do(root, step)
            after, now = held(root), take_snapshot(root, texts, mark)
            told = {
                snapshot.parse_display_path(change.path): change.change
                for change in snapshot.list_file_changes(mark, now, texts)
            }
            assert told == kinds(before, after)
            snapshot.restore_files(
                copy, snapshot.collect_recorded_files(mark, now, 10**9, lambda path: f"{root}/{path}")
            )
            assert held(copy) == after
            mark, before = now, after
