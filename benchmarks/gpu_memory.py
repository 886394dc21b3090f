"""What runs say they need of a GPU's memory (`plugstream.runs.footprint`) beside the peak that torch counts.

    python benchmarks/gpu_memory.py [--size 256] [--slices 64] [--views 60]

Runs of a volume with 3D TV, of slices with TV and with BM3D, parallel and cone beam. The bar: no run takes more than it
says, and none says three times what it takes; the exit status is 1 where it is not met.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from pathlib import Path

import torch

from plugstream import BM3D, TV, Denoiser
from plugstream.base.capacity import format_size
from plugstream.cli import main as plugstream
from plugstream.denoisers.shapes import Slices
from plugstream.runs.footprint import Footprint

RUNS: dict[str, tuple[str, Denoiser, list[str]]] = {
    "parallel beam, 3D TV": ("parallel", TV(ndim=3, low=0.0), []),
    "parallel beam, TV of slices": ("parallel", Slices(TV(low=0.0)), ["--along", "z"]),
    "parallel beam, BM3D of slices": ("parallel", Slices(BM3D()), ["--along", "z", "--denoiser", "bm3d"]),
    "cone beam, 3D TV": ("cone", TV(ndim=3, low=0.0), []),
}
MOST = 3.0  # times the peak


def peak_of(scan: Path, out: Path, words: list[str]) -> tuple[float, float]:
    """Bytes of the GPU that were taken before a run, and at its peak."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    settings = ["--sigma", "0.05", "--batch", "10", "--iterations", "4", "--every", "2", "--device", "cuda"]
    if plugstream(["reconstruct", str(scan), "--out", str(out), "--report", "none", *settings, *words]):
        raise RuntimeError(f"the run on {scan.name} failed")
    return before, torch.cuda.max_memory_allocated()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, number in (("size", 256), ("slices", 64), ("views", 60)):
        parser.add_argument(f"--{name}", type=int, default=number)
    asked = parser.parse_args()
    sizes = {"size": asked.size, "slices": asked.slices, "columns": asked.size, "views": asked.views}
    words = [word for name, number in sizes.items() for word in (f"--{name}", str(number))]
    shape, good, rows = (asked.slices, asked.size, asked.size), True, []
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, (beam, denoiser, more)) in enumerate(RUNS.items()):
            scan = Path(folder) / f"{beam}.zarr"
            if not scan.exists():
                plugstream(["simulate", str(scan), "--instrument", "ct", "--beam", beam, *words])
            before, peak = peak_of(scan, Path(folder) / str(number), more)
            data = 4.0 * asked.views * asked.size  # of a slice
            model = Footprint.of(denoiser, shape, torch.float32, data, in_memory=True, device=torch.device("cuda"))
            says = model.bytes(asked.slices) - model.process + before
            good &= peak <= says <= MOST * peak
            met = "pass" if peak <= says <= MOST * peak else "FAIL"
            rows.append(f"  {met}: {name}: says {format_size(says)}, takes {format_size(peak)} ({says / peak:.2f} x)")
    print(f"{torch.cuda.get_device_name()}, {' x '.join(map(str, shape))} voxels, {asked.views} views", *rows, sep="\n")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
