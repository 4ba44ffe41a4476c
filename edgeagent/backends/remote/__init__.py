"""Generation on another machine that speaks OpenAI's protocol.

`transport` is the only way out, and takes a Permit. `body` writes requests, `sse` and `answer` read streams, `endpoint`
knows how one base URL fares, `choose` picks among them, `backend` is what the router sees.
"""
