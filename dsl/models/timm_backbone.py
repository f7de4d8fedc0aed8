"""Any timm model that yields features at strides 8, 16 and 32, through `features_only`."""

import copy
import difflib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from dsl.errors import UserError
from dsl.models.backbone import Backbone, Pyramid

STRIDES = (8, 16, 32)
AT_ONCE = 16  # images a classifier looks at: few, so that a CPU's caches hold what it makes of them

# Networks of ours on timm's plans: small enough to train from scratch on two cores in minutes.
SLIM: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet10t_half": ("resnet10t", {"channels": (32, 64, 128, 256), "stem_width": 16})
}

# The embedded weights come from TensorFlow, where bytes become (x - 127) / 128; timm's own
# numbers for this model are rounded.
_PIXELS: dict[str, tuple[tuple[float, float, float], tuple[float, float, float]]] = {
    "tf_efficientnet_lite0": ((0.498, 0.498, 0.498), (0.502, 0.502, 0.502))
}


class TimmBackbone(Backbone):
    """A timm feature extractor; `weights` is a state dict under timm's names, None for random."""

    def __init__(self, name: str, weights: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        name, plan = SLIM.get(name, (name, {}))
        _refuse_unknown(name, field="model.backbone")
        try:
            info: Any = timm.create_model(name, features_only=True, **plan).feature_info
            reductions = list(info.reduction())
            levels = tuple(reductions.index(stride) for stride in STRIDES)
        except (RuntimeError, ValueError, AttributeError) as error:
            raise UserError(
                f"model.backbone: {name!r} gives no features at strides 8, 16 and 32 ({error})"
            ) from error
        # Built anew with these levels only, so that layers past the last one do not exist at all:
        # a parameter without gradient would stop DDP.
        given: dict[str, Any] = {}
        if weights is not None:
            given = {"pretrained": True, "pretrained_cfg_overlay": {"state_dict": dict(weights)}}
        with _quiet_timm():
            net: Any = timm.create_model(
                name, features_only=True, out_indices=levels, **plan, **given
            )
        self.net: nn.Module = net
        c3, c4, c5 = net.feature_info.channels()
        self.out_channels = (c3, c4, c5)
        cfg = net.pretrained_cfg
        self.pixel_mean, self.pixel_std = _PIXELS.get(name, (cfg["mean"], cfg["std"]))
        early = [i for i, stride in enumerate(reductions) if stride <= 4]
        self._last_early = info.module_name(early[-1]) if early else ""

    def forward(self, x: Tensor) -> Pyramid:  # (N, 3, H, W)
        c3, c4, c5 = self.net(x)
        return c3, c4, c5

    def first_stages(self) -> list[nn.Module]:
        return _up_to(self.net, self._last_early) or []


class TimmClassifier(nn.Module):
    """The whole of a timm network: what it was trained to tell apart, as one vector an image."""

    def __init__(self, name: str, weights: Mapping[str, Tensor] | None = None) -> None:
        super().__init__()
        _refuse_unknown(name, field="teaching.metanet")
        net: Any = timm.create_model(name)
        if weights is not None:
            net.load_state_dict(weights)
        self.net = _folded(net.eval())
        self.width: int = net.num_classes
        cfg = net.pretrained_cfg
        self.pixel_mean, self.pixel_std = _PIXELS.get(name, (cfg["mean"], cfg["std"]))

    def forward(self, x: Tensor) -> Tensor:  # (N, 3, H, W) -> (N, width)
        pictures = x.contiguous(memory_format=torch.channels_last)
        return torch.cat([self.net(few) for few in torch.split(pictures, AT_ONCE)])


def _folded(net: nn.Module) -> nn.Module:
    """The network for inference, its BatchNorms part of the convolutions before them. In timm these
    are neighbours; a network where some are not, so that it would say something else, stays as it
    is."""
    folded = copy.deepcopy(net)
    for module in list(folded.modules()):
        for (conv_name, conv), (norm_name, norm) in pairwise(list(module.named_children())):
            if isinstance(conv, nn.Conv2d) and isinstance(norm, BatchNormAct2d):
                setattr(module, conv_name, fuse_conv_bn_eval(conv, norm))
                setattr(module, norm_name, norm.act)
    picture = torch.linspace(-2, 2, 3 * 64 * 64).view(1, 3, 64, 64)
    with torch.no_grad():
        wanted, said = net(picture), folded(picture)
    return folded if torch.allclose(wanted, said, rtol=1e-3, atol=1e-3) else net


def _refuse_unknown(name: str, *, field: str) -> None:
    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"{field}: {name!r} is neither a ResNet of ours nor in timm{hint}")


@contextmanager
def _quiet_timm() -> Iterator[None]:
    """timm warns that a feature extractor has no use for the classifier's weights."""
    logger = logging.getLogger("timm")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def _up_to(module: nn.Module, last: str) -> list[nn.Module] | None:
    """Children in order of execution up to the one named `last`; None where it is not found.

    timm keeps some networks nested ("blocks.1") and flattens others ("blocks_1").
    """
    found: list[nn.Module] = []
    for name, child in module.named_children():
        if name in (last, last.replace(".", "_")):
            return [*found, child]
        if last.startswith(name + "."):
            inner = _up_to(child, last.removeprefix(name + "."))
            return None if inner is None else found + inner
        found.append(child)
    return None
