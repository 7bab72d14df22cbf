#!/bin/bash
# Train on several hosts under SLURM, one task per GPU (on a CPU partition: one task per process).
#
#   srun --nodes=2 --ntasks-per-node=8 --gpus-per-node=8 tools/train_slurm.sh ViT \
#       -cfg=./configs/vit_base_patch16_224.yaml -dataset=imagenet2012 -data_path=/dataset/imagenet -amp
#
# or as a batch job: sbatch --signal=TERM@120 --requeue <the same options> tools/train_slurm.sh ViT ...
# which starts itself again under srun. SIGTERM, which SLURM sends before the time limit, saves a checkpoint; give
# -output=<folder> and the script continues from its latest checkpoint when the job is requeued.
#
# HOST=<node name> and PORT=<free port> override the address of rank 0; the default is the first node of the job.
# PYTHON=<interpreter> overrides python3.

set -euo pipefail

if [[ $# -lt 1 ]]; then
    echo "usage: srun <options> $0 MODEL_FOLDER <arguments of main_multi_gpu.py>" >&2
    exit 2
fi
if [[ -z "${SLURM_JOB_ID:-}" ]]; then
    echo "error: not inside a SLURM job; start this script with srun or sbatch" >&2
    exit 2
fi
if [[ -z "${SLURM_STEP_ID:-}" ]]; then
    # The batch script itself: become the tasks. SLURM runs a copy of this file, so the path comes from the job.
    script=$(scontrol show job "$SLURM_JOB_ID" | sed -n 's/^ *Command=\([^ ]*\).*/\1/p')
    exec srun "$script" "$@"
fi

[[ -n "${HOST:-}" ]] && export MASTER_ADDR="$HOST"
[[ -n "${PORT:-}" ]] && export MASTER_PORT="$PORT"

folder=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/image_classification/$1
shift
if [[ ! -f "$folder/main_multi_gpu.py" ]]; then
    echo "error: $folder has no main_multi_gpu.py" >&2
    exit 2
fi
cd "$folder"

# an option and its value as one word, however they were written
words=()
while [[ $# -gt 0 ]]; do
    if [[ $# -gt 1 && "$1" =~ ^--?(output|resume|pretrained)$ ]]; then
        words+=("$1=$2")
        shift
    else
        words+=("$1")
    fi
    shift
done
set -- "${words[@]}"

resume=()
for argument in "$@"; do
    case "$argument" in
        -output=* | --output=*)
            latest="${argument#*=}/latest.pdparams"
            [[ -f "$latest" ]] && resume=("-resume=$latest")
            ;;
        -resume* | --resume*)
            resume=()
            break
            ;;
    esac
done

# a requeued job goes on with its own weights
arguments=()
for argument in "$@"; do
    [[ ${#resume[@]} -gt 0 && "$argument" =~ ^--?pretrained= ]] || arguments+=("$argument")
done

# exec: signals of SLURM reach Python, not a shell that waits for it
exec "${PYTHON:-python3}" main_multi_gpu.py -launcher=slurm "${resume[@]}" "${arguments[@]}"
