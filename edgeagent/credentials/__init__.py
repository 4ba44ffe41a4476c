"""Tokens, and what each client may do. Nothing here depends on HTTP or WebSocket.

`keys` keeps the tokens of the owner and of clients, and checks the keys of a request. `decision` says what a client may
do. `grants` ends open requests and sockets when their token is no longer valid.
"""
