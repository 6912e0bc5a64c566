#!/usr/bin/env bash
# A campaign over many nodes: one shard for each task of a Slurm array, then one job that joins the shards and writes the report.
#
#   SCENARIO=ack-cascade OUT=/scratch/$USER/ack-cascade SHARDS=8 deploy/lab/slurm-array.sh submit
#
# OUT must be on a file system that all nodes share. Extra arguments of `hoplite-lab run` go behind `submit`. A task that was killed or
# requeued goes on where it was; submitting the same again runs what is missing, TASKS=2,5 of these shards alone.
#SBATCH --job-name=hoplite-lab
#SBATCH --nodes=1
#SBATCH --exclusive
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --signal=B:TERM@60
set -euo pipefail

LAB=${LAB:-hoplite-lab}
: "${SCENARIO:?name a scenario}" "${OUT:?name a directory that all nodes share}"

# Asks Slurm for the shards, whole nodes each, and for the join when all of them have ended well; it is dropped if one has not.
submit() {
    export SHARDS=${SHARDS:-4}
    local array join
    array=$(sbatch --parsable --export=ALL --array="${TASKS:-1-$SHARDS}" --output="$OUT.%A-%a.log" "$0" shard "$@")
    join=$(sbatch --parsable --export=ALL --kill-on-invalid-dep=yes --dependency="afterok:${array%%;*}" --output="$OUT.%j.log" "$0" join)
    echo "shards: job ${array%%;*}, join: job ${join%%;*}"
}

# One shard: this node's part. Its exit code is that of `run`: 1 if a repetition failed or stayed invalid.
shard() {
    local number=$SLURM_ARRAY_TASK_ID of=${SHARDS:-} run
    # An array that `submit` did not ask for.
    if [ -z "$of" ]; then
        number=$((SLURM_ARRAY_TASK_ID - ${SLURM_ARRAY_TASK_MIN:-1} + 1)) of=$SLURM_ARRAY_TASK_COUNT
    fi
    # Slurm's TERM goes to this shell; `run` ends in order when it is told.
    "$LAB" run "$SCENARIO" --out "$OUT.shards/$number" --shard "$number/$of" --json "$@" &
    run=$!
    trap 'kill -TERM $run' TERM INT
    until wait "$run"; do
        local code=$?
        kill -0 "$run" 2>/dev/null || return "$code"
    done
}

# All shards in one directory, and what they say.
join() {
    "$LAB" merge "$OUT".shards/* --out "$OUT"
    "$LAB" report "$OUT"
}

case ${1:-} in
submit | shard | join) "$@" ;;
*)
    echo "usage: SCENARIO=… OUT=… [SHARDS=4] $0 submit | shard | join" >&2
    exit 2
    ;;
esac
