"""Inference only: BatchNorms become part of the convolutions before them."""

import re

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dsl.models.fcos import FCOS
from dsl.models.resnet import ResNet


def fold_norms(network: FCOS) -> None:
    """Fold the BatchNorms of a ResNet of ours, which must be in eval mode; it cannot train after.

    Other backbones stay as they are: theirs are fused with activations, or see a hidden state
    between convolution and norm.
    """
    if not isinstance(network.backbone, ResNet):
        return
    for module in list(network.backbone.modules()):
        for conv_name, norm_name in _pairs(module):
            conv, norm = module.get_submodule(conv_name), module.get_submodule(norm_name)
            if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
                setattr(module, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(module, norm_name, nn.Identity())


def _pairs(module: nn.Module) -> list[tuple[str, str]]:
    """Names of convolutions and of the norms that follow them: conv1 and bn1, or 0 and 1."""
    names = [name for name, _ in module.named_children()]
    if names == ["0", "1"]:  # a downsampling skip
        return [("0", "1")]
    numbers = [name[4:] for name in names if re.fullmatch(r"conv\d", name)]
    return [(f"conv{n}", f"bn{n}") for n in numbers if f"bn{n}" in names]
