"""An async WebSocket client for applications. It depends on the wire protocol, not on the daemon's code.

async with edgeagent.client.connect() as client:
    async for event in client.respond("Turn the light on"):
        ...
"""

from edgeagent.client.address import Address
from edgeagent.client.answer import Answer, Event, function_output
from edgeagent.client.connection import Client, Reply, connect

__all__ = ["Address", "Answer", "Client", "Event", "Reply", "connect", "function_output"]
