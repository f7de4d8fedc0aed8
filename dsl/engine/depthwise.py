"""Depthwise convolutions on a CPU in bfloat16 whose backward pass is as quick as their forward.

The gradients of 5x5 and of strided depthwise convolutions take oneDNN 20 to 60 times as long in
bfloat16 as the forward pass. Both are sums that its quick kernels can do: that of the image is a
depthwise convolution of the spread gradient with the turned kernel, and the taps of a 5x5 kernel
are those of four 3x3 ones that lie two apart. Figures are in docs/decisions.md.
"""

from typing import Any

import torch
from timm.layers.conv2d_same import Conv2dSame
from timm.layers.padding import pad_same
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

LAST = torch.channels_last


def quicken_depthwise(network: nn.Module) -> None:
    """Give all convolutions that gain the quick way; parameters and their names stay."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d) and type(module) in _QUICK and _fits(module):
            module.__class__ = _QUICK[type(module)]


def _fits(conv: nn.Conv2d) -> bool:
    alone = conv.groups == conv.in_channels == conv.out_channels > 1
    plain = conv.bias is None and conv.dilation == (1, 1) and conv.padding_mode == "zeros"
    slow = (conv.kernel_size, conv.stride) in (((5, 5), (1, 1)), ((5, 5), (2, 2)), ((3, 3), (2, 2)))
    return alone and plain and slow and not isinstance(conv.padding, str)


class QuickDepthwise(nn.Conv2d):
    """A depthwise convolution that takes the quick way where it is shorter."""

    def forward(self, image: Tensor) -> Tensor:
        if not _gains(image):
            return super().forward(image)
        return _quick(image, self.weight, self.stride[0], self.padding)


class QuickDepthwiseSame(Conv2dSame):
    """The same for networks from TensorFlow, which pad at the right and below first."""

    def forward(self, image: Tensor) -> Tensor:
        if not _gains(image):
            output: Tensor = super().forward(image)  # type: ignore[no-untyped-call]
            return output
        padded = pad_same(image, list(self.kernel_size), list(self.stride))
        return _quick(padded, self.weight, self.stride[0], (0, 0))


_QUICK: dict[type[nn.Conv2d], type[nn.Conv2d]] = {
    nn.Conv2d: QuickDepthwise, Conv2dSame: QuickDepthwiseSame,
}  # fmt: skip


def _gains(image: Tensor) -> bool:
    """Only the backward pass is slow, and only in bfloat16 on a CPU."""
    if image.device.type != "cpu" or not torch.is_grad_enabled():
        return False
    low = torch.is_autocast_enabled("cpu") and torch.get_autocast_dtype("cpu") == torch.bfloat16
    return low or image.dtype == torch.bfloat16


def _quick(image: Tensor, weight: Tensor, stride: int, padding: Any) -> Tensor:
    # Cast here and not inside, so that the gradient of a weight in fp32 is one too.
    image, weight = image.to(torch.bfloat16), weight.to(torch.bfloat16)
    output: Tensor = _Depthwise.apply(image, weight, stride, padding)
    return output


class _Depthwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, image: Tensor, weight: Tensor, stride: int, padding: Any) -> Tensor:
        ctx.save_for_backward(image, weight)
        ctx.stride, ctx.padding = stride, padding
        return F.conv2d(image, weight, None, stride, padding, groups=len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        image, weight = ctx.saved_tensors
        grad = grad.to(weight.dtype).contiguous(memory_format=LAST)
        (below, right), stride = ctx.padding, ctx.stride
        of_image, of_weight = None, None
        if ctx.needs_input_grad[0]:
            of_image = _image_gradient(grad, weight, stride, ctx.padding, image.shape)
        if ctx.needs_input_grad[1]:
            padded = F.pad(image, (right, right, below, below)) if below or right else image
            of_weight = _weight_gradient(grad, padded, weight, stride)
        return of_image, of_weight, None, None


def _image_gradient(
    grad: Tensor, weight: Tensor, stride: int, padding: tuple[int, int], shape: torch.Size
) -> Tensor:
    """The gradient, spread to the steps of the image, convolved with the turned kernel."""
    below, right = padding
    images, channels, height, width = shape
    side = weight.shape[-1]
    if stride > 1:
        spread = grad.new_zeros(
            images, height + 2 * below - side + 1, width + 2 * right - side + 1, channels
        ).permute(0, 3, 1, 2)
        spread[:, :, ::stride, ::stride] = grad
        grad = spread
    turned = weight.flip(2, 3).contiguous(memory_format=LAST)
    around = (side - 1 - below, side - 1 - right)
    return F.conv2d(grad, turned, None, 1, around, groups=channels)


def _weight_gradient(grad: Tensor, padded: Tensor, weight: Tensor, stride: int) -> Tensor:
    """Blocks of 3x3 taps, each the gradient of a 3x3 kernel on a shifted image."""
    height, width = (stride * (side - 1) + 3 for side in grad.shape[2:])
    taken = torch.empty_like(weight)
    starts = range(0, weight.shape[-1] - 2, 2)  # 0; 0 and 2
    for down in starts:
        for right in starts:
            block = (..., slice(down, down + 3), slice(right, right + 3))
            shown = padded[:, :, down : down + height, right : right + width]
            taken[block] = torch.ops.aten.convolution_backward(
                grad, shown.contiguous(memory_format=LAST),
                weight[block].contiguous(memory_format=LAST), None, (stride, stride), (0, 0),
                (1, 1), False, (0, 0), len(weight), (False, True, False),
            )[1]  # fmt: skip
    return taken
