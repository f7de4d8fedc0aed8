"""What several trainings say together: arms, gains, gap closure, and a verdict in plain words.

Runs that differ in nothing but the seed (and the fold of data drawn with it) are one arm. Figures
are AP on the validation set, of the averaged weights at the last evaluation. The words never claim
more than the number of seeds allows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from dsl.report.run_folder import Run
from dsl.report.tables import percent

BESIDE = {"seed", "device", "devices", "nodes", "workers", "precision", "eval_every", "save_every"}
CLEAR = 0.01  # AP: with one seed, less than this is called no difference


@dataclass(frozen=True)
class Arm:
    """Runs of equal settings."""

    name: str
    method: str
    num_labeled: int | None
    runs: tuple[Run, ...]

    @property
    def aps(self) -> Mapping[int, float]:
        """Latest AP by seed, of the runs that have one."""
        known = {run.seed: latest_ap(run) for run in self.runs}
        return {seed: ap for seed, ap in known.items() if ap is not None}

    @property
    def mean(self) -> float | None:
        return fmean(self.aps.values()) if self.aps else None

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)


@dataclass(frozen=True)
class Gap:
    """How much of the way from few labels to all labels the unlabeled images went."""

    few: float
    taught: float
    full: float

    @property
    def closure(self) -> float | None:
        """None where all labels are no better than few."""
        return (self.taught - self.few) / (self.full - self.few) if self.full > self.few else None


@dataclass(frozen=True)
class Headline:
    """The top of the page."""

    verdict: str
    remarks: tuple[str, ...]
    arms: tuple[Arm, ...]
    gain: float | None = None
    gap: Gap | None = None


def latest_ap(run: Run) -> float | None:
    return run.validations[-1].teacher.ap if run.validations else None


def arms_of(runs: Sequence[Run]) -> tuple[Arm, ...]:
    """In the order in which the runs were given."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_key(run), []).append(run)
    names = [_name(members[0]) for members in groups.values()]
    arms = []
    for name, members in zip(names, groups.values(), strict=True):
        first = members[0]
        own = name if names.count(name) == 1 else f"{name} ({first.name})"
        arms.append(Arm(own, first.method, first.num_labeled, tuple(members)))
    return tuple(arms)


def headline_of(runs: Sequence[Run]) -> Headline:
    """Compares the first DSL arm with the supervised arm of as many labels, if both are given."""
    arms = arms_of(runs)
    taught = next((arm for arm in arms if arm.method != "supervised"), None)
    rivals = [arm for arm in arms if arm.method == "supervised"]
    if taught is None or not rivals:
        return _alone(arms)
    wanted = _labels(taught.runs[0])
    few = next((arm for arm in rivals if _labels(arm.runs[0]) == wanted), None)
    if few is None:
        return Headline(
            "These runs cannot be compared: none was trained on the same labels alone.",
            ("Add the supervised run that used the same labeled images.",), arms,
        )  # fmt: skip
    return _compared(arms, few, taught, _full(rivals, few))


def _full(rivals: Sequence[Arm], few: Arm) -> Arm | None:
    """The supervised arm with the most labels, if it has more."""
    known = [arm for arm in rivals if arm.num_labeled is not None]
    most = max(known, key=lambda arm: arm.num_labeled or 0, default=None)
    if most is None or (most.num_labeled or 0) <= (few.num_labeled or 0):
        return None
    return most


def _compared(arms: tuple[Arm, ...], few: Arm, taught: Arm, full: Arm | None) -> Headline:
    seeds = [seed for seed in taught.aps if seed in few.aps]
    paired = bool(seeds)
    if few.mean is None or taught.mean is None:
        return Headline("No evaluation yet: nothing can be said.", (), arms)
    gains = [taught.aps[seed] - few.aps[seed] for seed in seeds]
    gain = fmean(gains) if paired else taught.mean - few.mean
    remarks = [_spread(gains) if paired else "The two sides share no seed: means are compared."]
    if not (few.finished and taught.finished):
        remarks.append("Not all of these runs are finished.")
    gap = None
    if full is not None and full.mean is not None:
        shared = [seed for seed in seeds if seed in full.aps] or None
        gap = Gap(_mean(few, shared), _mean(taught, shared), _mean(full, shared))
    return Headline(_words(gain, gains), tuple(remarks), arms, gain, gap)


def _mean(arm: Arm, seeds: Sequence[int] | None) -> float:
    return fmean(arm.aps[s] for s in seeds) if seeds else fmean(arm.aps.values())


def _words(gain: float, gains: Sequence[float]) -> str:
    points = f"{abs(100 * gain):.1f}\u00a0AP"  # one word: a headline breaks lines
    if len(gains) > 1 and min(gains) > 0:
        return f"The unlabeled images helped: {points} more, in every one of {len(gains)} seeds."
    if len(gains) > 1 and max(gains) < 0:
        return f"The unlabeled images did harm: {points} less, in every one of {len(gains)} seeds."
    if len(gains) > 1:
        return f"No clear answer: {100 * gain:+.1f}\u00a0AP on average, but the seeds disagree."
    if abs(gain) < CLEAR:
        return f"No clear difference: {100 * gain:+.1f}\u00a0AP."
    if gain > 0:
        return f"The unlabeled images helped: {points} more than the same labels alone."
    return f"The unlabeled images did harm: {points} less than the same labels alone."


def _spread(gains: Sequence[float]) -> str:
    if len(gains) == 1:
        return "One seed: how far seeds differ is not known. Repeat with --seed 1, 2."
    low, high = 100 * min(gains), 100 * max(gains)
    return f"Gain over {len(gains)} seeds: {low:+.1f} to {high:+.1f} AP."


def _alone(arms: tuple[Arm, ...]) -> Headline:
    """No pair of supervised and DSL runs to compare."""
    if len(arms) != 1 or len(arms[0].runs) != 1:
        measured = [arm for arm in arms if arm.mean is not None]
        best = max(measured, key=lambda arm: arm.mean or 0.0, default=None)
        words = "No evaluation yet."
        if best is not None and len(arms) > 1:
            words = f"Highest validation AP: {percent(best.mean)}, {best.name}."
        elif best is not None:
            aps = list(best.aps.values())
            words = f"{best.name}: validation AP {percent(best.mean)} on average."
            if len(aps) > 1:
                words += f" Over {len(aps)} seeds: {percent(min(aps))} to {percent(max(aps))}."
        return Headline(words, (), arms)
    run = arms[0].runs[0]
    ap = latest_ap(run)
    if ap is None:
        return Headline("No evaluation yet.", (), arms)
    words = f"Validation AP {percent(ap)}{'' if run.finished else ' so far'}."
    remarks = [remark] if (remark := _since_burn_in(run)) else []
    if run.method != "supervised":
        remarks.append(
            "What the unlabeled images are worth shows beside a run on the same labels alone: "
            "dsl report RUN SUPERVISED_RUN --out compared.html"
        )
    return Headline(words, tuple(remarks), arms)


def _since_burn_in(run: Run) -> str | None:
    start = teaching_start(run)
    before = [v for v in run.validations if start is not None and v.step <= start]
    if not before or before[-1].teacher.ap is None or before[-1] is run.validations[-1]:
        return None
    first, last = before[-1].teacher.ap, latest_ap(run)
    return f"AP {percent(first)} at the last evaluation before teaching, {percent(last)} now."


def teaching_start(run: Run) -> int | None:
    """The step after which the teacher teaches; None in a supervised run or before that."""
    steps = [step.step for step in run.gallery[:1]]
    steps += [point.step for point in run.train if "unlabeled" in point.losses][:1]
    return min(steps, default=None)


def _name(run: Run) -> str:
    method = "Supervised" if run.method == "supervised" else run.method.upper()
    return method if run.num_labeled is None else f"{method}, {run.num_labeled:,} labels"


def _key(run: Run) -> str:
    """All settings but the seed and the machine; of the labeled data only its size, if known."""
    settings: dict[str, Any] = {k: v for k, v in run.settings.items() if k not in ("run", "data")}
    length = run.settings.get("run")
    parts = {k: v for k, v in length.items() if k not in BESIDE} if isinstance(length, dict) else {}
    return repr((sorted(settings.items()), sorted(parts.items(), key=str), _labels(run)))


def _labels(run: Run) -> int | str:
    """How many labels, or where they came from if nobody counted."""
    return run.num_labeled or str(run.setting("data", "labeled"))
