"""The two ways in which a queue message's text carries its body."""

import base64
import binascii
from enum import Enum


class UndecodableMessage(ValueError):
    """The message's text is not base64, though host.json says that it should be."""


class MessageEncoding(Enum):
    """host.json's `extensions.queues.messageEncoding`."""

    BASE64 = "base64"
    NONE = "none"

    def encode(self, body: bytes) -> str:
        """Return the text to put into a queue. Without base64 the body must be UTF-8."""
        if self is MessageEncoding.NONE:
            return body.decode()
        return base64.b64encode(body).decode("ascii")

    def decode(self, text: str) -> str:
        """Return the body that a function sees, or raise `UndecodableMessage`."""
        if self is MessageEncoding.NONE:
            return text
        try:
            # .NET skips white space inside base64, and replaces what is not UTF-8.
            return base64.b64decode("".join(text.split()), validate=True).decode(errors="replace")
        except (binascii.Error, ValueError) as error:
            raise UndecodableMessage(str(error)) from error
