"""What the horns of the Institut Fresnel do to the scattered field, beyond what their direct line tells."""

from __future__ import annotations

import numpy as np

__all__ = ["horn_factor"]

# Measured by examples/fresnel_horns.py on the cylinders of each series; a test measures it again. Radii and
# permittivities were fitted with it, from 2 to 6 GHz for 2001, and other bands give others: docs/scattering.md.
_MEASURED: dict[int, dict[float, complex]] = {
    2001: {
        1.0: 0.766 + 0.190j,
        2.0: 0.909 + 0.104j,
        3.0: 0.894 + 0.114j,
        4.0: 0.888 + 0.081j,
        5.0: 0.882 + 0.078j,
        6.0: 0.816 + 0.052j,
        7.0: 0.840 - 0.025j,
        8.0: 0.874 + 0.074j,
    },
    2005: {
        2.0: 0.945 + 0.070j,
        3.0: 0.993 + 0.063j,
        4.0: 0.972 + 0.060j,
        5.0: 0.909 + 0.043j,
        6.0: 0.898 + 0.025j,
        7.0: 0.856 + 0.032j,
        8.0: 0.932 + 0.009j,
        9.0: 0.972 - 0.065j,
        10.0: 0.928 - 0.102j,
    },
}


def horn_factor(year: int, gigahertz: float) -> complex:
    r"""The scattered field of a target in the middle, calibrated by the direct line, over that of line sources.

    Fields are calibrated by c = incident / (i/4) H_0(k d) opposite to the source. A horn is no line source there: its
    wave begins some way behind the mouth and is wider than a point, so that what two horns give over d is not the
    product of what each gives at the target. One complex number a frequency is left, for all views and targets of a
    series: 0.79 to 1 in size, -0.11 to 0.24 in phase.

    Holds for the rings of that year, within 0.05 for the targets that it was measured on (0.1 at 1 GHz, where the
    horns hardly radiate). Between measured frequencies it is interpolated; beyond them nothing is known of it, and it
    is 1.

    Arguments: year of the series, 2001 or 2005; frequency in GHz.
    """
    table = _MEASURED.get(year, {})
    known = list(table)
    if not known or not known[0] - 1e-6 <= gigahertz <= known[-1] + 1e-6:
        return 1.0 + 0j
    values = np.array(list(table.values()))
    return complex(np.interp(gigahertz, known, values.real) + 1j * np.interp(gigahertz, known, values.imag))
