"""A volume by odtbrain's back-propagation; run by benchmarks/odt.py in a Python that has odtbrain.

    python odtbrain_volume.py SINOGRAM.npz OUT.npy

SINOGRAM has data (views, rows, columns), the Rytov phase; angles in radians; res, pixels a wavelength; medium. OUT gets
the complex refractive index as odtbrain lays it out; the seconds that it took are printed.
"""

import sys
import time

import numpy as np
import odtbrain

given = np.load(sys.argv[1])
begin = time.perf_counter()
found = odtbrain.backpropagate_3d(
    uSin=given["data"].astype(np.complex128),
    angles=given["angles"],
    res=float(given["res"]),
    nm=float(given["medium"]),
    num_cores=2,
)
index = odtbrain.odt_to_ri(found, float(given["res"]), float(given["medium"]))
print(time.perf_counter() - begin)
np.save(sys.argv[2], index.astype(np.complex64))
