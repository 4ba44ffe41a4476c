"""Writers of request bodies for remotes, in either of OpenAI's protocols."""
