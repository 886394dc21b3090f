"""Operators of other libraries as models of ours: SciPy, PyLops, SCICO and deepinv; and ours in place of deepinv's
reconstruction and of PyPI's `bm3d` and `bm4d`."""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.bridges.deepinv import from_deepinv as from_deepinv
    from plugstream.bridges.differentiable import DifferentiableModel as DifferentiableModel
    from plugstream.bridges.operators import from_operators as from_operators
    from plugstream.bridges.pypi import BM3DStages as BM3DStages, bm3d as bm3d, bm3d_rgb as bm3d_rgb
    from plugstream.bridges.pypi_volumes import BM4DStages as BM4DStages, bm4d as bm4d
    from plugstream.bridges.reconstructor import PnPSGD as PnPSGD

__getattr__, __dir__ = lazy_names(__name__)
