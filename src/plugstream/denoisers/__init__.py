"""Denoisers, the priors of plug-and-play reconstruction. All are pure maps D(z, sigma).

The names are imported when first used, so that lists can be read without waiting for torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plugstream.denoisers.base import Denoiser as Denoiser, Sigma as Sigma
    from plugstream.denoisers.bm3d import BM3D as BM3D, Profile as BM3DProfile
    from plugstream.denoisers.equivariant import Equivariant as Equivariant
    from plugstream.denoisers.nlm import NLM as NLM
    from plugstream.denoisers.opening import Opening as Opening
    from plugstream.denoisers.parts import MagnitudePhase as MagnitudePhase, RealImaginary as RealImaginary
    from plugstream.denoisers.ridge import ConvexRidge as ConvexRidge
    from plugstream.denoisers.shapes import (
        Channels as Channels,
        SliceMean as SliceMean,
        Slices as Slices,
        adapt as adapt,
        describe as describe,
    )
    from plugstream.denoisers.simple import (
        Box as Box,
        Identity as Identity,
        NonNegative as NonNegative,
        SoftThreshold as SoftThreshold,
    )
    from plugstream.denoisers.tiles import Tiles as Tiles
    from plugstream.denoisers.tnrd import TNRD as TNRD
    from plugstream.denoisers.tv import TV as TV
    from plugstream.denoisers.wrap import (
        Clip as Clip,
        Damping as Damping,
        FromFunction as FromFunction,
        FromModule as FromModule,
        as_denoiser as as_denoiser,
    )

_HOME = {
    "BM3D": "bm3d",
    "NLM": "nlm",
    "TNRD": "tnrd",
    "TV": "tv",
    "BM3DProfile": "bm3d",
    "Box": "simple",
    "Channels": "shapes",
    "Clip": "wrap",
    "ConvexRidge": "ridge",
    "Damping": "wrap",
    "Equivariant": "equivariant",
    "Denoiser": "base",
    "FromFunction": "wrap",
    "FromModule": "wrap",
    "Identity": "simple",
    "MagnitudePhase": "parts",
    "NonNegative": "simple",
    "Opening": "opening",
    "RealImaginary": "parts",
    "Sigma": "base",
    "SliceMean": "shapes",
    "Slices": "shapes",
    "SoftThreshold": "simple",
    "Tiles": "tiles",
    "adapt": "shapes",
    "as_denoiser": "wrap",
    "describe": "shapes",
}

__all__ = [
    "BM3D",
    "NLM",
    "TNRD",
    "TV",
    "BM3DProfile",
    "Box",
    "Channels",
    "Clip",
    "ConvexRidge",
    "Damping",
    "Denoiser",
    "Equivariant",
    "FromFunction",
    "FromModule",
    "Identity",
    "MagnitudePhase",
    "NonNegative",
    "Opening",
    "RealImaginary",
    "Sigma",
    "SliceMean",
    "Slices",
    "SoftThreshold",
    "adapt",
    "as_denoiser",
    "describe",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'plugstream.denoisers' has no attribute {name!r}")
    module = importlib.import_module(f"plugstream.denoisers.{_HOME[name]}")
    value = getattr(module, "Profile" if name == "BM3DProfile" else name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
