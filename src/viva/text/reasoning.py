"""The reasoning that some models write before their answer, in tags."""

_ENDS = ("</think>", "</thinking>")


def drop_reasoning(text: str) -> str:
    """The text after its reasoning. The template of a model may hold the opening tag, so that only the closing one counts."""
    if "</think" in text:
        for end in _ENDS:
            if end in text:
                text = text.rpartition(end)[2].strip()
    return text
