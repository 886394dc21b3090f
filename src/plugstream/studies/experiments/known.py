"""Settings that a full search has found, for runs that are too short to search: sigma of each image, step and momentum.

known.json was made from the cells of the run in docs/reproduction.md.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from plugstream.studies.experiments.printed import IMAGES
from plugstream.studies.experiments.runs import Spec, TunedSpec

__all__ = ["known_settings"]


def known_settings(method: str, names: Sequence[str], iterations: int) -> TunedSpec | None:
    """The settings found for a method of Table 2 or a line of `beyond`, for at most so many iterations.

    None if there was no search. A picture that is not the paper's gets the geometric mean of the sigmas of those that
    are.
    """
    content = json.loads((Path(__file__).parent / "known.json").read_text(encoding="utf-8")).get(method)
    if content is None:
        return None
    spec = Spec(**content["spec"])
    sigma = dict(zip(IMAGES, content["sigma"], strict=True))
    usual = float(np.exp(np.mean(np.log(content["sigma"]))))
    sigmas = [sigma.get(name, usual) for name in names]
    return TunedSpec(replace(spec, iterations=min(iterations, spec.iterations)), sigmas, [], 0)
