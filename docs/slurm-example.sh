#!/bin/bash
# One reconstruction on 4 machines with 4 GPUs each: sbatch docs/slurm-example.sh scan.zarr
# The scan and the folder of the run lie on a file system that all machines see.
#SBATCH --job-name=plugstream
#SBATCH --nodes=4
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=32
#SBATCH --time=04:00:00

set -eu
scan=$1
head=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)

# One torchrun on each machine; each starts a process for every GPU. A process that dies, or does not answer for
# PLUGSTREAM_RANK_TIMEOUT seconds, has all of them started again, which go on from the last checkpoint of the run.
export PLUGSTREAM_RANK_TIMEOUT=300
export OMP_NUM_THREADS=8
srun torchrun \
  --nnodes "$SLURM_NNODES" \
  --nproc-per-node 4 \
  --max-restarts 3 \
  --rdzv-id "$SLURM_JOB_ID" \
  --rdzv-backend c10d \
  --rdzv-endpoint "$head:29500" \
  -m plugstream reconstruct "$scan" --out "run-$SLURM_JOB_ID" --device cuda \
  --sigma 0.02 --batch 64 --tile 2048 --checkpoint 60

# Where the job itself ran out of time, another one goes on: the same with "-m plugstream resume run-JOBID".
