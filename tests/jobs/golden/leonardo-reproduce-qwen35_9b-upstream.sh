#!/bin/bash
# reproduce: qwen35_9b with the upstream engine on leonardo, seed 1
# Written by `leonardo launch`. This is all that runs; records, logs and evidence go to the folder below.
#SBATCH --job-name=reproduce-qwen35_9b-upstream
#SBATCH --account=project
#SBATCH --partition=boost_usr_prod
#SBATCH --qos=normal
#SBATCH --time=24:00:00
#SBATCH --nodes=16
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=32
#SBATCH --mem=492544M
#SBATCH --gres=gpu:4,tmpfs:120g
#SBATCH --exclusive
#SBATCH --output=/leonardo_work/project/tmax-leonardo/runs/reproduce-job-20260101T000000/slurm-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
#SBATCH --signal=B:USR1@1800
#SBATCH --kill-on-invalid-dep=yes
set -uo pipefail

run=/leonardo_work/project/tmax-leonardo/runs/reproduce-job-20260101T000000
project=/leonardo_work/project/tmax-leonardo/code
python=/leonardo_work/project/tmax-leonardo/code/.venv/bin/python
scratch=/tmp/l$SLURM_JOB_ID # node-local, with a short name: sockets lie in it
restarts=20
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
export GLOO_SOCKET_IFNAME=ib0
export HF_DATASETS_OFFLINE=1
export HF_HOME=/leonardo_work/project/tmax-leonardo/runs/reproduce-job-20260101T000000/hub
export HF_HUB_DISABLE_TELEMETRY=1
export HF_HUB_OFFLINE=1
export LC_ALL=C.UTF-8
export LEONARDO_CACHE=/leonardo_work/project/tmax-leonardo/cache
export LEONARDO_NODE_BUDGET=90
export LEONARDO_NODE_CACHE=/tmp/leonardo-layers
export LEONARDO_RESERVED_CORES=8
export LEONARDO_RUN=/leonardo_work/project/tmax-leonardo/runs/reproduce-job-20260101T000000
export LEONARDO_SITE=leonardo
export LEONARDO_TOOL_PARSERS=/leonardo_work/project/tmax-leonardo/runs/reproduce-job-20260101T000000/parsers.json
export NCCL_SOCKET_IFNAME=ib0
export OMP_NUM_THREADS=4
export PYTHONNOUSERSITE=1
export PYTHONPATH=/leonardo_work/project/tmax-leonardo/code/upstream/training/open-instruct:/leonardo_work/project/tmax-leonardo/code
export PYTHONUNBUFFERED=1
export PYTORCH_ALLOC_CONF=expandable_segments:True
export RAY_USAGE_STATS_ENABLED=0
export TOKENIZERS_PARALLELISM=false
export TORCH_EXTENSIONS_DIR=/leonardo_work/project/tmax-leonardo/cache/upstream/torch
export TRANSFORMERS_OFFLINE=1
export VLLM_ALLOW_INSECURE_SERIALIZATION=1
export VLLM_CACHE_ROOT=/leonardo_work/project/tmax-leonardo/cache/upstream/vllm
export VLLM_DO_NOT_TRACK=1
export VLLM_USE_FLASHINFER_SAMPLER=0
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
  srun --ntasks=16 --ntasks-per-node=1 rm -rf --one-file-system -- "$scratch"
  rm -rf --one-file-system -- "$scratch"
}

turned_away() { # EXIT-CODE WORDS: a node was not found to be ready, or the job was cancelled meanwhile
  rm -rf --one-file-system -- "$scratch" # other nodes remove theirs when they are told to end
  [ "$stopped" = TERM ] || fail "$2" "$1"
  event ended 143
  exit 143
}

# --- every node: is all there that the job needs? Scratch is made ---
srun --ntasks=16 --ntasks-per-node=1 --cpus-per-task=32 --kill-on-bad-exit=1 \
  "$python" -m leonardo.jobs.arrive "$run/job.json" "$scratch" || turned_away $? "a node lacks something: see above"

# --- layers are unpacked where sandboxes will be, while the trainer loads; what is not yet is when a sandbox asks for it ---
srun --overlap --ntasks=16 --ntasks-per-node=1 --cpus-per-task=32 \
  "$python" -m leonardo.jobs.unpack "$run" /leonardo_work/project/tmax-leonardo/data/tmax-15k/dataset/train.jsonl &
unpacking=$!

# --- the main step ---
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
address=$(getent ahostsv4 "$head" | awk 'NR == 1 { print $1 }')
port=$((20000 + SLURM_JOB_ID % 20000)) # another job's on a shared node is another
# Ray's own patience with slow nodes is 30 s, too little where all import it at once from a shared file system
export RAY_TMPDIR=$scratch RAY_SYMMETRIC_RUN_CLUSTER_WAIT_TIMEOUT=300
export PATH=/leonardo_work/project/tmax-leonardo/code/.venv-upstream/bin:$PATH
# The first node runs the cluster's head and the driver; the others join once it listens. (symmetric-run does both by
# itself, but in the Ray that upstream pins, 2.53, its other nodes never see the head.)
# shellcheck disable=SC2016 # expanded on the nodes
each='head=$1 port=$2; shift 2
[ "$SLURM_PROCID" != 0 ] || exec "$@"
for _ in $(seq 300); do (: < "/dev/tcp/$head/$port") 2> /dev/null && break; sleep 1; done
exec ray start --address "$head:$port" --num-cpus=52 --num-gpus=4 --block'
srun --ntasks=16 --ntasks-per-node=1 --cpus-per-task=32 --gpus-per-task=4 --cpu-bind=cores \
  --wait=20 bash -c "$each" each "$address" "$port" \
  ray symmetric-run --address "$address:$port" --min-nodes 16 \
  --include-dashboard=false --num-cpus=52 --num-gpus=4 -- \
  "$python" -m leonardo.jobs.step run "$scratch/stop" "$run/ended$task.json" \
  --watch "$run/steps.jsonl" 7200 7200 \
  --patience 1710 -- \
  /leonardo_work/project/tmax-leonardo/code/.venv-upstream/bin/python /leonardo_work/project/tmax-leonardo/code/upstream/training/open-instruct/open_instruct/grpo_fast.py \
  --active_sampling True --advantage_normalization_type centered \
  --async_steps 4 --attn_implementation flash_2 \
  --backend_timeout 1200 --beta 0.0 \
  --checkpoint_state_dir /leonardo_work/project/tmax-leonardo/runs/reproduce-job-20260101T000000/state --checkpoint_state_freq 10 \
  --dataset_local_cache_dir /leonardo_work/project/tmax-leonardo/runs/reproduce-job-20260101T000000/dataset-cache --dataset_mixer_list /leonardo_work/project/tmax-leonardo/data/tmax-15k/dataset 1.0 \
  --dataset_mixer_list_splits train --deepspeed_stage 3 \
  --deepspeed_zpg 4 --dppo_divergence_threshold 0.1 \
  --dppo_divergence_type tv --exp_name run \
  --gradient_checkpointing True --inflight_updates True \
  --keep_last_n_checkpoints 3 --learning_rate 1e-06 \
  --liger_grpo_loss_chunk_size 8 --lm_head_fp32 True \
  --load_ref_policy False --local_eval_every 10 \
  --loss_fn dppo --lr_scheduler_type constant \
  --max_prompt_token_length 2048 --max_steps 64 \
  --model_name_or_path /leonardo_work/project/tmax-leonardo/models/Qwen3.5-9B --num_epochs 1 \
  --num_learners_per_node 4 4 4 4 --num_samples_per_prompt_rollout 32 \
  --num_unique_prompts_rollout 8 --output_dir /leonardo_work/project/tmax-leonardo/runs/reproduce-job-20260101T000000/checkpoint \
  --pack_length 67584 --per_device_train_batch_size 1 \
  --per_turn_max_tokens 16384 --pool_size 512 \
  --push_to_hub False --response_length 65536 \
  --rollouts_save_path /leonardo_work/project/tmax-leonardo/runs/reproduce-job-20260101T000000/rollouts --save_freq 20 \
  --save_traces True --save_trainer_logprobs True \
  --seed 1 --sequence_parallel_size 4 \
  --system_prompt_override_file /leonardo_work/project/tmax-leonardo/data/tmax-15k/system-prompt.txt --temperature 1.0 \
  --tool_configs '{"backend": "prepared", "task_data_dir": "/leonardo_work/project/tmax-leonardo/data/tmax-15k/task-data", "timeout": 120, "test_timeout": 120, "tool_call_format_error_feedback": true}' --tool_parser_type vllm_qwen3_xml \
  --tools swerl_vanillux_sandbox --total_episodes 128000 \
  --truncated_importance_sampling_ratio_cap 0.0 --try_auto_save_to_beaker False \
  --try_launch_beaker_eval_jobs_on_weka False --use_liger_grpo_loss True \
  --use_vllm_logprobs True --verification_reward 1.0 \
  --vllm_attention_backend FLASH_ATTN --vllm_enable_prefix_caching True \
  --vllm_gdn_prefill_backend triton --vllm_num_engines 48 \
  --vllm_tensor_parallel_size 1 --with_tracking False &
step=$!
wait "$step"
code=$?
while kill -0 "$step" 2> /dev/null; do # a signal ends the waiting, not the step
  wait "$step"
  code=$?
done

# srun hands on USR2, while TERM would kill what it runs before it could say how far it came
kill -USR2 "$unpacking" 2> /dev/null && for _ in $(seq 50); do kill -0 "$unpacking" 2> /dev/null || break; sleep 0.2; done
kill "$unpacking" 2> /dev/null && wait "$unpacking"

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
