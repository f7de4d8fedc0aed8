"""Recurrent layer aggregation: a hidden state beside a backbone's residual blocks (DSL, Eq. 9-10).

Each block sees the state h, and its residual branch y (before the skip is added) updates it. The
plain network keeps its modules, names and weights; all that is new lives under `aggregation` and
starts without effect: the outputs are exactly the plain ones. Only what reaches an output exists,
because DDP stops at a parameter without gradient: the first block gets no h (it is zero), and
nothing updates an h that no block will see. Knows nothing of detectors and teachers.
"""

from typing import Any, Literal, NamedTuple

import timm.models.resnet as timm_resnet
import torch.nn.functional as F
import torchvision.models.resnet as torchvision_resnet
from timm.models._efficientnet_blocks import InvertedResidual
from torch import Tensor, nn

from dsl.errors import UserError
from dsl.models.backbone import Backbone, Pyramid
from dsl.models.resnet import RESNETS, ResNet
from dsl.models.timm_backbone import TimmBackbone

SUPPORTED = (*RESNETS, "resnet10t", "resnet10t_half", "tf_efficientnet_lite0")

State = tuple[Tensor, Tensor | None]  # x, and h where there is one


class Layout(NamedTuple):
    """A network as names of its modules; stem and first stage are all there is up to stride 4."""

    prefix: str
    stem: str
    stages: str  # each a sequence of aggregated blocks
    taps: tuple[int, int, int]  # the stages that end in c3, c4, c5


_LAYERS = "layer1 layer2 layer3 layer4"
_LAYOUTS = {
    "resnet": Layout("", "conv1 bn1 relu maxpool", _LAYERS, (1, 2, 3)),
    "resnet10t": Layout("net.", "conv1 bn1 act1 maxpool", _LAYERS, (1, 2, 3)),
    "tf_efficientnet_lite0": Layout(  # blocks.0 has no expansion: its first conv is depthwise
        "net.", "conv_stem bn1 blocks.0",
        "blocks.1 blocks.2 blocks.3 blocks.4 blocks.5 blocks.6", (1, 3, 5),
    ),
}  # fmt: skip

# Block -> its residual branch from the first conv to the last BatchNorm, and what follows the skip.
_BRANCHES: dict[type[nn.Module], tuple[str, str]] = {
    torchvision_resnet.BasicBlock: ("conv1 bn1 relu conv2 bn2", "relu"),
    torchvision_resnet.Bottleneck: ("conv1 bn1 relu conv2 bn2 relu conv3 bn3", "relu"),
    timm_resnet.BasicBlock: ("conv1 bn1 drop_block act1 aa conv2 bn2", "act2"),
    InvertedResidual: ("conv_pw bn1 conv_dw bn2 aa se conv_pwl bn3", ""),
}


class Block:
    """A residual block taken apart. Only a view: it is made anew in each pass and owns nothing."""

    def __init__(self, block: Any) -> None:
        branch, self._act = _BRANCHES[type(block)]
        self._block = block
        self.first, *self._rest = [getattr(block, name) for name in branch.split()]
        self.channels: int = self._rest[-1].num_features
        self.stride: int = max(getattr(m, "stride", (1,))[0] for m in (self.first, *self._rest))

    def branch(self, x: Tensor, beside: Tensor | None = None) -> Tensor:
        """The residual branch y of `x`; `beside` is added to what the first conv gives."""
        y: Tensor = self.first(x) if beside is None else self.first(x) + beside
        for module in self._rest:
            y = module(y)
        return y

    def join(self, y: Tensor, x: Tensor) -> Tensor:
        """The block's output from its branch `y` and its input `x`."""
        if getattr(self._block, "has_skip", True):
            downsample = getattr(self._block, "downsample", None)
            y = y + (x if downsample is None else downsample(x))
        return getattr(self._block, self._act)(y) if self._act else y


class Concat(nn.Module):
    """One stage of h <- g2(tanh(BN(pool(h) + g1(y)))), g1 `project`, g2 `mix`, one BN per block.

    A block's first conv sees concat(x, h), written as conv(x) + extra(h): that is equal, the plain
    weights keep their shape and may stay frozen, and extra = 0 is the plain network.
    """

    def __init__(self, blocks: list[Block], width: int, *, first: bool, last: bool) -> None:
        super().__init__()
        seeing = range(1 if first else 0, len(blocks))
        self.extra = nn.ModuleDict({str(i): _beside(blocks[i].first, width) for i in seeing})
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(len(blocks) - last))
        if self.norms:
            self.project = nn.Conv2d(blocks[0].channels, width, 1, bias=False)
            self.mix = nn.Conv2d(width, width, 3, padding=1, bias=False)

    def forward(self, x: Tensor, h: Tensor | None, blocks: list[Block]) -> State:
        for index, block in enumerate(blocks):  # x (N, C, H, W), h (N, width, H, W)
            y = block.branch(x, None if h is None else self.extra[str(index)](h))
            if index < len(self.norms):
                new = self.project(y)  # (N, width, H / stride, W / stride)
                new = new if h is None else new + _pool(h, block.stride)
                h = self.mix(self.norms[index](new).tanh())
            x = block.join(y, x)
        return x, h


def _beside(conv: Any, width: int) -> nn.Conv2d:
    """The input channels for h in `conv`, zero at first."""
    shape = conv.kernel_size, conv.stride, conv.padding
    extra = nn.Conv2d(width, conv.out_channels, *shape, bias=False)
    nn.init.zeros_(extra.weight)
    return extra


def _pool(h: Tensor, stride: int) -> Tensor:
    """To ceil(side / stride), as the convs: a window past an edge averages what lies inside."""
    return h if stride == 1 else F.avg_pool2d(h, stride, ceil_mode=True, count_include_pad=False)


class Add(nn.Module):
    """One stage of the paper's text: x' = theta[x + h] + x, h' = g2[g1[theta[x + h]] + h].

    h has the stage's channels, so it starts anew in each stage.
    """

    def __init__(self, blocks: list[Block]) -> None:
        super().__init__()
        channels = blocks[0].channels
        if len(blocks) > 1:
            self.project = nn.Conv2d(channels, channels, 1, bias=False)
            # Depthwise: a dense 3x3 in all stages would add 50 M to the 24 M of a ResNet-50.
            self.mix = nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)
            nn.init.zeros_(self.mix.weight)

    def forward(self, x: Tensor, h: Tensor | None, blocks: list[Block]) -> State:
        for index, block in enumerate(blocks):  # x and, where there is one, h (N, C, H, W)
            y = block.branch(x if h is None else x + h)
            if index < len(blocks) - 1:
                h = self.mix(self.project(y) if h is None else self.project(y) + h)
            x = block.join(y, x)
        return x, None


class LayerAggregation(Backbone):
    """A plain backbone and the state beside it; takes over the modules of `plain`."""

    def __init__(
        self, plain: Backbone, *, form: Literal["concat", "add"] = "concat", width: int = 32
    ) -> None:
        super().__init__()
        name = _name(plain)
        self._layout = _LAYOUTS[name]
        for child_name, child in plain.named_children():
            self.add_module(child_name, child)
        self.out_channels = plain.out_channels
        self.pixel_mean, self.pixel_std = plain.pixel_mean, plain.pixel_std
        stages = self._stages()
        if form == "add" and all(len(blocks) == 1 for blocks in stages):
            raise UserError(
                f"model.aggregation: 'add' has nothing to aggregate in {name!r}, where every stage "
                "is a single block; choose 'concat'"
            )
        self.aggregation = nn.ModuleList(
            Add(s)
            if form == "add"
            else Concat(s, width, first=s is stages[0], last=s is stages[-1])
            for s in stages
        )
        self.norms_frozen = plain.norms_frozen
        self.train(plain.training)

    def forward(self, x: Tensor) -> Pyramid:  # (N, 3, H, W), normalised
        for module in self._modules_at(self._layout.stem):
            x = module(x)
        outputs: list[Tensor] = []
        h: Tensor | None = None
        for stage, blocks in zip(self.aggregation, self._stages(), strict=True):
            x, h = stage(x, h, blocks)
            outputs.append(x)
        c3, c4, c5 = (outputs[i] for i in self._layout.taps)
        return c3, c4, c5

    def first_stages(self) -> list[nn.Module]:
        return [*self._modules_at(self._layout.stem), *self._modules_at(self._layout.stages)[:1]]

    def freeze(self) -> None:
        """As every backbone; but what is new has nothing to keep, and trains in every stage."""
        super().freeze()
        self.aggregation.requires_grad_(True)

    def train(self, mode: bool = True) -> "LayerAggregation":
        super().train(mode)
        self.aggregation.train(mode)  # its BatchNorms gather statistics among frozen ones
        return self

    def extra_parameters(self) -> int:
        """How many parameters the plain network does not have."""
        return sum(p.numel() for p in self.aggregation.parameters())

    def _modules_at(self, names: str) -> list[nn.Module]:
        return [self.get_submodule(self._layout.prefix + name) for name in names.split()]

    def _stages(self) -> list[list[Block]]:
        stages = self._modules_at(self._layout.stages)
        return [[Block(block) for block in stage.children()] for stage in stages]


def _name(plain: Backbone) -> str:
    """The key of its layout; a UserError for a network that we do not know."""
    name = "resnet" if isinstance(plain, ResNet) else type(plain).__name__
    if isinstance(plain, TimmBackbone):
        config: Any = plain.net.pretrained_cfg
        name = config["architecture"]
    if name not in _LAYOUTS:
        raise UserError(
            f"model.aggregation: not for backbone {name!r}; choose from {', '.join(SUPPORTED)}"
        )
    return name
