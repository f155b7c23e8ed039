"""How a message reads to a model."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import quoteattr

from ..agent import UserMessage
from ..text import clean_text, escape

_ELEMENTS: Final = {
    "message": "message",
    "reminder": "reminder",
    "hook": "hook-feedback",
    "summary": "summary-of-earlier-messages",
}
"""What words stand in that are nobody's prompt. A notification is an envelope, and
stands in its own."""


def wording(message: UserMessage) -> str:
    """Return the text of a message as a model is to read it.

    Only a prompt stands there as it is. What agents and the program say is
    cleaned, escaped and stands in an element that says who speaks, so that it
    passes for no prompt and for no notification.
    """
    element = _ELEMENTS.get(message.origin)
    if element is None or not message.text:
        return message.text
    sender = ""
    if message.sender is not None:
        sender = f" from={quoteattr(clean_text(message.sender))}"
    return f"<{element}{sender}>\n{escape(clean_text(message.text))}\n</{element}>"
