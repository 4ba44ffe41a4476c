"""The commands about models: list them, check what fits, and download, quantize or delete them."""
