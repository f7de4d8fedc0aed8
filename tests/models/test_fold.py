"""Folding changes the work, not the result."""

import torch
from torch import nn

from dsl.models.fcos import FCOS
from dsl.models.fold import fold_norms
from dsl.models.resnet import ResNet
from dsl.models.timm_backbone import TimmBackbone


def shaken(network: FCOS) -> FCOS:
    """With statistics that are not those of a new BatchNorm."""
    torch.manual_seed(0)
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return network.eval()


def test_a_folded_network_says_the_same() -> None:
    for name in ("resnet18", "resnet50"):
        network = shaken(FCOS(ResNet(name), 4, channels=64, num_convs=1))
        images = torch.randn(1, 3, 64, 96)
        with torch.no_grad():
            before = network.dense(images)
            fold_norms(network)
            after = network.dense(images)
        assert not any(isinstance(m, nn.BatchNorm2d) for m in network.modules())
        for one, other in zip(before.class_logits, after.class_logits, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_other_backbones_stay_as_they_are() -> None:
    network = shaken(FCOS(TimmBackbone("resnet10t_half"), 4, channels=64, num_convs=1))
    count = sum(isinstance(m, nn.BatchNorm2d) for m in network.modules())
    fold_norms(network)
    assert sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()) == count > 0
