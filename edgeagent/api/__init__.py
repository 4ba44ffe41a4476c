"""The wire protocols: JSON over HTTP and WebSocket, access control, errors. They do not know where a request runs."""

import os

# Otherwise pydantic reads the metadata of all installed packages to find its plugins, which delays the start, and a
# plugin sees what clients send.
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "true"
