"""Layer aggregation: nothing at first, then the recurrence, against loops from the formulas."""

from collections.abc import Callable
from copy import deepcopy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dsl.errors import UserError
from dsl.models.backbone import Backbone
from dsl.models.resnet import RESNETS, ResNet
from dsl.models.rla import SUPPORTED, LayerAggregation
from dsl.models.timm_backbone import TimmBackbone

SIZES = [(64, 96), (75, 101)]  # even, and odd at every stride
CASES = [
    (name, form)
    for name in SUPPORTED
    for form in ("concat", "add")
    if not (form == "add" and name.startswith("resnet10t"))
]
# One of each kind of block; resnet34 and 101 differ from these in length alone.
KINDS = [case for case in CASES if case[0] not in ("resnet34", "resnet101", "resnet10t")]


def randomise(module: nn.Module) -> None:
    """Every tensor gets values, also those that start at 0 or 1: residual branches start at 0."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator) / 3
            if name.endswith("running_var"):
                noise = noise.abs()
            elif tensor.dim() == 4:  # by fan-in, or frozen BatchNorms would let it explode
                noise = noise / tensor[0].numel() ** 0.5
            tensor.add_(noise)


def plain_network(name: str) -> Backbone:
    torch.manual_seed(0)
    plain: Backbone = ResNet(name) if name in RESNETS else TimmBackbone(name)
    randomise(plain)
    return plain


def images(height: int, width: int) -> Tensor:
    return torch.randn(2, 3, height, width, generator=torch.Generator().manual_seed(2))


def modes(network: nn.Module) -> set[bool]:
    return {m.training for m in network.modules() if isinstance(m, nn.BatchNorm2d)}


def trainable(network: nn.Module) -> set[str]:
    return {name for name, parameter in network.named_parameters() if parameter.requires_grad}


def backward(network: Backbone) -> None:
    network.zero_grad()
    generator = torch.Generator().manual_seed(3)
    for output in network(images(64, 96)):
        output.mul(torch.randn(output.shape, generator=generator)).sum().backward(retain_graph=True)


# --- at the start: the plain network -------------------------------------------------------------


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize(("name", "form"), CASES)
def test_starts_as_exactly_the_plain_network(name: str, form: str, training: bool) -> None:
    plain = plain_network(name).train(training)
    ours = LayerAggregation(deepcopy(plain), form=form)
    assert ours.training == training
    for size in SIZES:
        with torch.no_grad():
            found, wanted = ours(images(*size)), plain(images(*size))
        assert tuple(level.shape[1] for level in found) == ours.out_channels
        for ours_level, plain_level in zip(found, wanted, strict=True):
            assert plain_level.std() > 0.01
            assert torch.equal(ours_level, plain_level)  # values and shapes
    state = ours.state_dict()  # running statistics included
    assert all(torch.equal(state[key], tensor) for key, tensor in plain.state_dict().items())


@pytest.mark.parametrize(("name", "form"), KINDS)
def test_a_plain_checkpoint_lacks_nothing_but_the_aggregation(name: str, form: str) -> None:
    plain = plain_network(name).eval()
    other: Backbone = ResNet(name) if name in RESNETS else TimmBackbone(name)
    ours = LayerAggregation(other, form=form).eval()
    result = ours.load_state_dict(plain.state_dict(), strict=False)
    assert result.unexpected_keys == []
    assert result.missing_keys
    assert all(key.startswith("aggregation.") for key in result.missing_keys)
    x = images(64, 64)
    assert all(torch.equal(a, b) for a, b in zip(ours(x), plain(x), strict=True))


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0"])
def test_describes_itself_as_the_plain_network(name: str) -> None:
    plain = plain_network(name)
    ours = LayerAggregation(plain)
    assert ours.out_channels == plain.out_channels
    assert (ours.pixel_mean, ours.pixel_std) == (plain.pixel_mean, plain.pixel_std)
    early = [{id(p) for m in n.first_stages() for p in m.parameters()} for n in (ours, plain)]
    assert early[0] == early[1] != set()


# --- the recurrence, written from the formulas ---------------------------------------------------


def mean_of_pairs(h: Tensor) -> Tensor:
    """Average pooling by two; at an odd edge the mean of what is there."""
    rows = [h[:, :, i : i + 2].mean(2) for i in range(0, h.shape[2], 2)]
    pooled = torch.stack(rows, 2)
    return torch.stack([pooled[..., i : i + 2].mean(3) for i in range(0, h.shape[3], 2)], 3)


def first_conv(block: nn.Module) -> nn.Conv2d:
    return block.conv1 if hasattr(block, "conv1") else block.conv_pw


def theta(block: nn.Module, z: Tensor) -> Tensor:
    """The residual branch after its first conv, which gave `z`."""
    if hasattr(block, "conv_pw"):
        return block.bn3(block.conv_pwl(block.bn2(block.conv_dw(block.bn1(z)))))
    return block.bn2(block.conv2(F.relu(block.bn1(z))))


def output(block: nn.Module, y: Tensor, x: Tensor) -> Tensor:
    if hasattr(block, "conv_pw"):
        return y + x if y.shape == x.shape else y
    return F.relu(y + (x if block.downsample is None else block.downsample(x)))


def start(ours: LayerAggregation, x: Tensor) -> tuple[Tensor, list[nn.Module], list[int]]:
    """What enters the first aggregated block, the stages, and those that are tapped."""
    if hasattr(ours, "net"):
        net = ours.net
        return net.blocks[0](net.bn1(net.conv_stem(x))), list(net.blocks[1:]), [1, 3, 5]
    x = F.max_pool2d(F.relu(ours.bn1(ours.conv1(x))), 3, 2, 1)
    return x, [ours.layer1, ours.layer2, ours.layer3, ours.layer4], [1, 2, 3]


def slow_concat(ours: LayerAggregation, x: Tensor, width: int) -> list[Tensor]:
    x, stages, taps = start(ours, x)
    h = x.new_zeros(len(x), width, *x.shape[2:])
    outputs = []
    for number, (stage, new) in enumerate(zip(stages, ours.aggregation, strict=True)):
        for index, block in enumerate(stage):
            conv = first_conv(block)
            if number == index == 0:  # h is zero: any weight will do
                extra = torch.ones(conv.out_channels, width, *conv.kernel_size, dtype=x.dtype)
            else:
                extra = new.extra[str(index)].weight
            weight = torch.cat([conv.weight, extra], dim=1)
            z = F.conv2d(torch.cat([x, h], dim=1), weight, None, conv.stride, conv.padding)
            y = theta(block, z)
            if not (stage is stages[-1] and index == len(stage) - 1):
                pooled = h if h.shape[2:] == y.shape[2:] else mean_of_pairs(h)
                h = new.mix(torch.tanh(new.norms[index](pooled + new.project(y))))
            x = output(block, y, x)
        outputs.append(x)
    return [outputs[tap] for tap in taps]


def slow_add(ours: LayerAggregation, x: Tensor) -> list[Tensor]:
    x, stages, taps = start(ours, x)
    outputs = []
    for stage, new in zip(stages, ours.aggregation, strict=True):
        h: Tensor | float = 0.0
        for index, block in enumerate(stage):
            y = theta(block, first_conv(block)(x + h))
            x = output(block, y, x)
            if index < len(stage) - 1:
                h = new.mix(new.project(y) + h)
        outputs.append(x)
    return [outputs[tap] for tap in taps]


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("form", ["concat", "add"])
@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0"])
def test_follows_the_recurrence(
    name: str, form: str, size: tuple[int, int], training: bool
) -> None:
    plain = plain_network(name).double()
    ours = LayerAggregation(deepcopy(plain), form=form, width=8).double().train(training)
    randomise(ours.aggregation)
    x = images(*size).double()
    with torch.no_grad():
        found = ours(x)
        wanted = slow_concat(ours, x, 8) if form == "concat" else slow_add(ours, x)
        unaggregated = plain.train(training)(x)
    for ours_level, slow_level, plain_level in zip(found, wanted, unaggregated, strict=True):
        torch.testing.assert_close(ours_level, slow_level, atol=1e-9, rtol=1e-9)
        assert (ours_level - plain_level).abs().max() > 0.01  # the state does reach every level


@pytest.mark.parametrize(("name", "form"), KINDS)
def test_a_second_pass_remembers_nothing(name: str, form: str) -> None:
    ours = LayerAggregation(plain_network(name), form=form).eval()
    randomise(ours.aggregation)
    with torch.no_grad():
        first = ours(images(64, 96))
        ours(images(75, 101))
        again = ours(images(64, 96))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


# --- training ------------------------------------------------------------------------------------


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize(("name", "form"), KINDS)
def test_every_trainable_parameter_learns(name: str, form: str, frozen: bool) -> None:
    ours = LayerAggregation(plain_network(name), form=form)
    if frozen:
        ours.freeze()
    backward(ours)
    with_gradient = {n for n, p in ours.named_parameters() if p.grad is not None}
    assert with_gradient == trainable(ours)  # a parameter without gradient would stop DDP
    torch.optim.SGD([p for p in ours.parameters() if p.requires_grad], lr=1e-4).step()
    backward(ours)
    idle = [n for n, p in ours.aggregation.named_parameters() if not 0 < p.grad.abs().max() < 1e6]
    assert idle == []


@pytest.mark.parametrize("before", [False, True], ids=["freeze after", "freeze before"])
@pytest.mark.parametrize(("name", "form"), KINDS)
def test_freezing_spares_the_aggregation(name: str, form: str, before: bool) -> None:
    plain = plain_network(name)
    ours = LayerAggregation(deepcopy(plain), form=form)
    plain.freeze()
    if before:
        ours = LayerAggregation(deepcopy(plain), form=form)
    else:
        ours.freeze()
    new = {f"aggregation.{n}" for n, _ in ours.aggregation.named_parameters()}
    assert trainable(ours) == trainable(plain) | new
    assert trainable(plain) < {n for n, _ in plain.named_parameters()}
    for training in (True, False, True):
        ours.train(training)
        assert modes(ours.aggregation) <= {training}
        assert all(
            modes(child) <= {False} for n, child in ours.named_children() if n != "aggregation"
        )
    state = {key: tensor.clone() for key, tensor in ours.state_dict().items()}
    with torch.no_grad():
        ours(images(64, 96))
    moved = {k for k, tensor in ours.state_dict().items() if not torch.equal(tensor, state[k])}
    gathered = {k for k in state if k.startswith("aggregation.") and "norms" in k}
    assert moved == {k for k in gathered if not k.endswith(("weight", "bias"))}


def test_wrapping_leaves_the_flags_of_the_plain_network() -> None:
    plain = plain_network("resnet18")
    plain.layer4.requires_grad_(False)
    flags = {name: p.requires_grad for name, p in plain.named_parameters()}
    ours = dict(LayerAggregation(plain).named_parameters())
    assert {name: ours[name].requires_grad for name in flags} == flags


@pytest.mark.parametrize(("name", "form"), KINDS)
def test_a_deep_copy_stands_alone(name: str, form: str) -> None:
    ours = LayerAggregation(plain_network(name), form=form).eval()
    randomise(ours.aggregation)
    teacher = deepcopy(ours)  # as the EMA does
    x = images(64, 64)
    with torch.no_grad():
        before = ours(x)
        assert all(torch.equal(a, b) for a, b in zip(teacher(x), before, strict=True))
        for tensor in ours.parameters():
            tensor.add_(1.0)
        assert all(torch.equal(a, b) for a, b in zip(teacher(x), before, strict=True))
        for tensor in teacher.parameters():
            tensor.zero_()
        assert all(level.abs().max() == 0 for level in teacher(x))


# --- size, and refusals --------------------------------------------------------------------------


def test_resnet50_grows_by_one_percent(record_property: Callable[[str, object], None]) -> None:
    plain = ResNet("resnet50")
    size = sum(p.numel() for p in plain.parameters())
    ours = LayerAggregation(plain)
    extra = 32 * (2 * 64 + 4 * 128 + 6 * 256 + 3 * 512)  # all blocks but the first
    shared = 32 * (256 + 512 + 1024 + 2048) + 4 * 9 * 32 * 32  # g1, g2
    norms = 15 * 2 * 32  # all blocks but the last
    assert ours.extra_parameters() == extra + shared + norms
    assert sum(p.numel() for p in ours.parameters()) == size + ours.extra_parameters()
    share = ours.extra_parameters() / size
    record_property("extra share", share)
    assert 0 < share < 0.06


def test_nothing_exists_that_reaches_no_output() -> None:
    small = LayerAggregation(plain_network("resnet10t")).aggregation  # stages of one block
    assert [list(stage.extra) for stage in small] == [[], ["0"], ["0"], ["0"]]
    assert [len(stage.norms) for stage in small] == [1, 1, 1, 0]
    assert [n for n, _ in small[3].named_parameters()] == ["extra.0.weight"]
    lite = LayerAggregation(plain_network("tf_efficientnet_lite0"), form="add").aggregation
    names = [[n for n, _ in stage.named_parameters()] for stage in lite]
    assert names == [["project.weight", "mix.weight"]] * 5 + [[]]  # the last stage is one block


@pytest.mark.parametrize("name", ["mobilenetv3_small_050", "resnet26t"])
def test_other_backbones_are_refused_by_name(name: str) -> None:
    with pytest.raises(UserError) as caught:
        LayerAggregation(TimmBackbone(name))
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in ("model.aggregation", name, *SUPPORTED))


def test_aggregation_does_not_aggregate_itself() -> None:
    with pytest.raises(UserError, match=r"model\.aggregation.*LayerAggregation"):
        LayerAggregation(LayerAggregation(ResNet("resnet18")))


@pytest.mark.parametrize("name", ["resnet10t", "resnet10t_half"])
def test_add_needs_stages_of_several_blocks(name: str) -> None:
    with pytest.raises(UserError, match=r"model\.aggregation: 'add' has nothing to aggregate"):
        LayerAggregation(TimmBackbone(name), form="add")
