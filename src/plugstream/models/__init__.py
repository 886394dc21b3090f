"""Forward models: what each view measures of an image. One file a model, all of them a `Model`."""

from plugstream.models.base import Model, ModelBase
from plugstream.models.born import BornModel
from plugstream.models.function import FunctionModel
from plugstream.models.matrix import MatrixModel

__all__ = ["BornModel", "FunctionModel", "MatrixModel", "Model", "ModelBase"]
