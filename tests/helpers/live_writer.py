"""A process that writes a scan: view i holds numbers that only view i can hold, so that a reader can check it alone.

python live_writer.py SCAN VIEWS PAUSE [VIEWS_PER_SHARD] [COMMIT_EVERY]
"""

from __future__ import annotations

import sys
import time

import numpy as np

from plugstream.images.grid import Grid
from plugstream.instruments.born import Born2D
from plugstream.models.born_geometry import ring
from plugstream.scans import ScanWriter

RECEIVERS = 50


def view(number: int) -> np.ndarray:
    """What view `number` measures, never zero."""
    rng = np.random.default_rng(number)
    return (rng.standard_normal((1, RECEIVERS)) + 1j * (number + 1)).astype(np.complex64)


def position(number: int) -> np.ndarray:
    angle = 0.1 * number
    return 0.5 * np.array([[np.cos(angle), np.sin(angle)]])


def setup() -> Born2D:
    return Born2D(receivers=ring(RECEIVERS, 0.5), wavelength=0.05, grid=Grid((12, 10), 0.01))


def main() -> None:
    path, views, pause = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    shard = int(sys.argv[4]) if len(sys.argv) > 4 else 4
    every = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    with ScanWriter(path, setup(), views_per_shard=shard) as writer:
        print("open", writer.committed, flush=True)
        for number in range(writer.committed, views):
            writer.append(view(number), position(number))
            if number % every == 0:
                writer.commit()
            time.sleep(pause)
        writer.finish()


if __name__ == "__main__":
    main()
