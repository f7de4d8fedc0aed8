"""3x3 convolutions on a CPU in fp32 with a quarter of the multiplications.

Winograd's minimal filtering F(4x4, 3x3): 4x4 outputs from 6x6 inputs take 36 products instead of
144. Tiles go through a fixed linear map, 36 matrix products do the work of the convolution, and
another fixed map gives the outputs; the backward pass is the same in reverse. It differs from the
plain convolution in rounding alone, by about 1e-5 of the largest value. GPU libraries do this by
themselves, oneDNN does not; figures are in docs/decisions.md.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad

# The maps in one dimension, for the points 0, 1, -1, 2, -2 and infinity.
_INPUT = torch.tensor([
    [4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0],
    [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0], [0, 4, 0, -5, 0, 1],
])  # fmt: skip
_WEIGHT = torch.tensor([[6, 0, 0], [-4, -4, -4], [-4, 4, -4], [1, 2, 4], [1, -2, 4], [0, 0, 24]])
_OUTPUT = torch.tensor(
    [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]]
)
# In two: (36, 36), (36, 9) and (16, 36).
INPUT, WEIGHT, OUTPUT = (torch.kron(m, m).float() for m in (_INPUT, _WEIGHT / 24, _OUTPUT))

# Below these the maps may cost more than the products save. Wide layers gain from fewer tiles on; a
# forward alone saves less.
MIN_CHANNELS, WIDE = 80, 256
MIN_TILES, MIN_TILES_WIDE, MIN_TILES_FORWARD = 100, 25, 128


def quicken(network: nn.Module) -> None:
    """Give all convolutions that may gain the quick way; parameters and their names stay."""
    for module in network.modules():
        if type(module) is nn.Conv2d and _fits(module):
            module.__class__ = QuickConv2d


def share_maps(method: nn.Module) -> None:
    """In a call of `method`, which changes no weight, bring each weight that learns onto tiles
    once: for all levels of the pyramid and all views of the step."""
    method.register_forward_pre_hook(lambda *_: _SHARED.append({}))
    method.register_forward_hook(lambda *_: _SHARED.clear(), always_call=True)


# One dictionary while such a call lasts: weight to (O, 36, C).
_SHARED: list[dict[Tensor, Tensor]] = []


def _fits(conv: nn.Conv2d) -> bool:
    shape = (conv.kernel_size, conv.stride, conv.padding, conv.dilation)
    plain = shape == ((3, 3), (1, 1), (1, 1), (1, 1)) and conv.groups == 1
    return plain and conv.padding_mode == "zeros" and min(conv.weight.shape[:2]) >= MIN_CHANNELS


class QuickConv2d(nn.Conv2d):
    """A 3x3 convolution that takes the quick way where it is shorter."""

    def forward(self, image: Tensor) -> Tensor:
        if self._gains(image):
            output: Tensor = _Winograd.apply(image, self.weight, self.bias, self._maps())
            return output
        return super().forward(image)

    def _maps(self) -> Tensor:
        """The weight on tiles, (O, 36, C)."""
        # What no backward pass keeps is not kept for the rest of the call either.
        if not _SHARED or not torch.is_grad_enabled():
            return _weight_on_tiles(self.weight)
        if self.weight not in _SHARED[0]:
            _SHARED[0][self.weight] = _weight_on_tiles(self.weight)
        return _SHARED[0][self.weight]

    def _gains(self, image: Tensor) -> bool:
        # An exported file holds the convolution itself.
        tracing = torch.jit.is_tracing()  # type: ignore[attr-defined, no-untyped-call]
        if tracing or torch.compiler.is_compiling():
            return False
        if image.device.type != "cpu" or image.dtype != torch.float32:
            return False
        images, rows, columns = _grid(image.shape)
        enough = MIN_TILES_WIDE if min(self.weight.shape[:2]) >= WIDE else MIN_TILES
        if not torch.is_grad_enabled():
            enough = MIN_TILES_FORWARD
        return images * rows * columns >= enough and not torch.is_autocast_enabled("cpu")


class _Winograd(torch.autograd.Function):
    """N images, C channels in, O out, T tiles."""

    @staticmethod
    def forward(
        ctx: Any, image: Tensor, weight: Tensor, bias: Tensor | None, maps: Tensor
    ) -> Tensor:
        """`maps`: the weight on tiles; gradients go to the weight itself."""
        inputs = _on_tiles(INPUT, _cut(image))  # (T, 36, C)
        products = torch.bmm(inputs.transpose(0, 1), maps.permute(1, 2, 0))  # (36, T, O)
        outputs = _on_tiles(OUTPUT, products.transpose(0, 1))  # (T, 16, O)
        if bias is not None:
            outputs += bias
        ctx.save_for_backward(inputs, maps)
        ctx.shape = image.shape
        return _join(outputs, image.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        inputs, maps = ctx.saved_tensors
        of_image, of_weight, of_bias = None, None, None
        products = _on_tiles(OUTPUT.T, _split(grad))  # (T, 36, O)
        if ctx.needs_input_grad[0]:
            tiles = torch.bmm(products.transpose(0, 1), maps.transpose(0, 1))  # (36, T, C)
            of_image = _uncut(_on_tiles(INPUT.T, tiles.transpose(0, 1)), ctx.shape)
        if ctx.needs_input_grad[1]:
            of_maps = torch.bmm(products.permute(1, 2, 0), inputs.transpose(0, 1))  # (36, O, C)
            of_weight = _on_tiles(WEIGHT.T, of_maps.transpose(0, 1))  # (O, 9, C)
            of_weight = of_weight.view(-1, 3, 3, maps.shape[2]).permute(0, 3, 1, 2)
        if ctx.needs_input_grad[2]:
            of_bias = grad.sum(dim=(0, 2, 3))
        return of_image, of_weight, of_bias, None


def _on_tiles(maps: Tensor, tiles: Tensor) -> Tensor:
    """(a, b) on (T, b, C): (T, a, C)."""
    return torch.bmm(maps.expand(len(tiles), -1, -1), tiles)


def _weight_on_tiles(weight: Tensor) -> Tensor:
    """(O, C, 3, 3) to (O, 36, C)."""
    return _on_tiles(WEIGHT, weight.detach().permute(0, 2, 3, 1).flatten(1, 2))


def _grid(shape: torch.Size) -> tuple[int, int, int]:
    """Images, and rows and columns of tiles that cover them."""
    images, _, height, width = shape
    return images, -(-height // 4), -(-width // 4)


def _cut(image: Tensor) -> Tensor:
    """The overlapping 6x6 tiles of a padded image: (N, C, H, W) to (T, 36, C)."""
    images, rows, columns = _grid(image.shape)
    _, channels, height, width = image.shape
    below, right = 4 * rows + 1 - height, 4 * columns + 1 - width
    padded = pad(image.permute(0, 2, 3, 1), (0, 0, 1, right, 1, below)).contiguous()
    of_image, of_row, of_column, _ = padded.stride()
    tiles = padded.as_strided(
        (images, rows, columns, 6, 6, channels),
        (of_image, 4 * of_row, 4 * of_column, of_row, of_column, 1),
    )
    return tiles.reshape(-1, 36, channels)


def _uncut(tiles: Tensor, shape: torch.Size) -> Tensor:
    """The reverse of `_cut`: where tiles overlap, they add up."""
    (images, rows, columns), (_, channels, height, width) = _grid(shape), shape
    tiles = tiles.view(images, rows, columns, 6, 6, channels).transpose(2, 3)
    padded = tiles.new_zeros(images, rows + 1, 4, columns + 1, 4, channels)
    # A tile's last two rows and columns lie on the tiles below and to the right of it.
    padded[:, :rows, :, :columns] += tiles[:, :, :4, :, :4]
    padded[:, 1:, :2, :columns] += tiles[:, :, 4:, :, :4]
    padded[:, :rows, :, 1:, :2] += tiles[:, :, :4, :, 4:]
    padded[:, 1:, :2, 1:, :2] += tiles[:, :, 4:, :, 4:]
    whole = padded.view(images, 4 * rows + 4, 4 * columns + 4, channels)
    return whole[:, 1 : height + 1, 1 : width + 1].permute(0, 3, 1, 2)


def _join(tiles: Tensor, shape: torch.Size) -> Tensor:
    """4x4 tiles (T, 16, O) side by side: (N, O, H, W) in channels_last."""
    (images, rows, columns), (_, _, height, width) = _grid(shape), shape
    out = tiles.shape[2]
    whole = tiles.view(images, rows, columns, 4, 4, out).transpose(2, 3)
    whole = whole.reshape(images, 4 * rows, 4 * columns, out)[:, :height, :width]
    return whole.permute(0, 3, 1, 2)


def _split(image: Tensor) -> Tensor:
    """The reverse of `_join`."""
    images, rows, columns = _grid(image.shape)
    _, out, height, width = image.shape
    whole = pad(image.permute(0, 2, 3, 1), (0, 0, 0, 4 * columns - width, 0, 4 * rows - height))
    return whole.reshape(images, rows, 4, columns, 4, out).transpose(2, 3).reshape(-1, 16, out)
