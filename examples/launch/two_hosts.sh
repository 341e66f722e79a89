#!/bin/sh
# The same line on both hosts. FIRST is the name of one of them, which the other can reach:
#   FIRST=host1 sh two_hosts.sh
# RANKS is how many GPUs a host has, PORT a free one of the first host.
# Ranks that start again get a store of their own, in the place of that of those before.
export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1
exec torchrun --nnodes="${HOSTS:-2}" --nproc-per-node="${RANKS:-8}" \
  --rdzv-backend=c10d --rdzv-endpoint="${FIRST:?the name of the first host}:${PORT:-29500}" \
  --max-restarts="${RESTARTS:-3}" -m shardwright train "${RUN:-run.yaml}" "$@"
