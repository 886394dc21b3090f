"""Forward models: what each view measures of an image. One file a model, all of them a `Model`.

They are imported when first used, since instruments, which know no torch, have their geometries from here.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.models.base import Model as Model, ModelBase as ModelBase
    from plugstream.models.born import BornModel as BornModel
    from plugstream.models.born_geometry import BornGeometry as BornGeometry, ring as ring
    from plugstream.models.function import FunctionModel as FunctionModel
    from plugstream.models.matrix import MatrixModel as MatrixModel
    from plugstream.models.scattering import ScatteringModel as ScatteringModel

if TYPE_CHECKING:  # of this room alone
    from plugstream.models.ct import CTModel as CTModel
    from plugstream.models.fpm import FPMModel as FPMModel
    from plugstream.models.odt import ODTModel as ODTModel
    from plugstream.models.ptychography import PtychographyModel as PtychographyModel

__getattr__, __dir__ = lazy_names(__name__)
