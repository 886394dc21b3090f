"""Forward models: what each view measures of an image. One file a model, all of them a `Model`.

They are imported when first used, since instruments, which know no torch, have their geometries from here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugstream.models.base import Model, ModelBase
    from plugstream.models.born import BornModel
    from plugstream.models.ct import CTModel
    from plugstream.models.fpm import FPMModel
    from plugstream.models.function import FunctionModel
    from plugstream.models.matrix import MatrixModel
    from plugstream.models.odt import ODTModel
    from plugstream.models.ptychography import PtychographyModel
    from plugstream.models.scattering import ScatteringModel

__all__ = [
    "BornModel",
    "CTModel",
    "FPMModel",
    "FunctionModel",
    "MatrixModel",
    "Model",
    "ModelBase",
    "ODTModel",
    "PtychographyModel",
    "ScatteringModel",
]

_HOME = {
    "Model": "base",
    "ModelBase": "base",
    "BornModel": "born",
    "CTModel": "ct",
    "FPMModel": "fpm",
    "FunctionModel": "function",
    "MatrixModel": "matrix",
    "ODTModel": "odt",
    "PtychographyModel": "ptychography",
    "ScatteringModel": "scattering",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'plugstream.models' has no attribute {name!r}")
    return getattr(import_module(f"plugstream.models.{_HOME[name]}"), name)
