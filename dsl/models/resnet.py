"""torchvision's ResNets as backbones; their weights and names are kept as they are."""

import torchvision
from torch import Tensor, nn

from dsl.models.backbone import Backbone, Pyramid

RESNETS = ("resnet18", "resnet34", "resnet50", "resnet101")


class ResNet(Backbone):
    """Stages 2 to 4 of a torchvision ResNet."""

    pixel_mean = (0.485, 0.456, 0.406)
    pixel_std = (0.229, 0.224, 0.225)

    def __init__(self, name: str) -> None:
        super().__init__()
        net = torchvision.models.get_model(name, weights=None, zero_init_residual=True)
        self.conv1, self.bn1, self.relu, self.maxpool = net.conv1, net.bn1, net.relu, net.maxpool
        self.layer1, self.layer2 = net.layer1, net.layer2
        self.layer3, self.layer4 = net.layer3, net.layer4
        width: int = net.fc.in_features
        self.out_channels = (width // 4, width // 2, width)

    def forward(self, x: Tensor) -> Pyramid:  # (N, 3, H, W)
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        c3 = self.layer2(self.layer1(x))
        c4 = self.layer3(c3)
        return c3, c4, self.layer4(c4)

    def first_stages(self) -> list[nn.Module]:
        return [self.conv1, self.bn1, self.layer1]
