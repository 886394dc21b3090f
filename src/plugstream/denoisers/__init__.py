"""Denoisers, the priors of plug-and-play reconstruction. All are pure maps D(z, sigma)."""

from plugstream.denoisers.base import Denoiser, Sigma
from plugstream.denoisers.bm3d import BM3D, Profile as BM3DProfile
from plugstream.denoisers.nlm import NLM
from plugstream.denoisers.simple import Box, Identity, NonNegative, SoftThreshold
from plugstream.denoisers.tnrd import TNRD
from plugstream.denoisers.tv import TV
from plugstream.denoisers.wrap import Clipped, Damped, FromFunction, FromModule, as_denoiser

__all__ = [
    "BM3D",
    "NLM",
    "TNRD",
    "TV",
    "BM3DProfile",
    "Box",
    "Clipped",
    "Damped",
    "Denoiser",
    "FromFunction",
    "FromModule",
    "Identity",
    "NonNegative",
    "Sigma",
    "SoftThreshold",
    "as_denoiser",
]
