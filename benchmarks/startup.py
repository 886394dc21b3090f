"""How long `plugstream --help` takes, against the bare interpreter and against importing torch, in the same run."""

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


def main() -> None:
    bare, own, torch = seconds("-c", "pass"), seconds("-m", "plugstream", "--help"), seconds("-c", "import torch")
    print(f"bare interpreter    {1e3 * bare:7.0f} ms")
    print(f"plugstream --help   {1e3 * own:7.0f} ms   ({'within' if own < 0.3 else 'BEYOND'} the 300 ms it may take)")
    print(f"import torch        {1e3 * torch:7.0f} ms   {torch / own:.1f} x as long as our help")


if __name__ == "__main__":
    main()
