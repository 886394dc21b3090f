"""Pictures as an MP4 video, by ffmpeg where it is installed.

ffmpeg is run here and not by a library: imageio's plugin brings a binary of its own, and Matplotlib's writer draws the
whole figure anew for every frame, where a movie of ours draws only what moves.
"""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from plugstream.base.errors import InputError, StorageError
from plugstream.base.files import hidden_place

__all__ = ["check_encoder", "encode_video"]

# Seconds that ffmpeg may take to finish once it has all frames.
_PATIENCE = 120.0


def check_encoder() -> None:
    """Refuse where there is no ffmpeg."""
    if shutil.which("ffmpeg") is None:
        raise InputError("an MP4 needs ffmpeg, which is not installed here; install it, or make a .gif")


def encode_video(out: Path, pictures: Iterator[NDArray[np.uint8]], rate: float, hold: int) -> None:
    """Write pictures as a video that every player and browser shows, whole or not at all.

    Arguments: out, the file; pictures, (height, width, 3) in RGB with even sides; rate, of them a second; hold, how
    often the last one is shown.
    """
    partial = hidden_place(out)
    first = next(pictures)
    height, width = first.shape[:2]
    raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{rate:g}", "-i", "-"]
    # 4:2:0 and the index in front are what browsers need; ffmpeg takes H.264 for MP4 where it has that.
    coded = ["-an", "-pix_fmt", "yuv420p", "-crf", "18", "-movflags", "+faststart", "-f", "mp4", str(partial)]
    command = ["ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "error", "-y", *raw, *coded]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=said)
        assert process.stdin is not None
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:  # it says itself why it ended
                last = first
                process.stdin.write(first.data)
                for last in pictures:
                    process.stdin.write(last.data)
                for _ in range(hold - 1):
                    process.stdin.write(last.data)
            if process.wait(_PATIENCE) != 0:
                said.seek(0)
                lines = said.read().decode(errors="replace").strip().splitlines() or ["it does not say why"]
                raise StorageError(f"ffmpeg could not write {out}: {lines[-1]}")
            partial.replace(out)
        except subprocess.TimeoutExpired:
            raise StorageError(f"ffmpeg did not finish {out} within {_PATIENCE:.0f} s") from None
        finally:
            process.kill()  # which does nothing where it has ended
            process.wait()
            partial.unlink(missing_ok=True)
