"""Images: their space, pixels, planes and phases, how they are drawn, stored and compared, and simulated objects."""

from typing import TYPE_CHECKING

from plugstream.base.lazy import lazy_names

if TYPE_CHECKING:
    from plugstream.images.global_phase import align_phase as align_phase
    from plugstream.images.grid import Grid as Grid
    from plugstream.images.pictures import load_picture as load_picture, save_image as save_image
    from plugstream.images.quality import psnr as psnr, ssim as ssim
    from plugstream.images.simulated import add_noise as add_noise
    from plugstream.images.space import ImageSpace as ImageSpace

__getattr__, __dir__ = lazy_names(__name__)
