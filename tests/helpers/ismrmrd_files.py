"""ISMRMRD files for tests: written by the official package where it is, or as it lays them out."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np

WRITERS = ("ours", "official")
FLAGS = {"noise": 19, "calibration": 20, "both": 21, "reverse": 22, "navigation": 23, "stabilization": 31}

_INDEX = [
    (name, "<u2")
    for name in (
        "kspace_encode_step_1",
        "kspace_encode_step_2",
        "average",
        "slice",
        "contrast",
        "phase",
        "repetition",
        "set",
        "segment",
    )
]
_HEAD: list[Any] = [("version", "<u2"), ("flags", "<u8"), ("measurement_uid", "<u4"), ("scan_counter", "<u4")]
_HEAD += [("acquisition_time_stamp", "<u4"), ("physiology_time_stamp", "<u4", (3,)), ("number_of_samples", "<u2")]
_HEAD += [("available_channels", "<u2"), ("active_channels", "<u2"), ("channel_mask", "<u8", (16,))]
_HEAD += [(name, "<u2") for name in ("discard_pre", "discard_post", "center_sample", "encoding_space_ref")]
_HEAD += [("trajectory_dimensions", "<u2"), ("sample_time_us", "<f4"), ("position", "<f4", (3,))]
_HEAD += [(name, "<f4", (3,)) for name in ("read_dir", "phase_dir", "slice_dir", "patient_table_position")]
_HEAD += [("idx", [*_INDEX, ("user", "<u2", (8,))]), ("user_int", "<i4", (8,)), ("user_float", "<f4", (8,))]

Row = tuple[dict[str, Any], Any, Any]
"""Of an acquisition: what its head says, `flags` as words; its path (samples, axes) or None; data (coils, samples)."""


def official_is_here() -> bool:
    """Whether the package `ismrmrd` is installed."""
    return importlib.util.find_spec("ismrmrd") is not None


def header(
    encoded: tuple[int, int, int],
    wide: tuple[float, float, float],
    matrix: tuple[int, int, int],
    field: tuple[float, float, float],
    *,
    kind: str = "cartesian",
    centers: tuple[int, int] | None = None,
    calibration: str = "",
    again: bool = False,
) -> str:
    """The XML header: matrices and fields of view in mm along x, y and z; `again` for a second encoding like it."""

    def space(name: str, sizes: Any, widths: Any) -> str:
        parts = [
            f"<{tag}>{''.join(f'<{axis}>{value}</{axis}>' for axis, value in zip('xyz', values, strict=True))}</{tag}>"
            for tag, values in (("matrixSize", sizes), ("fieldOfView_mm", widths))
        ]
        return f"<{name}>{''.join(parts)}</{name}>"

    limits = "".join(
        f"<kspace_encoding_step_{n}><minimum>0</minimum><maximum>{encoded[n] - 1}</maximum><center>{center}</center>"
        f"</kspace_encoding_step_{n}>"
        for n, center in enumerate(centers or (), 1)
    )
    parallel = (
        "<parallelImaging><accelerationFactor><kspace_encoding_step_1>2</kspace_encoding_step_1>"
        f"<kspace_encoding_step_2>1</kspace_encoding_step_2></accelerationFactor><calibrationMode>{calibration}"
        "</calibrationMode></parallelImaging>"
    )
    encoding = (
        f"<encoding>{space('encodedSpace', encoded, wide)}{space('reconSpace', matrix, field)}"
        f"<encodingLimits>{limits}</encodingLimits><trajectory>{kind}</trajectory>"
        f"{parallel if calibration else ''}</encoding>"
    )
    return (
        '<?xml version="1.0"?><ismrmrdHeader xmlns="http://www.ismrm.org/ISMRMRD"><experimentalConditions>'
        f"<H1resonanceFrequency_Hz>63500000</H1resonanceFrequency_Hz></experimentalConditions>{encoding * (1 + again)}"
        "</ismrmrdHeader>"
    )


def write(file: Path, rows: list[Row], xml: str, *, writer: str = "ours", group: str = "dataset") -> None:
    """A file of acquisitions; `center_sample` is half of the samples where a row does not say it."""
    if writer == "official":
        _write_officially(file, rows, xml, group)
        return
    import h5py

    vlen = h5py.vlen_dtype(np.float32)
    kind = np.dtype([("head", _HEAD), ("traj", vlen), ("data", vlen)])
    with h5py.File(file, "w") as out:
        place = out.create_group(group)
        place.create_dataset("xml", data=np.array([xml.encode()], dtype=h5py.string_dtype()))
        stored = place.create_dataset("data", (len(rows),), kind)
        for n, (values, path, data) in enumerate(rows):
            record = np.zeros(1, kind)[0]
            head = record["head"]
            head["number_of_samples"], head["active_channels"] = data.shape[::-1]
            head["center_sample"] = data.shape[1] // 2
            for name, value in values.items():
                if name == "flags":
                    head["flags"] = sum(1 << (FLAGS[word] - 1) for word in value)
                else:
                    (head if name in head.dtype.names else head["idx"])[name] = value
            record["traj"] = np.zeros(0, np.float32)
            if path is not None:
                head["trajectory_dimensions"] = path.shape[1]
                record["traj"] = path.astype(np.float32).ravel()
            record["data"] = np.ascontiguousarray(data, np.complex64).view(np.float32).ravel()
            stored[n] = record


def _write_officially(file: Path, rows: list[Row], xml: str, group: str) -> None:
    import ismrmrd  # type: ignore[import-not-found]

    dataset = ismrmrd.Dataset(str(file), group, create_if_needed=True)
    dataset.write_xml_header(ismrmrd.xsd.ToXML(ismrmrd.xsd.CreateFromDocument(xml)))
    for values, path, data in rows:
        coils, samples = data.shape
        made = ismrmrd.Acquisition()
        made.resize(samples, coils, trajectory_dimensions=0 if path is None else path.shape[1])
        made.data[:] = data
        if path is not None:
            made.traj[:] = path
        made.center_sample = samples // 2
        for name, value in values.items():
            if name == "flags":
                for word in value:
                    made.setFlag(FLAGS[word])
            else:
                setattr(made.idx if hasattr(made.idx, name) else made, name, value)
        dataset.append_acquisition(made)
    dataset.close()
