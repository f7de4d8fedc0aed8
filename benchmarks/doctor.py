"""Is the doctor quick: on a set of COCO's size without pixels, and on a real small one.

Each case runs in a fresh process. Seconds are of the wall clock, from opening the files to the last
finding, without the import of the libraries; memory is the peak of the whole process. The details
hold the processor's seconds too: on a busy machine the two are far apart.
"""

import multiprocessing
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.bars import Bar, finish, parser
from benchmarks.scale import _status, write_train2017
from dsl.config import load_config
from dsl.doctor.case import open_case
from dsl.doctor.checks import CHECKS

BCCD = Path(__file__).parents[2] / "shared" / "data" / "bccd"


def _examine(settings: dict[str, Any], recipe: str, answer: Any) -> None:
    started = time.perf_counter()
    used = time.process_time()
    case = open_case(load_config(recipe, settings))
    times = {"open": time.perf_counter() - started}
    levels: Counter[str] = Counter()
    for check in CHECKS:
        began = time.perf_counter()
        findings = list(check.run(case))
        times[check.run.__name__] = time.perf_counter() - began
        levels.update(f"{finding.level}: {finding.check}" for finding in findings)
    times["all"] = time.perf_counter() - started
    before = sum(times[c.run.__name__] for c in CHECKS if c.before_training)
    answer.put({
        "seconds": {name: round(value, 2) for name, value in times.items()},
        "processor seconds": round(time.process_time() - used, 2),
        "seconds before a training": round(before, 2), "gigabytes": _status("VmHWM") / 1024**2,
        "findings": dict(levels),
    })  # fmt: skip


def examined(settings: dict[str, Any], recipe: str) -> dict[str, Any]:
    """Times, peak memory and findings of the doctor in a process of its own."""
    context = multiprocessing.get_context("spawn")
    answer = context.Queue()
    process = context.Process(target=_examine, args=(settings, recipe, answer))
    process.start()
    result: dict[str, Any] = answer.get()
    process.join()
    return result


def main() -> None:
    arguments = parser(__doc__ or "").parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "train.json"
        write_train2017(path)
        large = examined({"data.labeled": str(path)}, "small")
    bars = [
        Bar(
            "118,000 images, 860,000 boxes", large["seconds"]["all"], 60, at_least=False, unit=" s"
        ),
        Bar("its peak of memory", large["gigabytes"], 1.5, at_least=False, unit=" GB"),
    ]
    details = {"118,000 images": large}
    if BCCD.is_dir():
        files = {"data.labeled": str(BCCD / "train.json"), "data.val": str(BCCD / "val.json")}
        small = details["bccd"] = examined(files, "bccd")
        bars.append(Bar("bccd", small["seconds"]["all"], 5, at_least=False, unit=" s"))
    else:
        print(f"bccd: not at {BCCD}, left out")
    for name, each in details.items():
        print(f"{name}: {each}")
    finish("doctor", bars, json_file=arguments.json, details=details)


if __name__ == "__main__":
    main()
