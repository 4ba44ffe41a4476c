"""A WebSocket client for applications. It depends on the wire protocol, not on the daemon's code.

async with edgeagent.client.connect() as client:
    async for sentence in client.respond("Turn the light on").sentences():
        ...

`edgeagent.client.sync` has the same names without `await`.
"""

from edgeagent.client.address import Address
from edgeagent.client.answer import Answer, Event, function_output
from edgeagent.client.choice import Chance, Choice
from edgeagent.client.connection import Client, connect
from edgeagent.client.conversation import Conversation
from edgeagent.client.files import user_message
from edgeagent.client.reply import Reply
from edgeagent.client.sentences import Sentences
from edgeagent.client.tools import Tool

__all__ = [
    "Address",
    "Answer",
    "Chance",
    "Choice",
    "Client",
    "Conversation",
    "Event",
    "Reply",
    "Sentences",
    "Tool",
    "connect",
    "function_output",
    "user_message",
]
