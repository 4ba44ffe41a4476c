"""The backend that generates on another machine, through OpenAI's protocol.

`transport` is the only code that sends anything, and requires a Permit. `bodies` writes requests, and `answers` reads
streams. `endpoints` tracks the health of each base URL and chooses among them. `backend` is what the router sees.
"""
