"""Generates on another machine that speaks OpenAI's protocol.

`connection` is the only code that sends anything, and requires a Permit. `bodies` writes requests, and `answers` reads
streams. `endpoints` tracks the health of each base URL and chooses among them. `backend` is what the router sees.
"""
