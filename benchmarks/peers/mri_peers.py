"""Times of sigpy and mri-nufft on the problem of benchmarks/mri.py, each with a Python of its own: JSON on stdout.

build/peers/bin/python benchmarks/peers/mri_peers.py PROBLEM.npz [--cpu]
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

THREADS = int(os.environ.get("OMP_NUM_THREADS", "2"))
CLOCK = time.process_time if "--cpu" in sys.argv else time.perf_counter


def least(function: Callable[..., Any], *arguments: Any, seconds: float = 3.0) -> float:
    """The least time of a call, after two that do not count, which compile and plan."""
    function(*arguments)
    function(*arguments)
    times: list[float] = []
    while len(times) < 5 or sum(times) < seconds:
        begin = CLOCK()
        function(*arguments)
        times.append(CLOCK() - begin)
    return min(times)


def sigpy_times(path: Any, maps: Any, image: Any, data: Any) -> dict[str, float]:
    import sigpy
    import sigpy.mri

    coordinates = (path * maps.shape[1]).astype(np.float32)  # in steps of one over the field of view
    model = sigpy.mri.linop.Sense(maps, coord=coordinates)
    normal = model.H * model
    got = model(image) * sigpy_scale(model, image, data)
    found = {"error": float(np.linalg.norm(got - data) / np.linalg.norm(data))}
    found["forward"], found["adjoint"] = least(model, image), least(model.H, data)
    found["normal"] = least(normal, image)
    return found


def sigpy_scale(model: Any, image: Any, data: Any) -> complex:
    """What brings its scale to ours."""
    got = model(image)
    return complex(np.vdot(got, data) / np.vdot(got, got))


def mrinufft_times(path: Any, maps: Any, image: Any, data: Any) -> dict[str, float]:
    import mrinufft

    kind = mrinufft.get_operator("finufft")
    model = kind(
        (2 * np.pi * path).astype(np.float32).reshape(-1, 2),
        shape=image.shape,
        n_coils=len(maps),
        smaps=maps,
        squeeze_dims=True,
        eps=1e-4,
        nthreads=THREADS,
    )
    flat = np.ascontiguousarray(data.reshape(len(maps), -1))
    got = model.op(image)
    scale = np.vdot(got, flat) / np.vdot(got, got)
    found = {"error": float(np.linalg.norm(scale * got - flat) / np.linalg.norm(flat))}
    found["forward"], found["adjoint"] = least(model.op, image), least(model.adj_op, flat)
    found["normal"] = least(lambda x: model.adj_op(model.op(x)), image)
    return found


if __name__ == "__main__":
    problem = np.load(sys.argv[1])
    parts = [problem[name] for name in ("path", "maps", "image", "data")]
    results: dict[str, Any] = {}
    for name, measure in (("sigpy", sigpy_times), ("mri-nufft", mrinufft_times)):
        try:
            results[name] = measure(*parts)
        except Exception as error:
            results[name] = {"failed": f"{type(error).__name__}: {error}".splitlines()[0]}
    print(json.dumps(results))
