"""Settings: recipes load, unknown keys name the nearest, values are checked."""

import subprocess
import sys
from pathlib import Path

import pytest

from dsl.config import load_config, own_settings, parse_overrides, shipped_recipes
from dsl.errors import UserError


@pytest.mark.parametrize("recipe", shipped_recipes())
def test_every_shipped_recipe_is_valid(recipe: str) -> None:
    config = load_config(recipe)
    assert config.recipe == recipe
    ranges = config.model.size_ranges
    assert list(ranges) == sorted(ranges)
    # Made for 512 px: size ranges follow the input. Two recipes have twice that, for finer boxes
    # (see there); the scale loss, whose levels would no longer match, must then be off.
    finer = 2 if recipe in ("digits", "animals") else 1
    expected = finer * min(1.0, config.views.test_short_side / 512)
    assert ranges[0] / 64 == pytest.approx(expected, rel=0.3)
    assert finer == 1 or (config.teaching.scale_weight == 0 and not config.teaching.half_view)


def test_overrides_win_over_the_recipe_and_keep_their_types() -> None:
    config = load_config(
        "tiny",
        parse_overrides(
            ["optim.lr=0.002", "views.flip=false", "views.short_sides=[96, 128]",
             "model.weights=none", "optim.clip_norm=none", "run.precision=fp32"]
        ),
    )  # fmt: skip
    assert config.optim.lr == 0.002
    assert config.views.flip is False
    assert config.views.short_sides == (96, 128)
    assert config.model.weights == "none"
    assert config.optim.clip_norm is None
    assert config.run.precision == "fp32"
    assert config.model.backbone == load_config("tiny").model.backbone != ""


def test_a_recipe_of_ones_own_extends_a_shipped_one(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('extends = "tiny"\n[optim]\nbatch = 4\n')
    config = load_config(str(file))
    assert config.optim.batch == 4
    assert config.model == load_config("tiny").model


def test_a_recipe_that_extends_itself_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "loop.toml"
    file.write_text(f'extends = "{file}"\n')
    with pytest.raises(UserError, match="extends itself"):
        load_config(str(file))


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"optim.lrr": 1}, "unknown setting 'optim.lrr'; did you mean 'optim.lr'"),
        ({"moddel.backbone": "x"}, "unknown setting 'moddel'; did you mean 'model'"),
        ({"batch": 3}, "did you mean 'optim.batch'"),
        ({"optim.lr": -1}, "optim.lr = -1"),
        ({"optim.lr": "fast"}, "optim.lr = 'fast'"),
        ({"model.channels": 100}, "model.channels = 100"),
        ({"model.size_ranges": [1, 2]}, "model.size_ranges"),
        ({"run.steps": 0}, "run.steps = 0"),
        ({"views.labeled": "medium"}, "views.labeled = 'medium'"),
        ({"optim.lr.x": 1}, "'lr' is a value"),
    ],
)
def test_mistakes_name_the_key_and_the_value(overrides: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        load_config("paper" if "optim.lr.x" in overrides else "tiny", overrides)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("model = 3 3", "not valid TOML"), ("extends = 5", "extends = 5"), ("x = 1", "unknown")],
)
def test_broken_recipe_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "r.toml"
    file.write_text(text)
    with pytest.raises(UserError, match=message) as error:
        load_config(str(file))
    assert "r.toml" in str(error.value)


def test_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(UserError, match="did you mean 'small'"):
        load_config("smal")
    with pytest.raises(UserError, match="no such file"):
        load_config("nowhere/at/all.toml")


@pytest.mark.parametrize("assignment", ["optim.lr", "=3", ""])
def test_an_override_without_value_is_refused(assignment: str) -> None:
    with pytest.raises(UserError, match="expected KEY=VALUE"):
        parse_overrides([assignment])


def test_reading_settings_and_images_needs_no_torch() -> None:
    code = "import sys, dsl.config, dsl.image, dsl.cli; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_names_without_a_band_between_the_bars_or_with_soft_targets_are_refused() -> None:
    from dsl.compose import build_detector, build_method

    plain = {"method": "dsl", "model.weights": "none", "teaching.metanet_weights": "none"}
    config = load_config("small", plain | {"teaching.thresholds": "single"})
    with pytest.raises(UserError, match="metanet_rule=bar"):
        build_method(config, build_detector(config, 2))
    soft = plain | {"teaching.targets": "soft"}
    separate = {"teaching.metanet_rule": "bar", "teaching.normaliser": "separate"}
    for refused, fix in (({}, "metanet_rule=bar"), (separate, "normaliser=joint")):
        config = load_config("small", soft | refused)
        with pytest.raises(UserError, match=rf"targets = 'soft'.*teaching\.{fix}"):
            build_method(config, build_detector(config, 2))
    config = load_config("small", soft | {"teaching.metanet": "off"})
    build_method(config, build_detector(config, 2))
    row = load_config("small", plain | own_settings("ablations/single-1"))
    assert row.teaching.thresholds == "single"
    build_method(row, build_detector(row, 2))


def test_the_overlap_of_rivals_and_the_teachers_rate_reach_the_method() -> None:
    from dsl.compose import build_detector, build_method
    from dsl.methods.dsl import DSL
    from dsl.models.decode import Decoder

    plain = {"method": "dsl", "model.weights": "none", "teaching.metanet": "off"}
    for recipe, overlap, rate in (("small", Decoder().nms_iou, None), ("animals", 0.3, 0.998)):
        config = load_config(recipe, plain)
        method = build_method(config, build_detector(config, 2))
        assert isinstance(method, DSL)
        assert method.rival_iou == overlap
        assert (method.weights.keep_rate, method.weights.teaching_keep_rate) == (0.99, rate)
    row = load_config("animals", plain | own_settings("ablations/teacher-none"))
    method = build_method(row, build_detector(row, 2))
    assert isinstance(method, DSL)
    assert (method.weights.keep_rate, method.weights.teaching_keep_rate) == (0, None)
