"""Names to networks: a backbone by name, a detector around it."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from dsl.errors import UserError
from dsl.models.backbone import Backbone
from dsl.models.fcos import FCOS
from dsl.models.resnet import RESNETS, ResNet
from dsl.models.timm_backbone import TimmBackbone, TimmClassifier
from dsl.models.weights import find_weights


def build_backbone(name: str, weights: str) -> Backbone:
    """Pretrained backbones come frozen where METHOD 1 says so; from scratch all is trainable.

    `weights`: "auto", "none" or a file.
    """
    found = find_weights(name, weights)
    try:
        backbone = _resnet(name, found) if name in RESNETS else TimmBackbone(name, found)
    except (RuntimeError, KeyError) as error:  # names or shapes that do not fit
        raise UserError(f"model.weights: {weights} does not fit {name}: {error}") from error
    if found is not None:
        backbone.freeze()
    return backbone


def build_extractor(name: str, weights: str) -> Backbone | TimmClassifier:
    """What MetaNet looks with. Our ResNets end where the paper's features are; of a timm network
    the classifier's own outputs tell more (docs/decisions.md)."""
    if name in RESNETS:
        return build_backbone(name, weights)
    found = find_weights(name, weights)
    try:
        return TimmClassifier(name, found)
    except RuntimeError as error:
        raise UserError(f"teaching.metanet_weights: {weights} does not fit {name}") from error


def _resnet(name: str, weights: Mapping[str, Tensor] | None) -> ResNet:
    backbone = ResNet(name)
    if weights is not None:
        backbone.load_state_dict({k: v for k, v in weights.items() if not k.startswith("fc.")})
    return backbone


def from_torchvision(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A state dict of torchvision's `fcos_resnet50_fpn` under our names."""
    renamed = {}
    for name, tensor in weights.items():
        ours = name
        for theirs, prefix in _TORCHVISION_NAMES.items():
            if name.startswith(theirs):
                ours = prefix + name.removeprefix(theirs)
                break
        if ours.startswith(("fpn.lateral.", "fpn.output.")):
            ours = ours.replace(".0.weight", ".weight").replace(".0.bias", ".bias")
        renamed[ours] = tensor
    return renamed


_TORCHVISION_NAMES = {
    "backbone.body.": "backbone.",
    "backbone.fpn.inner_blocks.": "fpn.lateral.",
    "backbone.fpn.layer_blocks.": "fpn.output.",
    "backbone.fpn.extra_blocks.": "fpn.",
    "head.classification_head.conv.": "head.class_tower.",
    "head.classification_head.cls_logits.": "head.class_logits.",
    "head.regression_head.conv.": "head.box_tower.",
    "head.regression_head.bbox_reg.": "head.distances.",
    "head.regression_head.bbox_ctrness.": "head.centerness.",
}


def load_initial(detector: FCOS, weights: Mapping[str, Tensor], *, source: Path) -> list[str]:
    """Start from another detector's weights: one of ours, or torchvision's.

    Layers made for another number of classes stay as they are; their names are returned. Anything
    else that does not fit is an error.
    """
    if any(name.startswith("backbone.body.") for name in weights):
        weights = from_torchvision(weights)
        # torchvision has no learnable scale per level, and a frozen BatchNorm counts no batches.
        own = detector.state_dict()
        weights = {n: t for n, t in own.items() if n.endswith("num_batches_tracked")} | {
            "head.scales": own["head.scales"].new_ones(len(own["head.scales"])),
            **weights,
        }
    own = detector.state_dict()
    other_classes = [
        name
        for name in weights
        if name.startswith("head.class_logits.")
        and name in own
        and weights[name].shape != own[name].shape
    ]
    kept = {n: t for n, t in weights.items() if n not in other_classes}
    # A plain network may start one with layer aggregation: what is new starts without effect.
    needed = (n for n in own if not n.startswith("backbone.aggregation."))
    misfits = sorted(
        {n for n in needed if n not in weights}
        | {n for n, t in kept.items() if n not in own or own[n].shape != t.shape}
    )
    if misfits:
        raise UserError(
            f"--init: {source} is not of this architecture: {len(misfits)} tensors differ, "
            f"first {misfits[0]!r}; choose the preset and backbone that it was trained with"
        )
    detector.load_state_dict(kept, strict=False)
    return other_classes
