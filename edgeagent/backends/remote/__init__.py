"""The backend that generates on another machine, through OpenAI's chat completions.

`backend` is what the router sees, and `run` is one request. `body` writes the request, and `answer` reads the stream.
`cluster` chooses among the endpoints, and `breaker` and `probe` decide which of them may get requests. `transport` is
the only code that sends anything, and requires a Permit.
"""
