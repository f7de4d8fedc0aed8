"""Typed settings, read from TOML recipes and dotted overrides; imports no torch.

A recipe may extend another one. The order of precedence: defaults here, the recipe's ancestors,
the recipe, `--set a.b=value`, command-line options. Unknown keys name the nearest known one.
"""

import difflib
import os
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveInt,
    ValidationError,
    field_validator,
)

from dsl.errors import UserError, show
from dsl.files import MEGABYTE, check_file

RECIPES = Path(__file__).parent / "recipes"

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelConfig(_Section):
    """The detector."""

    backbone: str = "tf_efficientnet_lite0"
    """resnet18/34/50/101, or any timm model with features at strides 8, 16 and 32."""
    weights: str = "auto"
    """Pretrained backbone: "auto" finds them, "none" starts from scratch, or a file."""
    channels: Annotated[int, Field(ge=64, multiple_of=32)] = 96
    """Width of pyramid and head: 64 or more, a multiple of 32 (GroupNorm has 32 groups)."""
    num_convs: Annotated[int, Field(ge=1, le=8)] = 2
    """Convolutions of each tower of the head."""
    box_weight: PositiveFloat = 1.0
    """Weight of the box loss against the other two; more gives tighter boxes."""
    box_loss: Literal["weighted", "plain"] = "weighted"
    """Boxes count by the centerness of their location, or all alike."""
    shared_counts: bool = True
    """Losses are divided by the positives of all devices, or each device divides by its own."""
    size_ranges: tuple[PositiveFloat, PositiveFloat, PositiveFloat, PositiveFloat] = (
        32, 64, 128, 256,
    )  # fmt: skip
    """Largest distance in pixels that levels P3 to P6 answer for; P7 takes the rest."""

    @field_validator("size_ranges")
    @classmethod
    def _ascending(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        if list(value) != sorted(set(value)):
            raise ValueError("each level's range must begin where the last one ends: ascending")
        return value

    aggregation: Literal["off", "concat", "add"] = "off"
    """Layer aggregation in the backbone (DSL, Eq. 9-10): "concat" as it is known to work, "add" as
    the paper prints it."""
    aggregation_width: PositiveInt = 32
    """Channels of the state that "concat" carries along."""
    center_radius: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.5
    """Positives lie within so many strides of a box's centre; 0: anywhere inside the box."""


class ViewsConfig(_Section):
    """How an image file becomes the detector's input."""

    short_sides: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (256,)
    """Training draws the short side from these."""
    size_of: Literal["image", "batch"] = "image"
    """Each image draws its own, or all images of a step one: quicker, since a batch is as large as
    its largest image."""
    max_side: PositiveInt = 427
    """The long side never exceeds this."""
    test_short_side: PositiveInt = 256
    """Short side in evaluation and prediction."""
    flip: bool = True
    """Mirror half of the training images; off where left and right matter (digits, text)."""
    flip_vertical: bool = False
    """Turn half of them upside down too, where nothing is up (cells, aerial images)."""
    strong: Literal["ours", "paper", "code"] = "ours"
    """What the strong view adds: "ours" colour, grayscale, blur and cutout; "paper" colour and
    cutout; "code" ours and an affine step."""
    blur: PositiveFloat = 2.0
    """Largest blur of the strong view (sigma), in pixels; less for small images."""
    labeled: Literal["weak", "strong"] = "weak"
    """View of the labeled images: weak = resize and flip; or strong."""
    labeled_shuffle: Share = 0.0
    """Share of the labeled images that are patch-shuffled too."""


class TeachingConfig(_Section):
    """How unlabeled images are learned from (method "dsl")."""

    unlabeled_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 3.0
    """Of the unlabeled loss (alpha)."""
    burn_in: Annotated[float, Field(ge=0, lt=1)] = 0.2
    """Share of the run on labels alone."""
    teacher_size: Literal["test", "drawn"] | PositiveInt = "test"
    """Short side of the images that the teacher looks at: the test's, drawn as training does, or
    this many pixels. Of images larger than the student's a weak teacher may see more."""
    keep_rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Of its averaged weights (EMA) once it teaches; "none": as `optim.keep_rate`, which is that of
    the burn-in. The larger, the steadier, and the later it knows what the student has learned."""
    thresholds: Literal["paper", "literal", "code", "fixed", "single"] = "paper"
    """The bar above which a detection is taught (tau2): "paper", "literal" and "code" follow the
    teacher, class by class; "fixed" is one bar; "single" is one bar without an ignore band."""
    background: Share = 0.1
    """At or below this score a detection is background (tau1); between the bars it is ignored."""
    foreground: Share = 0.3
    """The bar of "fixed" and "single"."""
    curve: tuple[PositiveFloat, PositiveFloat, Share, Share] | None = None
    """Factor, power, least and largest bar of the ones that follow the teacher; "none": as their
    name says."""
    unseen: Share = 0.3
    """The bar of a class that was not taught lately, within the curve's limits; its own bar follows
    once it is passed. Too high, and a class that the teacher is unsure of is never taught."""
    targets: Literal["hard", "soft"] = "hard"
    """A class is taught as sure, or "soft": as sure as the teacher is, also between the bars, where
    "hard" teaches nothing. Boxes are those above the bar either way."""
    one_class: bool = True
    """Of foreground boxes that lie on each other, teach the best alone, whatever their classes; the
    others become ignored."""
    rival_iou: Share = 0.6
    """From this overlap (IoU) on they do. The lower, the fewer parts and doubles of an object are
    taught, and the fewer objects that stand before each other."""
    window: PositiveInt = 1000
    """Unlabeled images that the thresholds look back on."""
    metanet: str = "tf_efficientnet_lite0"
    """Doubts a pseudo-label that looks unlike its class: a pretrained backbone's name, "detector"
    (a frozen copy of the detector's own backbone after the burn-in), or "off"."""
    metanet_weights: str = "auto"
    """Of that pretrained backbone: "auto" finds them, or a file."""
    metanet_bar: Annotated[float, Field(ge=-1, le=1)] | Literal["auto"] = "auto"
    """Least cosine similarity to the class; "auto": what 95 % of the labeled instances reach."""
    metanet_rule: Literal["bar", "names"] = "bar"
    """"bar": what looks unlike its class is put aside (the paper). "names": an object is taught as
    the class that detector and MetaNet find likeliest together."""
    metanet_crop: PositiveInt = 64
    """Side of the crops that it looks at, in pixels."""
    shuffle_rounds: Annotated[int, Field(ge=0)] = 2
    """Exchanges of patch shuffle in the strong view (J); 0: none."""
    shuffle_share: Share = 1.0
    """Share of the unlabeled images that are patch-shuffled."""
    learn_boxes: bool = True
    """Learn boxes and centerness from pseudo-labels too, not their classes alone."""
    half_view: bool = True
    """Learn the pseudo-labels at half size too."""
    scale_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """Of the agreement between full and half size (lambda_scale)."""
    scale_space: Literal["logits", "scores"] = "logits"
    scale_reduction: Literal["mean", "sum"] = "mean"
    """Over the elements of the maps; "sum" is per image."""
    scale_warmup: Share = 0.1
    """Share of the run over which it rises from 0, once the burn-in is over."""
    normaliser: Literal["joint", "separate"] = "joint"
    """Labeled and unlabeled losses are divided by their common count, or each by its own."""


class OptimConfig(_Section):
    """The optimizer and its schedule."""

    optimizer: Literal["adamw", "sgd"] = "adamw"
    lr: PositiveFloat = 1e-3
    """Learning rate at `lr_batch` images a step; scaled linearly to the real batch."""
    lr_batch: PositiveInt = 8
    batch: PositiveInt = 8
    """Labeled images of one optimizer step, over all devices."""
    accumulate: PositiveInt = 1
    """Split each step's batch into so many parts, to save memory."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    momentum: Share = 0.9
    bias_lr_factor: PositiveFloat = 1.0
    backbone_lr_factor: PositiveFloat = 1.0
    """Of the rate, for a pretrained backbone: the slower it learns, the less it forgets."""
    schedule: Literal["onecycle", "cosine", "steps"] = "onecycle"
    milestones: tuple[Share, ...] = (0.67, 0.92)
    """Schedule "steps": shares of the run after which the rate is divided by 10."""
    restart: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Share of the run after which the schedule begins anew; 0: never. At the end of the burn-in it
    gives a teacher whose rate has come down, and the whole rate to what it teaches."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Linear warm-up from a third of the rate; at most a tenth of the run."""
    clip_norm: PositiveFloat | None = 10.0
    """Gradients are scaled down to this norm; "none": never."""
    keep_rate: Annotated[float, Field(ge=0, lt=1)] = 0.99
    """Of the averaged weights (EMA), which are the ones evaluated and saved."""


class RunConfig(_Section):
    """Length, bookkeeping and machine."""

    steps: PositiveInt | None = 1500
    """Optimizer steps."""
    epochs: PositiveFloat | None = None
    """Instead of steps: passes over the larger set."""
    seconds: PositiveFloat | None = None
    """Instead of steps: train for so long."""
    seed: Annotated[int, Field(ge=0)] = 0
    precision: Literal["auto", "bf16-mixed", "fp16-mixed", "fp32"] = "auto"
    eval_every: PositiveInt | None = None
    """Steps between evaluations; "none": five times a run."""
    save_every: PositiveInt | None = None
    """Steps between checkpoints; "none": at every evaluation, and at least every 500."""
    watch: bool = True
    """Lower the unlabeled weight when the teacher falls clearly below the burn-in on the validation
    set; off where methods are compared."""
    workers: Annotated[int, Field(ge=0)] | None = None
    """Loader processes of each device; "none": chosen by the number of cores."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    devices: PositiveInt = 1
    nodes: PositiveInt = 1


class DataConfig(_Section):
    """Paths; the format of each is found out from the path."""

    labeled: str = ""
    unlabeled: str | None = None
    val: str | None = None
    """Without it a tenth of the labeled images is held out."""


class Config(_Section):
    """Everything that a training depends on, besides its data."""

    recipe: str = ""
    """Where these settings come from; says so in the run folder."""
    method: Literal["supervised", "dsl"] = "supervised"
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    views: ViewsConfig = ViewsConfig()
    teaching: TeachingConfig = TeachingConfig()
    optim: OptimConfig = OptimConfig()
    run: RunConfig = RunConfig()


def shipped_recipes() -> list[str]:
    """Names of the recipes inside the package."""
    return sorted(
        file.relative_to(RECIPES).with_suffix("").as_posix() for file in RECIPES.rglob("*.toml")
    )


def load_config(recipe: str, overrides: Mapping[str, Any] | None = None) -> Config:
    """A shipped recipe's name or a TOML file, with dotted overrides on top."""
    settings = _read_recipe(recipe, seen=())
    settings["recipe"] = recipe
    for dotted, value in (overrides or {}).items():
        _put(settings, dotted, value)
    return parse_config(settings, source=recipe)


def states(recipe: str, key: str) -> bool:
    """Whether the recipe, or one that it extends, sets this top-level key."""
    return key in _read_recipe(recipe, seen=())


def own_settings(recipe: str) -> dict[str, Any]:
    """What this recipe itself sets, without its ancestors, as dotted overrides: a row of an
    ablation can be laid over another recipe than the one that it extends."""
    settings = _read_toml(recipe)
    settings.pop("extends", None)
    return dict(_dotted(settings, ""))


def _dotted(settings: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, dict):
            yield from _dotted(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def parse_config(settings: Mapping[str, Any], *, source: str) -> Config:
    """Validated settings; the error names the source, the key and what was wrong with it."""
    try:
        return Config.model_validate(settings)
    except ValidationError as error:
        first = error.errors()[0]
        path = [str(p) for p in first["loc"]]
        if first["type"] == "extra_forbidden":
            raise UserError(f"{source}: {_unknown(path)}") from None
        # pydantic puts the branch of a union into the path; only names and positions are ours.
        names = {part for key in _keys(Config) for part in key.split(".")}
        key = ".".join(part for part in path if part in names or part.isdigit())
        given = first.get("input")
        raise UserError(f"{source}: {key} = {show(given)}: {first['msg']}") from None


def parse_overrides(assignments: Iterable[str]) -> dict[str, Any]:
    """ "a.b=value" strings as a mapping; values are TOML, "none" is None, bare words are text."""
    overrides: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise UserError(f"--set {assignment!r}: expected KEY=VALUE, e.g. --set optim.lr=0.001")
        overrides[key.strip()] = _value(text.strip())
    return overrides


def _value(text: str) -> Any:
    if text.lower() == "none":
        # "none" is also a word of its own: model.weights=none.
        return None
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # a number of thousands of digits is a ValueError too
        return text


def _put(settings: dict[str, Any], dotted: str, value: Any) -> None:
    *sections, last = dotted.split(".")
    place = settings
    for section in sections:
        place = place.setdefault(section, {})
        if not isinstance(place, dict):
            raise UserError(f"--set {dotted}: {section!r} is a value, not a section")
    if dotted == "model.weights" and value is None:
        value = "none"
    place[last] = value


def _read_recipe(recipe: str, *, seen: tuple[str, ...]) -> dict[str, Any]:
    if recipe in seen:
        raise UserError(f"recipe {recipe}: extends itself ({' -> '.join([*seen, recipe])})")
    settings = _read_toml(recipe)
    parent = settings.pop("extends", None)
    if parent is None:
        return settings
    if not isinstance(parent, str):
        raise UserError(f"{recipe}: extends = {parent!r}: expected the name of a recipe")
    merged = _read_recipe(parent, seen=(*seen, recipe))
    _merge(merged, settings)
    return merged


def _read_toml(recipe: str) -> dict[str, Any]:
    if recipe.endswith(".toml"):
        path = Path(recipe)
        if not os.path.isfile(path):  # a name too long is no file either
            raise UserError(f"recipe: no such file: {recipe}")
        check_file(path, limit=MEGABYTE)
        text = path.read_bytes()
    else:
        known = shipped_recipes()
        if recipe not in known:
            near = difflib.get_close_matches(recipe, known, n=1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise UserError(f"recipe {recipe!r} is unknown; {hint}known: {', '.join(known)}")
        text = (RECIPES / f"{recipe}.toml").read_bytes()
    try:
        return tomllib.loads(text.decode())
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise UserError(f"{recipe}: not valid TOML: {reason}") from error


def _merge(base: dict[str, Any], over: Mapping[str, Any]) -> None:
    for key, value in over.items():
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            _merge(base[key], value)
        else:
            base[key] = value


def _unknown(path: list[str]) -> str:
    known = [*_keys(Config), *Config.model_fields]
    dotted = ".".join(path)
    near = difflib.get_close_matches(dotted, known, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return f"unknown setting {dotted!r}{hint}"


def _keys(section: type[BaseModel], prefix: str = "") -> list[str]:
    keys = []
    for name, field in section.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            keys += _keys(inner, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys
