"""What is known of a denoiser: proved by construction, measured by pairs of images as a lower bound, refuted by one."""

from plugstream.certificates.certificate import Certificate, PairNumbers, damping_for
from plugstream.certificates.certification import certify
from plugstream.certificates.pairs import Pair

__all__ = ["Certificate", "Pair", "PairNumbers", "certify", "damping_for"]
