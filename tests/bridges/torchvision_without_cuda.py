# What `make test-peers` adds to torchvision/extension.py of its own copy. PyPI's wheel is for a torch with CUDA: with
# one without, its compiled operators cannot be loaded, and its import ends where it describes two of them. They are
# declared here; deepinv calls neither.
if not _has_ops():  # noqa: F821 (of the file that this is added to)
    import torch

    _declared = torch.library.Library("torchvision", "DEF")
    _declared.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _declared.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
