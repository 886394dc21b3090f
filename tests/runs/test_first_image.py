"""The first image of a sample that is wider than the detector."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import plugstream as ps
from ellipses import BODIES, chords, counted
from plugstream.instruments.ct import CT
from plugstream.models.ct_beams import parallel_beam
from plugstream.models.ct_geometry import Voxels
from plugstream.scans.scan import MemoryScan


@pytest.mark.parametrize("name", ["body", "long", "aside"])
def test_the_first_image_of_part_of_a_sample_is_not_zero(name: str) -> None:
    """After a few steps it predicts views that no step used better than one that began from zero."""
    angles = np.arange(60) * np.pi / 60
    y = counted(chords(angles, np.arange(38) - 18.5, BODIES[name])).astype(np.float32)
    rays = parallel_beam(angles, 38, 1.0)
    part = CT.of(rays, Voxels((76, 76), 1.0), unit="pixel", seen=19.0)
    found = [
        ps.reconstruct(
            MemoryScan(y, one, None, {}, {"rays": rays.vectors}), sigma="1%", iterations=8, sampler="all", hold_out=5
        )
        for one in (part, replace(part, seen=0.0))
    ]
    misfits = [result.history["held_out"].value[-1] for result in found]
    assert misfits[0] < 0.6 * misfits[1]
