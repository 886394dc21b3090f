"""A process that plays an instrument: it writes a scan that exists into a new one, view by view.

    python play_scan.py SOURCE SCAN PAUSE [LAST_VIEW]

PAUSE is in seconds, or "told": then each view waits for a line of standard input. With LAST_VIEW it dies by SIGKILL
after that view, in the middle of appending the next.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import torch

from plugstream.instruments.born import born_geometry
from plugstream.scans import ScanWriter, open_scan


def main() -> None:
    source, told = open_scan(sys.argv[1]), sys.argv[3] == "told"
    pause = 0.0 if told else float(sys.argv[3])
    last = int(sys.argv[4]) if len(sys.argv) > 4 else None
    with ScanWriter(sys.argv[2], born_geometry(source), truth=source.truth, views_per_shard=4) as writer:
        print("open", flush=True)
        for view in range(writer.committed, source.n_views):
            if told and not sys.stdin.readline():
                return  # nobody is there any more
            writer.append(
                source.read(torch.tensor([view])).numpy(), born_geometry(source).transmitters[view : view + 1]
            )
            if last is not None and view > last:
                os.kill(os.getpid(), signal.SIGKILL)
            writer.commit()
            time.sleep(pause)
        writer.finish()


if __name__ == "__main__":
    main()
