"""Online plug-and-play image reconstruction: a few views per iteration, any denoiser as the prior.

The public names are imported when first used, so that `import plugstream` and `plugstream --help` do not wait for
torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from plugstream.base.moved import install
from plugstream.base.version import __version__ as __version__

install()


_HOME = {
    "plugstream.algorithms": [
        "ADMM",
        "RED",
        "SAGA",
        "SVRG",
        "Algorithm",
        "BlockADMM",
        "BoundedMomentum",
        "Diagonal",
        "GradientSplitting",
        "IncrementalADMM",
        "InexactADMM",
        "ProxSkip",
        "SigmaRace",
        "TaperedMomentum",
        "ProximalGradient",
    ],
    "plugstream.bridges.deepinv": ["from_deepinv"],
    "plugstream.bridges.operators": ["from_operators"],
    "plugstream.bridges.reconstructor": ["PnPSGD"],
    "plugstream.studies.certificates": ["Certificate", "certify"],
    "plugstream.denoisers": [
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
        "SliceMean",
        "Slices",
        "SoftThreshold",
        "Tiles",
        "adapt",
    ],
    "plugstream.base.errors": ["DamagedError", "InputError", "PlugstreamWarning", "StorageError"],
    "plugstream.fidelity.checks": ["check_adjoint", "check_gradient"],
    "plugstream.fidelity.least_squares": ["Fidelity", "LeastSquares"],
    "plugstream.images.global_phase": ["align_phase"],
    "plugstream.images.grid": ["Grid"],
    "plugstream.images.space": ["ImageSpace"],
    "plugstream.scans.importers": ["import_file", "import_fresnel", "import_hdf5", "import_npz"],
    "plugstream.fidelity.by_loss": ["LossFidelity"],
    "plugstream.fidelity.losses": ["Amplitude", "Gaussian", "Huber", "Loss", "Poisson", "Transmission"],
    "plugstream.instruments.born": ["Born2D", "born_geometry"],
    "plugstream.instruments.scattering": ["Scattering2D"],
    "plugstream.models": ["BornModel", "FunctionModel", "MatrixModel", "Model", "ModelBase", "ScatteringModel"],
    "plugstream.models.born_geometry": ["BornGeometry", "ring"],
    "plugstream.solver.monitors": ["PSNR", "SNR", "SSIM", "Cost", "Distance", "snr"],
    "plugstream.images.simulated": ["add_noise"],
    "plugstream.images.quality": ["psnr", "ssim"],
    "plugstream.base.quantities": ["Quantity"],
    "plugstream.base.processes": ["Group", "process_group"],
    "plugstream.solver.result": ["Progress", "Result", "Stop"],
    "plugstream.images.pictures": ["load_picture", "save_image"],
    "plugstream.algorithms.sampling": ["All", "Epochs", "FixedViews", "Importance", "ShiftedViews", "Uniform"],
    "plugstream.scans": ["MemoryScan", "ScanWriter", "StoredScan", "open_scan", "save_scan"],
    "plugstream.scans.keys": ["make_keys"],
    "plugstream.scans.limits": ["Limits"],
    "plugstream.scans.receive": ["Receiver"],
    "plugstream.scans.send": ["ScanSender", "send_scan"],
    "plugstream.runs.advice": ["Advised", "advise"],
    "plugstream.base.schedules": ["Geometric", "OverL", "Overlap", "Power"],
    "plugstream.fidelity.sharded": ["Sharded"],
    "plugstream.scans.simulation": ["simulate"],
    "plugstream.fidelity.by_function": ["SmoothFidelity"],
    "plugstream.solver.loop": ["solve"],
    "plugstream.algorithms.theory": ["fixed_point_distance", "fixed_point_map"],
    "plugstream.solver.uncertainty": ["error_map"],
    "plugstream.solver.verdict": ["Outcome", "Verdict"],
}
_WHERE = {name: module for module, names in _HOME.items() for name in names}

__all__ = sorted([*_WHERE, "__version__"])

if TYPE_CHECKING:  # the same names for type checkers and editors; a test keeps the two lists alike
    from plugstream.algorithms import (
        ADMM as ADMM,
        RED as RED,
        SAGA as SAGA,
        SVRG as SVRG,
        Algorithm as Algorithm,
        BlockADMM as BlockADMM,
        BoundedMomentum as BoundedMomentum,
        Diagonal as Diagonal,
        GradientSplitting as GradientSplitting,
        IncrementalADMM as IncrementalADMM,
        InexactADMM as InexactADMM,
        ProximalGradient as ProximalGradient,
        ProxSkip as ProxSkip,
        SigmaRace as SigmaRace,
        TaperedMomentum as TaperedMomentum,
    )
    from plugstream.algorithms.sampling import (
        All as All,
        Epochs as Epochs,
        FixedViews as FixedViews,
        Importance as Importance,
        ShiftedViews as ShiftedViews,
        Uniform as Uniform,
    )
    from plugstream.algorithms.theory import (
        fixed_point_distance as fixed_point_distance,
        fixed_point_map as fixed_point_map,
    )
    from plugstream.base.errors import (
        DamagedError as DamagedError,
        InputError as InputError,
        PlugstreamWarning as PlugstreamWarning,
        StorageError as StorageError,
    )
    from plugstream.base.processes import Group as Group, process_group as process_group
    from plugstream.base.quantities import Quantity as Quantity
    from plugstream.base.schedules import Geometric as Geometric, OverL as OverL, Overlap as Overlap, Power as Power
    from plugstream.bridges.deepinv import from_deepinv as from_deepinv
    from plugstream.bridges.operators import from_operators as from_operators
    from plugstream.bridges.reconstructor import PnPSGD as PnPSGD
    from plugstream.denoisers import (
        BM3D as BM3D,
        NLM as NLM,
        TNRD as TNRD,
        TV as TV,
        BM3DProfile as BM3DProfile,
        Box as Box,
        Channels as Channels,
        Clip as Clip,
        ConvexRidge as ConvexRidge,
        Damping as Damping,
        Denoiser as Denoiser,
        Equivariant as Equivariant,
        FromFunction as FromFunction,
        FromModule as FromModule,
        Identity as Identity,
        MagnitudePhase as MagnitudePhase,
        NonNegative as NonNegative,
        Opening as Opening,
        RealImaginary as RealImaginary,
        SliceMean as SliceMean,
        Slices as Slices,
        SoftThreshold as SoftThreshold,
        Tiles as Tiles,
        adapt as adapt,
    )
    from plugstream.fidelity.by_function import SmoothFidelity as SmoothFidelity
    from plugstream.fidelity.by_loss import LossFidelity as LossFidelity
    from plugstream.fidelity.checks import check_adjoint as check_adjoint, check_gradient as check_gradient
    from plugstream.fidelity.least_squares import Fidelity as Fidelity, LeastSquares as LeastSquares
    from plugstream.fidelity.losses import (
        Amplitude as Amplitude,
        Gaussian as Gaussian,
        Huber as Huber,
        Loss as Loss,
        Poisson as Poisson,
        Transmission as Transmission,
    )
    from plugstream.fidelity.sharded import Sharded as Sharded
    from plugstream.images.global_phase import align_phase as align_phase
    from plugstream.images.grid import Grid as Grid
    from plugstream.images.pictures import load_picture as load_picture, save_image as save_image
    from plugstream.images.quality import psnr as psnr, ssim as ssim
    from plugstream.images.simulated import add_noise as add_noise
    from plugstream.images.space import ImageSpace as ImageSpace
    from plugstream.instruments.born import Born2D as Born2D, born_geometry as born_geometry
    from plugstream.instruments.scattering import Scattering2D as Scattering2D
    from plugstream.models import (
        BornModel as BornModel,
        FunctionModel as FunctionModel,
        MatrixModel as MatrixModel,
        Model as Model,
        ModelBase as ModelBase,
        ScatteringModel as ScatteringModel,
    )
    from plugstream.models.born_geometry import BornGeometry as BornGeometry, ring as ring
    from plugstream.runs.advice import Advised as Advised, advise as advise
    from plugstream.scans import (
        MemoryScan as MemoryScan,
        ScanWriter as ScanWriter,
        StoredScan as StoredScan,
        open_scan as open_scan,
        save_scan as save_scan,
    )
    from plugstream.scans.importers import (
        import_file as import_file,
        import_fresnel as import_fresnel,
        import_hdf5 as import_hdf5,
        import_npz as import_npz,
    )
    from plugstream.scans.keys import make_keys as make_keys
    from plugstream.scans.limits import Limits as Limits
    from plugstream.scans.receive import Receiver as Receiver
    from plugstream.scans.send import ScanSender as ScanSender, send_scan as send_scan
    from plugstream.scans.simulation import simulate as simulate
    from plugstream.solver.loop import solve as solve
    from plugstream.solver.monitors import (
        PSNR as PSNR,
        SNR as SNR,
        SSIM as SSIM,
        Cost as Cost,
        Distance as Distance,
        snr as snr,
    )
    from plugstream.solver.result import Progress as Progress, Result as Result, Stop as Stop
    from plugstream.solver.uncertainty import error_map as error_map
    from plugstream.solver.verdict import Outcome as Outcome, Verdict as Verdict
    from plugstream.studies.certificates import Certificate as Certificate, certify as certify


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module 'plugstream' has no attribute {name!r}")
    value = getattr(importlib.import_module(_WHERE[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
