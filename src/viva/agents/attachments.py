"""What is attached to a message, for APIs that want its bytes and its kind apart from each other."""

import base64
import mimetypes
from urllib.parse import unquote_to_bytes, urlsplit

from viva.model.message import Attachment


def get_inline_data(part: Attachment) -> str | None:
    """The bytes of a data: address, in base64; None for anything that has to be fetched."""
    if not part.url.startswith("data:"):
        return None
    head, _, data = part.url.partition(",")
    return data if head.endswith(";base64") else base64.b64encode(unquote_to_bytes(data)).decode("ascii")


def guess_media_type(part: Attachment) -> str:
    """What the author says it is, else what its address tells."""
    if part.media_type:
        return part.media_type
    if part.url.startswith("data:"):
        return part.url[5:].partition(",")[0].partition(";")[0] or "text/plain"
    name = part.name or urlsplit(part.url).path
    return mimetypes.guess_type(name)[0] or "application/octet-stream"
