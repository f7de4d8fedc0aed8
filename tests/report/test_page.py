"""The page in a real browser: it works, it fits, and user text stays text."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from browser import Page, chromium
from made_run import make_run

from dsl.report.html import render, safe_json, write_report
from dsl.report.page_content import content_of, thin
from dsl.report.run_folder import read_run

HOSTILE = "</script><img src=x onerror=document.title='taken'>"


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    with chromium() as tab:
        yield tab


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("one") / "run"
    write_report(folder.parent / "report.html", [read_run(make_run(folder))])
    return folder.parent / "report.html"


def count(page: Page, selector: str) -> int:
    found: int = page.do(f"document.querySelectorAll({json.dumps(selector)}).length")
    return found


def choose(page: Page, selector: str, value: object, event: str) -> None:
    page.do(
        f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
        f" e.value = {json.dumps(value)};"
        f" e.dispatchEvent(new Event({json.dumps(event)}, {{ bubbles: true }})); }})()"
    )


def test_the_slider_changes_the_boxes_and_not_the_pictures(page: Page, report: Path) -> None:
    page.open(report.as_uri())
    assert (count(page, "#gallery .box.learned"), count(page, "#gallery .box.wrong")) == (7, 2)
    assert count(page, "#gallery .box.rejected") == count(page, "#gallery .box.ignored") == 3
    before = page.do("document.querySelector('#gallery img').src")
    choose(page, "#time", 0, "input")
    assert (count(page, "#gallery .box.learned"), count(page, "#gallery .box.wrong")) == (3, 6)
    assert count(page, "#gallery .box.missed") == 6
    assert page.do("document.querySelector('#gallery output').textContent") == "step 20"
    assert page.do("document.querySelector('#gallery img').src") == before
    assert page.problems == []


def test_worst_mistakes_come_first(page: Page, report: Path) -> None:
    page.open(report.as_uri())
    names = "[...document.querySelectorAll('#gallery .file')].map((e) => e.textContent)"
    assert page.do(names)[-1] == "image2.png"  # the one without a mistake


def test_the_class_filter_hides(page: Page, report: Path) -> None:
    page.open(report.as_uri())
    choose(page, "#class", "1", "change")
    titles = page.do(
        "[...document.querySelectorAll('#gallery .box title')].map(e => e.textContent)"
    )
    assert titles
    assert all(title.startswith("dog") for title in titles)
    assert count(page, "#gallery .box.rejected") == 0  # those are cats
    choose(page, "#class", "", "change")
    assert count(page, "#gallery .box.rejected") == 3


def test_a_kind_of_box_can_be_switched_off(page: Page, report: Path) -> None:
    page.open(report.as_uri())
    page.do("document.querySelector('.toggle.ignored').click()")
    assert count(page, "#gallery .box.ignored") == 0
    assert count(page, "#gallery .box.learned") == 7


def test_the_theme_button_switches(page: Page, report: Path) -> None:
    page.open(report.as_uri())
    background = "getComputedStyle(document.body).backgroundColor"
    before = page.do(background)
    page.do("document.querySelector('#theme').click()")
    assert page.do(background) != before
    page.do("document.querySelector('#theme').click()")
    assert page.do(background) == before


@pytest.mark.parametrize("width", [1280, 390])
def test_it_fits_the_screen_and_every_part_is_there(page: Page, report: Path, width: int) -> None:
    page.open(report.as_uri(), width=width)
    page.wait("document.querySelectorAll('.canvas svg').length >= 7")
    assert page.do("document.documentElement.scrollWidth") <= width
    for part in ("headline", "learning", "classes", "teaching", "scores", "gallery", "views"):
        assert page.do(f"document.querySelector('#{part}').offsetHeight") > 50, part
    assert count(page, "#scores .tau") == 2  # both thresholds
    assert count(page, "#scores .area") == 3  # TP+, TP-, BG
    assert count(page, "#views .half") == 3
    assert page.problems == []


def test_several_runs_side_by_side(page: Page, tmp_path: Path) -> None:
    kinds = [("dsl", 0.6, 10), ("supervised", 0.5, 10), ("supervised", 0.9, 100)]
    folders = [
        make_run(tmp_path / f"{method}-{labeled}", method=method, ap=ap, labeled=labeled)
        for method, ap, labeled in kinds
    ]
    write_report(tmp_path / "report.html", [read_run(folder) for folder in folders])
    page.open((tmp_path / "report.html").as_uri(), width=390)
    text = page.do("document.querySelector('#headline').innerText")
    assert "25 % of the gap" in text
    assert count(page, "#runs tbody tr") == 3
    choose(page, "#run", "1", "change")
    assert page.do("document.querySelector('#gallery').hidden")  # nothing was taught there
    assert page.do("document.documentElement.scrollWidth") <= 390
    assert page.problems == []


def test_hostile_names_stay_text(page: Page, tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", classes=(HOSTILE, "{{ 7 * 7 }}"), image=HOSTILE)
    write_report(tmp_path / "report.html", [read_run(folder)])
    page.open((tmp_path / "report.html").as_uri())
    assert page.do("document.title") != "taken"
    assert count(page, "img[onerror]") == 0
    names = page.do("[...document.querySelectorAll('.classlist .link')].map((e) => e.textContent)")
    assert set(names) == {HOSTILE, "{{ 7 * 7 }}"}
    assert page.problems == []


def test_no_script_but_ours_may_run_in_the_page(page: Page, report: Path) -> None:
    """The second line of defence: what would get in could still not run."""
    page.open(report.as_uri())
    page.do(
        "(() => { const s = document.createElement('script'); s.textContent = 'window.taken = 1';"
        " document.body.append(s); })()"
    )
    assert page.do("window.taken") is None


@pytest.mark.parametrize("state", ["empty", "supervised", "without truth", "without pictures"])
def test_runs_with_little_to_show(page: Page, tmp_path: Path, state: str) -> None:
    folder = make_run(
        tmp_path / "run", method="supervised" if state in ("empty", "supervised") else "dsl",
        truth=state != "without truth", finished=state != "empty",
    )  # fmt: skip
    if state == "empty":
        (folder / "log.jsonl").write_text("")
    if state == "without pictures":
        (folder / "views" / "views.json").unlink()
    write_report(tmp_path / "report.html", [read_run(folder)])
    page.open((tmp_path / "report.html").as_uri())
    assert page.do("document.querySelector('h1').textContent.length") > 5
    assert page.problems == []


def test_it_is_built_fast_and_stays_small(tmp_path: Path) -> None:
    run = read_run(make_run(tmp_path / "run"))
    began = time.process_time()
    write_report(tmp_path / "report.html", [run])
    assert time.process_time() - began < 10
    assert (tmp_path / "report.html").stat().st_size < 15e6
    assert [file.name for file in tmp_path.glob(".*")] == []  # no temporary file stays


def test_the_page_names_no_other_file_and_no_server(report: Path) -> None:
    text = report.read_text()
    assert "http://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "https://" not in text


def test_json_cannot_end_its_element() -> None:
    assert "<" not in safe_json({"name": HOSTILE})
    assert json.loads(safe_json({"name": HOSTILE + "\u2028&"})) == {"name": HOSTILE + "\u2028&"}


def test_a_run_folder_with_a_hostile_name(tmp_path: Path) -> None:
    text = render(content_of([read_run(make_run(tmp_path / "<b>&run"))]))
    assert "<title>&lt;b&gt;&amp;run" in text
    assert "<b>&run" not in text


def test_thinning_keeps_both_ends() -> None:
    assert thin(range(1000), 5) == [0, 250, 500, 749, 999]
    assert thin([], 5) == []
    assert thin([1, 2], 5) == [1, 2]
