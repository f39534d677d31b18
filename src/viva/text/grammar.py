"""Articles for error messages."""


def with_article(noun: str) -> str:
    """`a dict`, `an int`."""
    return f"{'an' if noun[:1].lower() in 'aeiou' else 'a'} {noun}"
