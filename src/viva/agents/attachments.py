"""Attachments, for APIs that take content and media type separately."""

import base64
import mimetypes
from urllib.parse import unquote_to_bytes, urlsplit

from viva.model.message import Attachment


def get_inline_data(part: Attachment) -> str | None:
    """The content of a data: URL in base64; None for other URLs."""
    if not part.url.startswith("data:"):
        return None
    head, _, data = part.url.partition(",")
    return data if head.endswith(";base64") else base64.b64encode(unquote_to_bytes(data)).decode("ascii")


def guess_media_type(part: Attachment) -> str:
    """The media type that the author gives, else the one of the URL."""
    if part.media_type:
        return part.media_type
    if part.url.startswith("data:"):
        return part.url[5:].partition(",")[0].partition(";")[0] or "text/plain"
    name = part.name or urlsplit(part.url).path
    return mimetypes.guess_type(name)[0] or "application/octet-stream"
