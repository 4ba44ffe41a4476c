"""The commands about models: what is here, what fits, and how models are fetched, made and deleted."""
