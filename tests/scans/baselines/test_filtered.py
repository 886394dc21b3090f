"""Filtered back-projection gives back discs and balls from their exact projections, whatever the beam."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest
import torch

from ct_balls import VOXEL, chords, truth
from plugstream.base.errors import InputError
from plugstream.models.ct_beams import cone_beam, fan_beam, helical_beam, laminography, parallel_beam
from plugstream.models.ct_geometry import Rays, Voxels
from plugstream.scans.baselines.filtered import (
    Filter,
    angular_weights,
    equiangular_kernel,
    filtered_back_projection,
    ramp_kernel,
    redundancy_weights,
    window,
)

FLAT = Voxels((52, 48), VOXEL)
TURN = 2 * np.pi / 180
WIDE = 2 * TURN
FAN: dict[str, Any] = {"source": 0.2, "detector": 0.1}
SHORT = np.deg2rad(np.arange(0, 228, 4.0))  # half a turn, the fan's angle and a little more
CASES = {
    "parallel": parallel_beam(np.arange(45) * WIDE, 67, VOXEL),
    "off the middle": parallel_beam(np.arange(90) * TURN, 67, VOXEL, center=29.3),
    "a whole turn": parallel_beam(np.arange(90) * WIDE, 67, VOXEL, center=31.0),
    "its end again": parallel_beam(np.arange(46) * WIDE, 67, VOXEL),
    "backwards, from elsewhere": parallel_beam(1.0 - np.arange(45) * WIDE, 67, VOXEL),
    "golden angles": parallel_beam(np.arange(90) * np.pi * (3 - 5**0.5), 67, VOXEL),
    "fine pixels": parallel_beam(np.arange(90) * TURN, 131, VOXEL / 2),
    "an axis at the side": parallel_beam(np.arange(180) * TURN, 46, VOXEL, center=11.7),
    "at the other side": parallel_beam(np.arange(180) * TURN, 46, VOXEL, center=33.3),
    "hardly any overlap": parallel_beam(np.arange(180) * TURN, 36, VOXEL, center=2.4),
    "fan": fan_beam(np.arange(90) * WIDE, 79, 1.5 * VOXEL, center=37.0, **FAN),
    "fan, an axis at the side": fan_beam(np.arange(180) * TURN, 54, 1.5 * VOXEL, center=12.2, **FAN),
    "curved fan, an axis at the side": fan_beam(
        np.arange(180) * TURN, 54, 1.5 * VOXEL, curved=True, center=41.3, **FAN
    ),
    "short fan": fan_beam(SHORT, 79, 1.5 * VOXEL, **FAN),
    "short fan backwards": fan_beam(-np.arange(114) * TURN, 79, 1.5 * VOXEL, center=40.5, **FAN),
    "curved fan": fan_beam(np.arange(90) * WIDE, 79, 1.5 * VOXEL, curved=True, **FAN),
    "short curved fan": fan_beam(0.7 + SHORT, 79, 1.5 * VOXEL, curved=True, center=38.0, **FAN),
}


@pytest.mark.parametrize("name", CASES)
def test_discs_come_back(name: str) -> None:
    rays = CASES[name]
    found = filtered_back_projection(chords(rays), rays, FLAT, dtype=torch.float64).numpy()
    image, inside = truth(FLAT)
    error = (found - image)[inside]
    assert abs(error.mean()) < 0.15
    assert np.sqrt((error**2).mean()) < 1.2
    np.testing.assert_allclose(found[image > 20].mean(), image[image > 20].mean(), rtol=0.03)


@pytest.mark.parametrize(
    "rays",
    [
        parallel_beam(np.arange(45) * WIDE, (13, 67), VOXEL, center=31.5),
        cone_beam(np.arange(60) * WIDE * 1.5, (25, 79), 1.5 * VOXEL, source=0.4, detector=0.2, middle=11.5),
        cone_beam(np.arange(60) * WIDE * 1.5, (25, 79), 1.5 * VOXEL, source=0.4, detector=0.2, curved=True),
    ],
    ids=["parallel", "cone", "curved cone"],
)
def test_balls_come_back_near_the_plane_of_the_source(rays: Rays) -> None:
    """FDK is exact where the source turns, and falls off away from it."""
    voxels = Voxels((7, 48, 46), VOXEL)
    found = filtered_back_projection(chords(rays), rays, voxels, dtype=torch.float64).numpy()
    image, inside = truth(voxels)
    error = (found - image)[inside]
    assert abs(error.mean()) < 0.3
    assert np.sqrt((error**2).mean()) < 1.5


def test_slices_of_a_parallel_volume_are_images_of_their_own() -> None:
    angles = np.arange(8) * np.pi / 8
    rays, flat = parallel_beam(angles, (5, 40), VOXEL), parallel_beam(angles, 40, VOXEL)
    data = torch.rand(8, 5, 40, dtype=torch.float64)
    volume = filtered_back_projection(data, rays, Voxels((5, 20, 21), VOXEL), dtype=torch.float64)
    for row in range(5):
        image = filtered_back_projection(data[:, row], flat, Voxels((20, 21), VOXEL), dtype=torch.float64)
        torch.testing.assert_close(volume[row], image)


def test_it_is_linear_reads_by_views_and_keeps_leading_axes() -> None:
    rays = fan_beam(SHORT[::4], 79, 1.5 * VOXEL, **FAN)
    data = torch.rand(2, *chords(rays).shape, dtype=torch.float64)
    both = filtered_back_projection(data, rays, FLAT, dtype=torch.float64)
    for row, image in zip(data, both, strict=True):
        by_views = filtered_back_projection(lambda views, row=row: row[views], rays, FLAT, dtype=torch.float64)
        torch.testing.assert_close(by_views, image)
    single = filtered_back_projection(data[0], rays, FLAT)
    torch.testing.assert_close(single.double(), both[0], rtol=1e-3, atol=2e-3 * float(both.abs().max()))


def test_filters_damp_noise_in_their_order_and_keep_the_mean() -> None:
    rays = parallel_beam(np.arange(20) * np.pi / 20, 67, VOXEL)
    noise = torch.randn(chords(rays).shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    sizes = [
        float(filtered_back_projection(noise, rays, FLAT, filter=f, dtype=torch.float64).std())
        for f in get_args(Filter)
    ]
    assert sizes == sorted(sizes, reverse=True)
    image, _ = truth(FLAT)
    soft = filtered_back_projection(chords(rays), rays, FLAT, filter="hann", cutoff=0.5, dtype=torch.float64)
    assert float(soft.sum()) == pytest.approx(image.sum(), rel=0.02)


def test_kernels_are_ramps() -> None:
    ramp = np.fft.fft(ramp_kernel(512, 0.5)).real * 0.5
    frequency = np.abs(np.fft.fftfreq(512, 0.5))
    np.testing.assert_allclose(ramp, frequency, atol=2e-3)
    np.testing.assert_allclose(equiangular_kernel(64, 1e-4), ramp_kernel(64, 1e-4), rtol=1e-4)
    assert window("ram-lak", 9, 0.5).tolist() == [1] * 5 + [0] * 4
    assert window("hann", 5)[-1] == pytest.approx(0)


def test_shares_of_a_line_add_up_to_one() -> None:
    """The ray at g of view t and the one at -g of t + pi + 2 g are the same line."""
    scan = np.deg2rad(np.arange(10, 240, 1.0))
    t, g = np.meshgrid(np.deg2rad(np.arange(15, 235, 5.0)), np.linspace(-0.3, 0.3, 13), indexing="ij")
    own = redundancy_weights(scan, t, g)
    opposite = redundancy_weights(scan, t + np.pi + 2 * g, -g)
    measured = (np.rad2deg(t + np.pi + 2 * g) - 10) % 360 < 229
    np.testing.assert_allclose((own + opposite)[measured], 1, atol=1e-9)
    np.testing.assert_allclose(own[~measured], 1, atol=2e-3)  # within half a step of the ends
    np.testing.assert_allclose(redundancy_weights(np.arange(90) * np.pi / 45, t, g), 0.5)


def test_angles_count_by_the_gaps_around_them() -> None:
    assert angular_weights(np.arange(6) * np.pi / 6, np.pi).sum() == pytest.approx(np.pi)
    twice = angular_weights(np.append(np.arange(6), 6) * np.pi / 6, np.pi)
    assert twice.sum() == pytest.approx(np.pi)
    np.testing.assert_allclose(twice[1:6], np.pi / 6)
    limited = angular_weights(np.deg2rad(np.arange(0, 90, 1.0)), 2 * np.pi)
    np.testing.assert_allclose(limited, np.deg2rad(1.0))


def test_what_it_is_not_for_is_refused() -> None:
    data = torch.zeros(4, 3, 9)
    angles, volume = np.arange(4.0), Voxels((3, 8, 8), VOXEL)
    for rays, why in (
        (laminography(angles, (3, 9), VOXEL, tilt=0.5), "tilted"),
        (helical_beam(angles * 2, (3, 9), VOXEL, source=0.3, detector=0.1, pitch=0.1), "helix"),
    ):
        with pytest.raises(InputError, match=why):
            filtered_back_projection(data, rays, volume)
    rays = parallel_beam(angles, (3, 9), VOXEL)
    with pytest.raises(InputError, match="no filter"):
        filtered_back_projection(data, rays, volume, filter="sharp")
    with pytest.raises(InputError, match="cutoff"):
        filtered_back_projection(data, rays, volume, cutoff=0.0)
    with pytest.raises(InputError, match="must end in"):
        filtered_back_projection(data[:3], rays, volume)
    with pytest.raises(InputError, match="sees 3 axes"):
        filtered_back_projection(data, rays, FLAT)
