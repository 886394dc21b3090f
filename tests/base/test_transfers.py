"""Parts of volumes to a GPU and back."""

import pytest
import torch

from plugstream.base import transfers


def test_on_the_cpu_a_part_is_itself():
    part = torch.rand(3, 4)
    assert transfers.bring(part, torch.device("cpu")) is part


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.complex128, torch.uint8])
def test_pieces_arrive_whole_there_and_back(dtype, monkeypatch):
    """Several pieces, the last of them shorter, of a part that is not contiguous, while the GPU is at work."""
    monkeypatch.setattr(transfers, "_PIECE", 1 << 12)
    whole = (100 * torch.rand(37, 30, 51)).to(dtype)
    busy = torch.rand(2000, 2000, device="cuda")
    for _ in range(3):
        busy = busy @ busy
        there = transfers.bring(whole[:, 3:-2], torch.device("cuda"))
        assert torch.equal(there.cpu(), whole[:, 3:-2])
        back = torch.zeros_like(whole)
        ready = torch.cuda.current_stream().record_event()
        transfers.bring_back(there, ready, 0, transfers.MemoryTarget(back[:, 3:-2]))
        assert torch.equal(back[:, 3:-2], whole[:, 3:-2])
