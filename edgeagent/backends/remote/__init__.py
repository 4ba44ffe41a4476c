"""Generation on another machine that speaks OpenAI's protocol.

`connection` has the only way out, which takes a Permit. `bodies` writes requests, `answers` reads streams,
`endpoints` knows how each base URL fares and picks among them, `backend` is what the router sees.
"""
