"""Feature pyramid: P3-P5 from C3-C5 top-down, P6 and P7 by striding on from P5."""

from torch import Tensor, nn
from torch.nn import functional as F

from dsl.models.backbone import Pyramid

STRIDES = (8, 16, 32, 64, 128)


class FPN(nn.Module):
    """Five levels of equal width."""

    def __init__(self, in_channels: tuple[int, int, int], channels: int) -> None:
        super().__init__()
        self.lateral = nn.ModuleList(nn.Conv2d(c, channels, 1) for c in in_channels)
        self.output = nn.ModuleList(nn.Conv2d(channels, channels, 3, padding=1) for _ in range(3))
        self.p6 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        self.p7 = nn.Conv2d(channels, channels, 3, stride=2, padding=1)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_uniform_(module.weight, a=1)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, features: Pyramid) -> list[Tensor]:
        """C3, C4, C5 -> P3 ... P7, each (N, channels, H_v, W_v)."""
        m5 = self.lateral[2](features[2])
        m4 = self.lateral[1](features[1]) + F.interpolate(m5, features[1].shape[-2:])
        m3 = self.lateral[0](features[0]) + F.interpolate(m4, features[0].shape[-2:])
        p3, p4, p5 = (conv(m) for conv, m in zip(self.output, (m3, m4, m5), strict=True))
        p6 = self.p6(p5)
        return [p3, p4, p5, p6, self.p7(F.relu(p6))]
