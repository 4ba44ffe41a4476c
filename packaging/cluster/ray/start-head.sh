#!/bin/sh
# Start Ray's head on this machine and deploy serve.yaml; other machines join with start-node.sh.
# RAY_AUTH_MODE=token: a program that may talk to Ray's ports may run code, so they ask for a token and stay behind a firewall.
set -eu
cd "$(dirname "$0")"
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
# The replicas' own HTTP servers answer, without a hop through Python, and with all of vLLM's paths (/v1/responses).
export RAY_SERVE_ENABLE_HA_PROXY=1 RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING=1
ray start --head --node-ip-address "${1:?address of this machine in the cluster}" --port 6379 --disable-usage-stats
exec serve deploy serve.yaml
