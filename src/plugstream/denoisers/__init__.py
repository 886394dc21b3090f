"""Denoisers, the priors of plug-and-play reconstruction. All are pure maps D(z, sigma).

The names are imported when first used, so that lists can be read without waiting for torch.
"""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.denoisers.base import Denoiser as Denoiser
    from plugstream.denoisers.bm3d import BM3D as BM3D, BM3DProfile as BM3DProfile
    from plugstream.denoisers.bm4d import BM4D as BM4D, BM4DProfile as BM4DProfile
    from plugstream.denoisers.counts import anscombe as anscombe, inverse_anscombe as inverse_anscombe
    from plugstream.denoisers.equivariant import Equivariant as Equivariant
    from plugstream.denoisers.networks.published import from_weights as from_weights
    from plugstream.denoisers.networks.unet import UNet as UNet
    from plugstream.denoisers.nlm import NLM as NLM
    from plugstream.denoisers.opening import Opening as Opening
    from plugstream.denoisers.parts import MagnitudePhase as MagnitudePhase, RealImaginary as RealImaginary
    from plugstream.denoisers.ridge import ConvexRidge as ConvexRidge
    from plugstream.denoisers.rotated import RotatedChannels as RotatedChannels
    from plugstream.denoisers.shapes import (
        Channels as Channels,
        SliceMean as SliceMean,
        Slices as Slices,
        adapt as adapt,
    )
    from plugstream.denoisers.simple import (
        Box as Box,
        Identity as Identity,
        NonNegative as NonNegative,
        SoftThreshold as SoftThreshold,
    )
    from plugstream.denoisers.stabilized import Anscombe as Anscombe
    from plugstream.denoisers.tiles import Tiles as Tiles
    from plugstream.denoisers.tnrd import TNRD as TNRD
    from plugstream.denoisers.tv import TV as TV
    from plugstream.denoisers.wrap import (
        Clip as Clip,
        Damping as Damping,
        FromFunction as FromFunction,
        FromModule as FromModule,
    )

if TYPE_CHECKING:  # of this room alone
    from plugstream.denoisers.base import Sigma as Sigma
    from plugstream.denoisers.shapes import describe as describe
    from plugstream.denoisers.wrap import as_denoiser as as_denoiser

__getattr__, __dir__ = lazy_names(__name__)
