"""What every backbone promises: pixels in, features at strides 8, 16 and 32 out.

A backbone says how its input is normalised, because pretrained weights fix that; and it knows
which of its parts stay frozen when its weights are pretrained.
"""

from torch import Tensor, nn

Pyramid = tuple[Tensor, Tensor, Tensor]  # c3, c4, c5 at strides 8, 16, 32


class Backbone(nn.Module):
    """Base of all backbones; subclasses fill the fields and write `forward`."""

    out_channels: tuple[int, int, int]
    pixel_mean: tuple[float, float, float]  # of RGB in 0..1
    pixel_std: tuple[float, float, float]

    def __init__(self) -> None:
        super().__init__()
        self.norms_frozen = False

    def forward(self, x: Tensor) -> Pyramid:  # (N, 3, H, W), normalised
        raise NotImplementedError

    def first_stages(self) -> list[nn.Module]:
        """The stem and everything else up to stride 4."""
        raise NotImplementedError

    def freeze(self) -> None:
        """Fix what pretrained weights should keep: all BatchNorms, the stem and stage 1.

        A detection batch is too small and too varied to re-estimate ImageNet's statistics.
        """
        self.norms_frozen = True
        for module in self.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.requires_grad_(False)
        for module in self.first_stages():
            module.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> "Backbone":
        super().train(mode)
        if self.norms_frozen:
            for module in self.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.eval()
        return self
