"""Certificates of denoisers: proved by construction, measured by pairs of images (a lower bound), refuted by one."""

from plugstream.algorithms.pairs import Pair, damping_for
from plugstream.studies.certificates.certificate import Certificate, PairNumbers
from plugstream.studies.certificates.certification import certify

__all__ = ["Certificate", "Pair", "PairNumbers", "certify", "damping_for"]
