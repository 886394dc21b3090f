"""What the horns of the Institut Fresnel do to the scattered field, measured on targets that are known.

    python examples/fresnel_horns.py ../shared/data/fresnel

The importer divides fields by the factor that makes the incident one opposite to the source that of a line source. The
path over the target is not quite that path: for every frequency a complex number is left between the measured field and
the computed one, the same for all views and targets of a series within a few hundredths. This prints it for each
target, c = <computed, measured> / ||computed||^2 over all views, the part of the data that is left unexplained without
and with it, and the mean of the targets of each series, the table in `fresnel_importer.py`.

Places, radii and permittivities of the cylinders are those with which the exact solution, times a free factor for each
frequency, fits best; those of FoamDielInt, which has no exact solution, the published ones where it was found to stand.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np
import torch
from fresnel_importer import import_fresnel

import plugstream as ps
from plugstream.images.simulated import disc
from plugstream.instruments.born import born_geometry

# x, y and radius in mm, permittivity; what comes later takes the place of what is there.
TARGETS = {
    2001: {
        "dielTM_dec8f.exp": [(1.3, 26.1, 15.8, 3.04)],
        "twodielTM_8f.exp": [(-2.6, 45.5, 15.9, 3.02), (-12.2, -43.0, 16.2, 3.05)],
    },
    2005: {
        "FoamDielExtTM.txt": [(2.2, 1.6, 40.4, 1.436), (-53.7, 1.3, 15.7, 3.12)],
        "FoamDielIntTM.txt": [(-1.9, -0.4, 40.0, 1.45), (-7.0, -0.3, 15.5, 3.0)],
    },
}


def factor(file: Path, gigahertz: float, cylinders: list[tuple[float, float, float, float]]) -> complex:
    """c of a target at a frequency; prints it with what is left unexplained."""
    scan = import_fresnel(file, gigahertz, size=160, instrument="scattering-2d", horns=False)
    geometry = born_geometry(scan)
    image = np.zeros(geometry.grid.shape)
    for x, y, radius, permittivity in cylinders:
        covered = disc(geometry.grid, (1e-3 * x, 1e-3 * y), 1e-3 * radius)
        image = image * (1 - covered) + (permittivity - 1) * covered
    model = ps.ScatteringModel(geometry, tolerance=1e-4)
    data, computed = (model.restrict(one) for one in (scan.data, model.forward(torch.from_numpy(image).float())))
    c = complex((computed.conj() * data).sum() / computed.abs().square().sum())
    left = [float(((a * computed - data).abs().square().sum(1) / data.abs().square().sum(1)).mean()) for a in (1, c)]
    print(f"{file.name:18} {gigahertz:3g} GHz  {abs(c):.3f} at {np.angle(c):+.3f} rad, {left[0]:.1%} -> {left[1]:.1%}")
    return c


def main(folder: Path) -> None:
    warnings.simplefilter("ignore", ps.PlugstreamWarning)
    for year, targets in TARGETS.items():
        table = {}
        for gigahertz in range(1, 9) if year == 2001 else range(2, 11):
            table[float(gigahertz)] = np.mean([factor(folder / name, gigahertz, it) for name, it in targets.items()])
        print(f"    {year}: {{")
        for frequency, c in table.items():
            print(f"        {frequency}: {c.real:.3f} {'+' if c.imag >= 0 else '-'} {abs(c.imag):.3f}j,")
        print("    },")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "../shared/data/fresnel"))
