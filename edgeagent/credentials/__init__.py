"""Who asks, and what they may do. Nothing here depends on how a request arrives.

`keys` keeps the tokens of the owner and of clients, and checks the keys of a request. `decision` says what a client may
do. `grants` ends the work that a token has begun when the token is no longer valid.
"""
