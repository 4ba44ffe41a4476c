"""The prefix cache: KV cells, blocks in host memory and on disk, and one tree over all of them."""
