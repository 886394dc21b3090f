"""How long `plugstream --help` takes, against the bare interpreter and against importing torch, in the same run; and
`plugstream.bm3d` from the start of Python to its result."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def seconds(*arguments: str, repeats: int = 7) -> float:
    """The median wall time of a Python process with these arguments, after one run to warm the disk cache."""
    times = []
    for _ in range(repeats + 1):
        begin = time.perf_counter()
        subprocess.run([sys.executable, *arguments], capture_output=True, check=True)
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])


_BM3D = "import numpy as np; from plugstream import bm3d; bm3d(np.resize(np.arange(61.0), (256, 256)) / 60, 0.1)"


def main() -> None:
    bare, own, torch = seconds("-c", "pass"), seconds("-m", "plugstream", "--help"), seconds("-c", "import torch")
    print(f"bare interpreter    {1e3 * bare:7.0f} ms")
    print(f"plugstream --help   {1e3 * own:7.0f} ms   ({'within' if own < 0.3 else 'BEYOND'} the 300 ms it may take)")
    print(f"import torch        {1e3 * torch:7.0f} ms   {torch / own:.1f} x as long as our help")
    print(f"import numpy        {1e3 * seconds('-c', 'import numpy'):7.0f} ms")
    print(f"bm3d of 256 x 256   {1e3 * seconds('-c', _BM3D):7.0f} ms   from the start of Python to the result")


if __name__ == "__main__":
    main()
