"""The detector against torchvision's own FCOS, and its shapes."""

import pytest
import sklearn.datasets
import timm
import torch
import torchvision
from torch import nn

from dsl.image import resize_image
from dsl.models.build import build_backbone, load_initial
from dsl.models.fcos import FCOS
from dsl.models.losses import flatten
from dsl.models.resnet import ResNet
from dsl.models.weights import find_weights
from dsl.types import ImageBatch


def randomise(module: nn.Module) -> None:
    """Every tensor gets values, also those that start at 0 or 1: nothing may hide in them."""
    generator = torch.Generator().manual_seed(1)
    for name, tensor in module.state_dict().items():
        if tensor.is_floating_point():
            noise = torch.randn(tensor.shape, generator=generator)
            if name.endswith("running_var"):
                tensor.copy_(1 + noise.abs())
            else:
                tensor.add_(0.05 * noise)


@pytest.mark.parametrize(("height", "width"), [(64, 96), (160, 128)])
def test_equals_torchvision_with_its_weights(height: int, width: int) -> None:
    theirs = torchvision.models.detection.fcos_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=7
    ).eval()
    randomise(theirs)
    ours = FCOS(ResNet("resnet50"), 7).eval()
    assert load_initial(ours, theirs.state_dict(), source=None) == []
    images = torch.randn(2, 3, height, width)
    with torch.no_grad():
        expected = theirs.head(list(theirs.backbone(images).values()))
        output = ours.dense(images)
    for found, wanted in (
        (output.class_logits, expected["cls_logits"]),
        (output.distances, expected["bbox_regression"]),
        (output.centerness, expected["bbox_ctrness"]),
    ):
        assert wanted.abs().max() > 0.01
        torch.testing.assert_close(flatten(found), wanted, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["resnet18", "tf_efficientnet_lite0", "mobilenetv3_small_100"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (96, 160)])
def test_every_backbone_gives_five_levels_and_trains(name: str, height: int, width: int) -> None:
    detector = FCOS(build_backbone(name, "none"), 3, channels=64, num_convs=1)
    batch = ImageBatch(
        torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8),
        torch.tensor([[height, width], [height - 9, width - 5]]),
    )
    output = detector(batch)
    for level, stride in enumerate(output.strides):
        shape = (-(-height // stride), -(-width // stride))
        assert output.class_logits[level].shape == (2, 3, *shape)
        assert output.distances[level].shape == (2, 4, *shape)
        assert output.centerness[level].shape == (2, 1, *shape)
        assert output.distances[level].min() >= 0
    maps = [*output.class_logits, *output.distances, *output.centerness]
    sum(m.square().sum() + m.sum() for m in maps).backward()
    missing = [n for n, p in detector.named_parameters() if p.grad is None]
    assert missing == []  # a parameter without gradient would stop DDP


def test_first_scores_are_the_class_prior() -> None:
    detector = FCOS(ResNet("resnet18"), 3, channels=64, num_convs=1).eval()
    images = ImageBatch(torch.zeros(1, 3, 64, 64, dtype=torch.uint8), torch.tensor([[64, 64]]))
    scores = flatten(detector(images).class_logits).sigmoid()
    assert scores.mean().item() == pytest.approx(0.01, abs=0.002)


def test_padding_is_the_mean_colour_whatever_it_holds() -> None:
    detector = FCOS(ResNet("resnet18"), 3, channels=64, num_convs=1)
    pixels = torch.randint(0, 256, (1, 3, 32, 64), dtype=torch.uint8)
    batch = ImageBatch(pixels, torch.tensor([[20, 30]]))
    normalised = detector.normalise(batch)
    assert normalised[..., 20:, :].abs().max() == 0
    assert normalised[..., :, 30:].abs().max() == 0
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    expected = (pixels[0, :, 5, 7] / 255 - mean) / std
    torch.testing.assert_close(normalised[0, :, 5, 7], expected)


def test_pretrained_backbone_keeps_its_statistics_and_first_stages() -> None:
    backbone = build_backbone("tf_efficientnet_lite0", "auto")
    backbone.train()
    before = {k: v.clone() for k, v in backbone.state_dict().items()}
    optimizer = torch.optim.SGD([p for p in backbone.parameters() if p.requires_grad], lr=0.1)
    sum(c.sum() for c in backbone(torch.randn(2, 3, 64, 64))).backward()
    optimizer.step()
    changed = {k for k, v in backbone.state_dict().items() if not torch.equal(v, before[k])}
    assert changed
    assert not any("running" in k or ".bn" in k for k in changed)
    frozen = ("net.conv_stem", "net.bn1", "net.blocks.0", "net.blocks.1")
    assert not any(k.startswith(frozen) for k in changed)
    assert any(k.startswith("net.blocks.2") for k in changed)


def test_embedded_weights_know_a_daisy() -> None:
    """Tensors in the wrong places would not: the package names them otherwise than timm does."""
    name = "tf_efficientnet_lite0"
    net = timm.create_model(name).eval()
    net.load_state_dict(find_weights(name, "auto"))
    flower = sklearn.datasets.load_sample_image("flower.jpg")  # bundled with scikit-learn
    pixels = resize_image(flower[:, 100:527], 224, 224)
    image = torch.from_numpy(pixels).permute(2, 0, 1)[None].float() / 255
    with torch.no_grad():
        scores = net((image - 0.498) / 0.502).softmax(dim=1)[0]
    assert scores.argmax() == 985  # daisy
    features = build_backbone(name, "auto").state_dict()
    for key, tensor in net.state_dict().items():
        if f"net.{key}" in features:
            assert torch.equal(features[f"net.{key}"], tensor)
    assert len(features) > 280
