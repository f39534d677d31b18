"""The labels of a run: `labels.jsonl` beside its journal, one line for each label. Lines are only appended."""

import fcntl
import os
from collections.abc import Iterable
from pathlib import Path

from viva.errors import BadInput
from viva.model import codec
from viva.model.label import Label
from viva.record.atomic_files import append_atomically, truncate_partial_line
from viva.record.private_files import open_private


def get_labels_path(journal: Path) -> Path:
    return journal.with_name("labels.jsonl")


def append_label(journal: Path, label: Label) -> None:
    """Appends one line; another process may do so at the same time. OSError if it cannot be written."""
    file = open_private(get_labels_path(journal), os.O_RDWR | os.O_CREAT | os.O_APPEND)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        append_atomically(file, codec.encode(label) + b"\n", truncate_partial_line(file))
    finally:
        os.close(file)


def read_labels(journal: Path) -> list[Label]:
    """All labels, oldest first; an incomplete last line is left out. BadInput if a line is not a label."""
    path = get_labels_path(journal)
    try:
        lines = path.read_bytes().split(b"\n")[:-1]
    except FileNotFoundError:
        return []
    labels: list[Label] = []
    for number, line in enumerate(lines, 1):
        try:
            labels.append(codec.decode_own(line, type=Label))
        except codec.DecodeError as error:
            raise BadInput.of(f"is not a label: {error}. Delete the line", str(path), number) from error
    return labels


def select_current_labels(labels: Iterable[Label]) -> list[Label]:
    """The last label of each person on each check, without those that were taken back."""
    current = {label.person_and_check: label for label in labels}
    return [label for label in current.values() if label.label is not None]
