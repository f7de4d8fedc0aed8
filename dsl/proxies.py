"""What each class looks like to MetaNet: learned once, when the burn-in is over."""

from typing import cast

import torch
from rich.console import Console

from dsl.data.loader import LabeledBatches, load
from dsl.engine.progress import CountBar
from dsl.methods.dsl import DSL
from dsl.models.fcos import FCOS
from dsl.models.instance_features import InstanceFeatures


def learn_proxies(
    method: DSL, batches: LabeledBatches, *, workers: int, device: torch.device, console: Console
) -> None:
    """From the labeled images at test size; nothing to do where it is done already."""
    metanet = method.metanet
    if metanet is None or bool(metanet.ready):
        return
    if metanet.saved_extractor is not None:  # the detector's own backbone, as it is now
        source = cast(FCOS, method.teacher).backbone
        cast(InstanceFeatures, metanet.saved_extractor).backbone.load_state_dict(
            source.state_dict()
        )
    with CountBar(console, "class proxies", len(batches)) as bar:
        items = load(batches, range(len(batches)), workers=workers)
        metanet.learn(batch.to(device) for batch in bar.over(items))
