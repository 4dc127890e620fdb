#!/bin/bash
# calibrate: desk with the desk engine on leonardo, seed 1
# Written by `leonardo launch`. This is all that runs; records, logs and evidence go to the folder below.
#SBATCH --job-name=calibrate-desk
#SBATCH --account=project
#SBATCH --partition=boost_usr_prod
#SBATCH --qos=normal
#SBATCH --time=01:00:00
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16384M
#SBATCH --output=/leonardo_work/project/tmax-leonardo/runs/calibrate-job-20260101T000000/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@300
#SBATCH --kill-on-invalid-dep=yes
set -uo pipefail

run=/leonardo_work/project/tmax-leonardo/runs/calibrate-job-20260101T000000
project=/leonardo_work/project/tmax-leonardo/code
python=/leonardo_work/project/tmax-leonardo/code/.venv/bin/python
scratch=/tmp/l$SLURM_JOB_ID # node-local, with a short name: sockets lie in it
restarts=3
task=

event() { # one line of JSON in the run's folder: what happened to the job
  printf '{"time": "%s", "job": "%s", "task": "%s", "restart": %d, "event": "%s", "code": %s}\n' \
    "$(date -u +%FT%TZ)" "$SLURM_JOB_ID" "$task" "${SLURM_RESTART_COUNT:-0}" "$1" "${2:-null}" >> "$run/events.jsonl"
  printf 'job %s: %s %s\n' "$SLURM_JOB_ID" "$1" "${2:-}"
}

fail() { # one line, and the end
  printf 'job %s: %s\n' "$SLURM_JOB_ID" "$1" >&2
  event "failed: $1" "$2"
  exit "$2"
}

# --- the site's environment ---
set +u # modules read variables that nobody has set
{ module purge
} || fail 'the site'"'"'s set_up failed at: module purge' 3
{ module load cuda/12.6
} || fail 'the site'"'"'s set_up failed at: module load cuda/12.6' 3
set -u

# --- variables: nothing is asked of a network, nothing is written to the home folder ---
export HF_DATASETS_OFFLINE=1
export HF_HUB_DISABLE_TELEMETRY=1
export HF_HUB_OFFLINE=1
export LC_ALL=C.UTF-8
export LEONARDO_CACHE=/leonardo_work/project/tmax-leonardo/cache
export LEONARDO_NODE_CACHE=/tmp/leonardo-layers
export LEONARDO_RESERVED_CORES=0
export PYTHONNOUSERSITE=1
export PYTHONUNBUFFERED=1
export RAY_USAGE_STATS_ENABLED=0
export TRANSFORMERS_OFFLINE=1
export VLLM_DO_NOT_TRACK=1
export WANDB_MODE=offline
export LEONARDO_SCRATCH=$scratch TMPDIR=$scratch
unset PYTHONHOME VIRTUAL_ENV RAY_ADDRESS "${!SQUEUE_@}" # of the shell that submitted this

rm -rf --one-file-system -- "$scratch" # an earlier start of this job may have been killed on this node
cd "$project" || fail "$project is not there" 3
event started

# --- USR1 (the time limit is near, or preemption) and TERM (cancelled, or preempted): the step is told to save, and which
# it was: after USR1 there is time. After USR1 the job queues itself again; after TERM it does not: Slurm does that where it
# preempts, and a person did not ask.
stopped=
mkdir -p "$scratch" && chmod 700 "$scratch" # the word lies there; once it was removed, nothing makes it again
# shellcheck disable=SC2317,SC2329 # called by the traps
stop() {
  [ -z "$stopped" ] || [ "$stopped$1" = USR1TERM ] || return
  stopped=$1
  event "told to stop: $1"
  [ ! -d "$scratch" ] || echo "$1" > "$scratch/stop"
}
trap 'stop USR1' USR1
trap 'stop TERM' TERM

clean() { # no node keeps anything of this job
  srun --ntasks=1 --ntasks-per-node=1 rm -rf --one-file-system -- "$scratch"
  rm -rf --one-file-system -- "$scratch"
}

turned_away() { # EXIT-CODE WORDS: a node was not found to be ready, or the job was cancelled meanwhile
  rm -rf --one-file-system -- "$scratch" # other nodes remove theirs when they are told to end
  [ "$stopped" = TERM ] || fail "$2" "$1"
  event ended 143
  exit 143
}

# --- every node: is all there that the job needs? Scratch is made ---
srun --ntasks=1 --ntasks-per-node=1 --cpus-per-task=4 --kill-on-bad-exit=1 \
  "$python" -m leonardo.jobs.arrive "$run/job.json" "$scratch" || turned_away $? "a node lacks something: see above"

# --- the main step ---
srun --ntasks=1 --nodes=1 --cpus-per-task=4 \
  "$python" -m leonardo.jobs.step run "$scratch/stop" "$run/ended$task.json" -- \
  /leonardo_work/project/tmax-leonardo/code/.venv/bin/python -m leonardo.cli stage run calibrate \
  --engine desk --out /leonardo_work/project/tmax-leonardo/runs/calibrate-job-20260101T000000/out \
  --runs /leonardo_work/project/tmax-leonardo/runs --seed 1 \
  --site leonardo &
step=$!
wait "$step"
code=$?
while kill -0 "$step" 2> /dev/null; do # a signal ends the waiting, not the step
  wait "$step"
  code=$?
done


# --- how it ended: the trainer's exit code is the job's, whatever became of what ran around it ---
trainer=$("$python" -m leonardo.jobs.step ended "$run/ended$task.json") || trainer=
if [ -z "$trainer" ]; then
  [ "$code" != 0 ] || code=3
  event "the main step ended without a word" "$code"
else
  code=$trainer
fi
clean
if [ "$stopped" = USR1 ] && [ "$code" != 0 ] && [ "$(squeue -h -j "$SLURM_JOB_ID" -o %T | head -n 1)" = RUNNING ] &&
  [ "$stopped" = USR1 ]; then # TERM may have come meanwhile
  if [ "${SLURM_RESTART_COUNT:-0}" -lt "$restarts" ]; then
    event "queued again" "$code"
    exec scontrol requeue "$SLURM_JOB_ID"
  fi
  event "no restart is left of $restarts" "$code"
fi
event ended "$code"
exit "$code"
