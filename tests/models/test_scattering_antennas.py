"""Sums of plane waves, and with them: against direct sums, in boxes, by matrices and by a non-uniform FFT."""

import numpy as np
import pytest
import torch

from plugstream.models.scattering_antennas import PlaneWaveSums, WaveNufft

PLACE = {"device": torch.device("cpu"), "dtype": torch.float64}


@pytest.mark.parametrize("form", ["matrices", "nufft"])
@pytest.mark.parametrize("box", [(slice(0, 9), slice(0, 12)), (slice(2, 7), slice(5, 6))])
def test_sums_are_direct_ones(form, box):
    rng = np.random.default_rng(0)
    frequencies = rng.uniform(-0.6, 0.6, (5, 2))
    rows, columns = np.meshgrid(np.arange(9) - 4, np.arange(12) - 6, indexing="ij")
    phase = frequencies[:, 0, None, None] * rows + frequencies[:, 1, None, None] * columns
    waves = (
        PlaneWaveSums((9, 12), frequencies, **PLACE)
        if form == "matrices"
        else WaveNufft((9, 12), frequencies, 1e-11, **PLACE)
    )
    fields = torch.randn(3, *phase[0][box].shape, dtype=torch.complex128)
    cosines, sines = waves.sample(fields, box)
    inside = torch.from_numpy(phase[:, *box])
    assert torch.allclose(cosines, torch.einsum("khw,phw->kp", fields, torch.cos(inside).to(fields)), atol=1e-9)
    assert torch.allclose(sines, torch.einsum("khw,phw->kp", fields, torch.sin(inside).to(fields)), atol=1e-9)
    c, s = torch.randn(2, 5, dtype=torch.complex128), torch.randn(2, 5, dtype=torch.complex128)
    whole = torch.from_numpy(phase)
    want = torch.einsum("kp,phw->khw", c, torch.cos(whole).to(c)) + torch.einsum(
        "kp,phw->khw", s, torch.sin(whole).to(s)
    )
    assert torch.allclose(waves.combine(c, s), want, atol=1e-9)
    assert waves.held > 0
