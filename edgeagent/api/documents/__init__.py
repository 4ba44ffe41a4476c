"""The documents that describe the API: OpenAPI for HTTP, AsyncAPI for the WebSocket, and a page that shows both.

Both documents are made from the code. `python -m edgeagent.api.documents docs` writes them into the folder `docs`. A
daemon that does not serve the documents imports none of these modules.
"""
