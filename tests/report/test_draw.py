"""Boxes land on their pixels, captions stay inside, and odd images do not crash."""

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from dsl.report import draw
from dsl.report.draw import FOREGROUND, IGNORED, PALETTE, caption, class_color, draw_boxes

GREY = 90


def blank(height: int, width: int) -> NDArray[np.uint8]:
    return np.full((height, width, 3), GREY, np.uint8)


def drawn(image: Image.Image) -> NDArray[np.bool_]:
    differs: NDArray[np.bool_] = (np.asarray(image) != GREY).any(axis=2)
    return differs


def of_color(image: Image.Image, color: draw.Color) -> NDArray[np.bool_]:
    equal: NDArray[np.bool_] = (np.asarray(image) == color).all(axis=2)
    return equal


def extent(mask: NDArray[np.bool_]) -> tuple[int, int, int, int]:
    rows, columns = np.nonzero(mask)
    return columns.min(), rows.min(), columns.max() + 1, rows.max() + 1


def test_the_border_is_exactly_the_box() -> None:
    image = draw_boxes(blank(150, 200), [[20, 30, 70, 90]], colors=[IGNORED], min_side=100)
    expected = np.zeros((150, 200), bool)
    expected[30:90, 20:70] = True
    expected[31:89, 21:69] = False
    assert np.array_equal(of_color(image, IGNORED), expected)
    assert np.array_equal(drawn(image), expected)


def test_each_box_has_its_own_color_and_the_first_lies_on_top() -> None:
    boxes = [[10, 10, 60, 60], [10, 10, 60, 60], [80, 80, 90, 95]]
    image = draw_boxes(blank(100, 100), boxes, colors=[FOREGROUND, IGNORED, IGNORED], min_side=1)
    assert extent(of_color(image, FOREGROUND)) == (10, 10, 60, 60)
    assert extent(of_color(image, IGNORED)) == (80, 80, 90, 95)


def test_without_colors_boxes_take_the_palette_in_order() -> None:
    image = draw_boxes(blank(100, 100), [[0, 0, 30, 30], [50, 50, 90, 90]], min_side=1)
    assert extent(of_color(image, class_color(0))) == (0, 0, 30, 30)
    assert extent(of_color(image, class_color(1))) == (50, 50, 90, 90)


def test_small_images_are_enlarged_with_their_boxes() -> None:
    image = draw_boxes(blank(128, 160), [[10, 20, 50, 60]], min_side=512)
    assert image.size == (640, 512)
    assert extent(drawn(image)) == (40, 80, 200, 240)
    assert draw_boxes(blank(600, 700), []).size == (700, 600)


def test_a_strip_does_not_become_enormous() -> None:
    assert draw_boxes(blank(1, 3000), [[0, 0, 9, 1]], ["x"]).size == (3000, 1)


@pytest.mark.parametrize(
    "box", [(0, 0, 40, 40), (470, 0, 512, 40), (0, 480, 30, 512), (480, 500, 512, 512)]
)
def test_captions_stay_inside_the_image(box: draw.Corners) -> None:
    # A box without a neighbour or an edge shows the whole tag; below it lies the box of 4 pixels.
    free = draw_boxes(blank(512, 2000), [[900, 200, 904, 204]], ["elephant"], colors=[IGNORED])
    x1, y1, x2, y2 = extent(drawn(free))
    whole = np.asarray(free)[y1 : y2 - 4, x1:x2]

    image = draw_boxes(blank(512, 512), [box], ["elephant"], colors=[IGNORED])
    size = (x2 - x1, y2 - 4 - y1)
    x1, y1, x2, y2 = draw._place_tag(box, size, size=image.size, taken=[])
    assert np.array_equal(np.asarray(image)[y1:y2, x1:x2], whole)


def test_a_caption_wider_than_the_image_is_cut_with_dots() -> None:
    font = draw._load_font(16)
    cut = draw._fit("a very long class name 0.50", font, width=100)
    assert cut.endswith("...")
    assert cut[:4] == "a ve"
    assert font.getlength(cut) <= 100 < font.getlength("a very long class name 0.50")
    assert draw._fit("cat", font, width=100) == "cat"
    assert draw._fit("cat", font, width=3) == ""


def test_captions_of_crowded_boxes_do_not_cover_each_other() -> None:
    boxes = [(100, 100, 160, 200), (102, 101, 161, 202), (101, 102, 162, 203)]
    taken: list[draw.Corners] = []
    for box in boxes:
        taken.append(draw._place_tag(box, (60, 20), size=(512, 512), taken=taken))
    assert taken[0] == (100, 80, 160, 100)
    assert taken[1] == (102, 202, 162, 222)
    assert taken[2] == (101, 102, 161, 122)


def test_captions_can_be_left_out_one_by_one() -> None:
    boxes = [[10, 100, 60, 160], [300, 100, 360, 160]]
    image = draw_boxes(blank(512, 512), boxes, ["", "cat"], colors=[FOREGROUND, IGNORED])
    assert extent(of_color(image, FOREGROUND)) == (10, 100, 60, 160)
    assert extent(of_color(image, IGNORED))[1] < 100


def test_letters_beyond_ascii_have_their_own_shapes() -> None:
    font = draw._load_font(20)
    shapes = [bytes(font.getmask(letter)) for letter in "éßŁяα"]
    assert len(set(shapes)) == 5  # a font without them draws the same empty frame for all


def test_zero_boxes_leave_the_image_as_it_was() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (600, 600, 3)).astype(np.uint8)
    assert np.array_equal(np.asarray(draw_boxes(pixels, [])), pixels)
    assert np.array_equal(np.asarray(draw_boxes(pixels, np.zeros((0, 4)))), pixels)


def test_the_callers_pixels_are_not_drawn_on() -> None:
    pixels = blank(600, 600)
    draw_boxes(pixels, [[10, 10, 50, 50]], ["cat"])
    assert (pixels == GREY).all()


@pytest.mark.parametrize("shape", [(1, 1), (1, 1, 1), (1, 1, 3), (5, 1, 3), (30, 40)])
@pytest.mark.parametrize("min_side", [1, 64])
def test_tiny_and_grey_images_are_drawn(shape: tuple[int, ...], min_side: int) -> None:
    image = draw_boxes(np.full(shape, GREY, np.uint8), [[0, 0, 1, 1]], ["x"], min_side=min_side)
    assert image.mode == "RGB"
    assert image.width * shape[0] == image.height * shape[1]
    assert drawn(image).any()


def test_boxes_beyond_the_image_are_cut_at_its_edge() -> None:
    boxes = [[-50, 20, 900, 60]]
    image = draw_boxes(blank(100, 100), boxes, colors=[IGNORED], min_side=1)
    assert extent(of_color(image, IGNORED)) == (0, 20, 100, 60)
    away = draw_boxes(blank(100, 100), [[300, 300, 400, 400], [50, 50, 50, 50]], min_side=1)
    assert drawn(away).sum() == 2  # one pixel each, and no crash


def test_the_palette_has_colors_that_can_be_told_apart() -> None:
    colors = np.array(PALETTE, int)
    distances = np.abs(colors[:, None] - colors[None]).sum(axis=2)
    assert len(PALETTE) >= 20
    assert distances[~np.eye(len(colors), dtype=bool)].min() >= 60
    assert class_color(len(PALETTE) + 3) == PALETTE[3]


def test_ink_contrasts_with_its_tag() -> None:
    assert draw._ink_on((255, 255, 0)) == (0, 0, 0)
    assert draw._ink_on((0, 0, 255)) == (255, 255, 255)


def test_captions_name_the_class_and_the_score() -> None:
    assert caption("cat") == "cat"
    assert caption("cat", 0.876) == "cat 0.88"


def test_a_wrong_number_of_labels_or_colors_is_refused() -> None:
    with pytest.raises(ValueError, match="2 boxes, 1 labels, 2 colors"):
        draw_boxes(blank(9, 9), [[0, 0, 1, 1], [0, 0, 2, 2]], ["a"])
    with pytest.raises(ValueError, match="1 boxes, 1 labels, 2 colors"):
        draw_boxes(blank(9, 9), [[0, 0, 1, 1]], colors=[IGNORED, IGNORED])


def test_pixels_that_are_no_image_are_refused() -> None:
    with pytest.raises(ValueError, match="float64"):
        draw_boxes(np.zeros((4, 4, 3)), [])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"\(4, 4, 4\)"):
        draw_boxes(np.zeros((4, 4, 4), np.uint8), [])
    with pytest.raises(ValueError, match=r"\(0, 4, 3\)"):
        draw_boxes(np.zeros((0, 4, 3), np.uint8), [])
