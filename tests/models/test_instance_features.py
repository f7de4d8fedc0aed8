"""A box's vector is what the network makes of the pixels in it, and of no others."""

from pathlib import Path

import pytest
import timm
import torch
from timm.layers.norm_act import BatchNormAct2d
from torch import Tensor, nn

from dsl.errors import UserError
from dsl.models.backbone import Backbone
from dsl.models.build import build_backbone, build_extractor
from dsl.models.instance_features import InstanceFeatures
from dsl.models.timm_backbone import TimmClassifier, _folded
from dsl.types import ImageBatch

CROP = 32
COLOURS = {"left": 200, "right": 40}


def networks() -> dict[str, Backbone | TimmClassifier]:
    torch.manual_seed(0)
    return {
        "backbone": build_backbone("resnet18", "none"),
        "classifier": build_extractor("tf_efficientnet_lite0", "auto"),
    }


@pytest.mark.parametrize("name", ["backbone", "classifier"])
def test_vectors_are_those_of_the_crops(name: str) -> None:
    network = networks()[name].eval()
    features = InstanceFeatures(network, crop=CROP).eval()
    images = torch.zeros(3, 3, 64, 96, dtype=torch.uint8)
    images[..., :48], images[..., 48:] = COLOURS["left"], COLOURS["right"]
    left, right = [4.0, 10.0, 34.0, 50.0], [56.0, 4.0, 88.0, 30.0]  # their margins stay inside
    boxes = [torch.tensor([left, right]), torch.zeros(0, 4), torch.tensor([right])]
    vectors = features(ImageBatch(images, torch.tensor([[64, 96]] * 3)), boxes)
    assert vectors.shape == (3, features.width)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (network.pixel_mean, network.pixel_std))
    for vector, side in zip(vectors, ("left", "right", "right"), strict=True):
        flat = (torch.full((3, CROP, CROP), COLOURS[side] / 255) - mean) / std
        with torch.no_grad():
            seen = network(flat[None])
        wanted = seen[0] if name == "classifier" else seen[2][0].mean(dim=(1, 2))
        torch.testing.assert_close(vector, wanted, rtol=1e-3, atol=1e-4)


def test_no_boxes_have_no_vectors() -> None:
    features = InstanceFeatures(networks()["classifier"], crop=CROP)
    nothing = ImageBatch(torch.zeros(1, 3, 32, 32, dtype=torch.uint8), torch.tensor([[32, 32]]))
    assert features(nothing, [torch.zeros(0, 4)]).shape == (0, 1000)


def test_an_extractor_that_cannot_be_had_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="metanet: 'tf_efficientnet_lite9' is neither"):
        build_extractor("tf_efficientnet_lite9", "none")
    file = tmp_path / "headless.pth"
    weights = timm.create_model("tf_efficientnet_lite0").state_dict()
    torch.save({k: v for k, v in weights.items() if "classifier" not in k}, file)
    with pytest.raises(UserError, match=r"metanet_weights: .*headless\.pth does not fit"):
        build_extractor("tf_efficientnet_lite0", str(file))


@pytest.mark.parametrize("name", ["tf_efficientnet_lite0", "resnet18"])
def test_a_folded_classifier_says_the_same(name: str) -> None:
    torch.manual_seed(0)
    plain = timm.create_model(name).eval()
    for norm in plain.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.normal_(norm.running_mean, std=0.1)
            nn.init.uniform_(norm.running_var, 0.5, 2.0)
            nn.init.normal_(norm.bias, std=0.1)
    folded = TimmClassifier(name, plain.state_dict()).eval()
    pictures = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(folded(pictures), plain(pictures), rtol=1e-3, atol=1e-3)
    if name == "tf_efficientnet_lite0":
        assert not any(isinstance(m, nn.BatchNorm2d) for m in folded.modules())


class Crossed(nn.Module):
    """Norms that stand behind other convolutions than they follow."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 4, 1), BatchNormAct2d(4)
        self.second = nn.Conv2d(3, 4, 1)
        nn.init.constant_(self.norm.running_mean, 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return (self.first(x) + self.norm(self.second(x))).mean(dim=(2, 3))


def test_a_network_that_folding_would_change_stays_as_it_is() -> None:
    torch.manual_seed(0)
    network = Crossed().eval()
    assert _folded(network) is network
