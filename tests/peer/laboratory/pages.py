"""A server's pages about itself."""

from __future__ import annotations

import httpx

from edgeagent.bench.client import Server


async def read_page(server: Server, path: str) -> bytes:
    """Request a page with GET, and return its body. Raise httpx.HTTPError if none comes, or if it is an error."""
    headers = {"authorization": f"Bearer {server.address.token}"} if server.address.token else {}
    async with httpx.AsyncClient(headers=headers, trust_env=False) as http:
        page = await http.get(f"{server.address.http_url.removesuffix('/v1')}{path}")
    return page.raise_for_status().content
