"""Tensors on disk, as safetensors with a checksum: a file that was changed is refused.

The header's member "plugstream:sha256" is the SHA-256 of the other members, as JSON with sorted keys, and then of each
tensor in the order of names: its name, type and shape, and its bytes. Nothing is unpickled.
"""

from __future__ import annotations

import hashlib
import json
import pickle
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plugstream.base.errors import InputError
from plugstream.base.files import write_whole
from plugstream.base.system import renames_open

_SUM = "plugstream:sha256"
_NAMES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint16: "U16",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


def save_tensors(
    path: Path, tensors: Mapping[str, Tensor], about: Mapping[str, str] | None = None, *, durable: bool = True
) -> None:
    """Write tensors and a header `about` them as one file, with a checksum of both, as `write_whole` does."""
    plain = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    header = dict(about or {})
    write_whole(path, _encode(plain, {**header, _SUM: _digest(header, plain)}), durable=durable)


def load_tensors(path: Path, expected_format: str | None = None) -> tuple[dict[str, str], dict[str, Tensor]]:
    """The arguments of `save_tensors`: about, and the tensors, on the CPU.

    A damaged file is refused with an `InputError` whose text continues "... cannot be used: ".

    Arguments: path; expected_format, the required "format" in `about`. If it is None, safetensors from other programs,
    which have no checksum, are accepted too.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with path.open("rb") as file, safe_open(_readable_name(path, file.fileno()), "pt") as opened:
            about = dict(opened.metadata() or {})
            tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is not a dict
            if not renames_open():  # they are the file's own pages, and it could not be replaced
                tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    except (SafetensorError, OSError, ValueError, RuntimeError) as error:
        raise InputError(f"it is not safetensors, or damaged ({str(error).splitlines()[0]})") from error
    checksum = about.pop(_SUM, None)
    if expected_format is not None and about.get("format") != expected_format:
        raise InputError(f"it holds other weights than {expected_format}")
    if expected_format is not None and checksum is None:
        raise InputError("it has no checksum, so it was not written by this plugstream, or is damaged; get it again")
    if checksum is not None and checksum != _digest(about, tensors):
        raise InputError("it fails its checksum, so it is damaged or was changed; get it again")
    return about, tensors


def _encode(tensors: Mapping[str, Tensor], about: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """The parts of a safetensors file, with the tensors as they are in memory, so that nothing is copied.

    Reference: https://huggingface.co/docs/safetensors: the length of the header, the header as JSON, the tensors.
    """
    order = sorted(tensors, key=lambda name: (-tensors[name].itemsize, name))  # so that each is aligned
    header: dict[str, Any] = {"__metadata__": dict(about)}
    end = 0
    for name in order:
        value = tensors[name]
        begin, end = end, end + value.numel() * value.itemsize
        header[name] = {"dtype": _NAMES[value.dtype], "shape": list(value.shape), "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little")
    yield text
    for name in order:
        yield tensors[name].reshape(-1).view(torch.uint8).numpy().data


def _readable_name(path: Path, handle: int) -> str:
    """A name of the file in UTF-8, as safetensors needs it; if it has none, that of the open file."""
    try:
        str(path).encode()
    except UnicodeEncodeError:
        return f"/dev/fd/{handle}"
    return str(path)


def _digest(about: Mapping[str, str], tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256(json.dumps(dict(about), sort_keys=True).encode())
    for name in sorted(tensors):
        value = tensors[name].contiguous()
        total.update(repr((name, value.dtype, tuple(value.shape))).encode())
        total.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return total.hexdigest()


def read_state(path: Path, remedy: str = "") -> dict[str, Tensor]:
    """The tensors of a state dictionary by name; what holds more than tensors and plain values is refused.

    Arguments: path, .safetensors or what torch saved; remedy, words for the end of that refusal.
    """
    if path.suffix == ".safetensors":
        try:
            return load_tensors(path)[1]
        except InputError as error:
            raise InputError(f"{path} cannot be read as safetensors: {error}") from error
    try:
        with warnings.catch_warnings(action="ignore"):  # of other versions of the format
            content = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} holds more than tensors, and can run any code when it is opened; save its state_dict() alone, as "
            f"safetensors or by torch.save{remedy}"
        ) from error
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(f"{path} cannot be read as weights of torch: {str(error).splitlines()[0]}") from error
    for key in ("state_dict", "params_ema", "params"):  # of Lightning and of BasicSR
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(isinstance(v, Tensor) for v in content.values()):
        raise InputError(f"{path} holds no state dictionary, which is tensors by name")
    return {str(key): value for key, value in content.items()}
