"""A real cluster on this machine, for `make cluster-demo`: two vLLM workers on the CPU, a router and a proxy."""
