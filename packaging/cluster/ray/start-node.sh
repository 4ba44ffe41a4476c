#!/bin/sh
# Join the Ray head at an address. A node's replicas and proxy take their settings from here, not from the head.
set -eu
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
export RAY_SERVE_ENABLE_HA_PROXY=1 RAY_SERVE_LLM_ENABLE_DIRECT_STREAMING=1
exec ray start --address "${1:?address of the head in the cluster}:6379" --disable-usage-stats
