"""Batch, learning rate, length, burn-in and thresholds against the amount of data.

It sees numbers of images and settings only.
"""

from collections.abc import Iterator

from dsl.doctor.case import Case
from dsl.doctor.finding import Finding

MAX_EPOCHS = 1000
MAX_SCALING = 8.0  # of the learning rate by the batch
USUAL_RATES = {"adamw": (1e-5, 1e-2), "sgd": (1e-4, 0.1)}  # at the real batch
MAX_BURN_IN = 0.7
MAX_PASSES = 10.0  # over the unlabeled images that the window of the thresholds holds
_RISE = 0.1  # share of a run over which the rate climbs, at most: engine/optim.py


def check_batch(case: Case) -> Iterator[Finding]:
    name, optim, run = "batch", case.config.optim, case.config.run
    parts = optim.accumulate * run.devices * run.nodes
    if optim.batch % parts:
        told = f"optim.batch = {optim.batch} does not divide by {parts} (devices x accumulate)"
        yield Finding("error", name, told, f"choose a multiple of {parts}")
    elif optim.batch > len(case.labeled):
        told = f"a batch of {optim.batch} is more than the {len(case.labeled)} labeled images"
        fix = f"--set optim.batch={max(parts, len(case.labeled) // parts * parts)}"
        yield Finding("warning", name, f"{told}: images repeat within a step", fix)
    else:
        yield Finding("ok", name, f"{optim.batch} of {len(case.labeled):,} labeled images a step")


def check_rate(case: Case) -> Iterator[Finding]:
    name, optim = "learning rate", case.config.optim
    factor = optim.batch / optim.lr_batch
    rate, (low, high) = optim.lr * factor, USUAL_RATES[optim.optimizer]
    told = f"{rate:.2g} ({optim.lr:g} at {optim.lr_batch} images, batch of {optim.batch})"
    if not 1 / MAX_SCALING <= factor <= MAX_SCALING:
        fix = f"set optim.lr for this batch: --set optim.lr_batch={optim.batch}"
        told += f": scaled by {factor:.3g}, far from where it was chosen"
        yield Finding("warning", name, told, fix)
    elif not low <= rate <= high:
        fix = f"set optim.lr so that it lies between {low:g} and {high:g}"
        yield Finding("warning", name, f"{told}: unusual for {optim.optimizer}", fix)
    else:
        yield Finding("ok", name, told)


def check_length(case: Case) -> Iterator[Finding]:
    """How often each image is seen."""
    name, steps, batch = "length", case.length.steps, case.config.optim.batch
    if steps is None:
        told = f"{case.length.seconds:g} seconds; how many steps that is depends on the device"
        yield Finding("ok", name, told)
        return
    passes = {"labeled": steps * batch / len(case.labeled)}
    if case.teaches and case.unlabeled is not None:
        taught = steps * (1 - case.config.teaching.burn_in)
        passes["unlabeled"] = taught * batch / len(case.unlabeled)
    told = ", ".join(f"{count:.3g} passes over {role}" for role, count in passes.items())
    told = f"{steps:,} steps are {told}"
    if min(passes.values()) < 1:
        role = min(passes, key=passes.__getitem__)
        enough = int(steps / passes[role]) + 1
        yield Finding("warning", name, f"{told}: some are never seen", f"--steps {enough} or more")
    elif min(passes.values()) > MAX_EPOCHS:
        fewer = f"--steps {max(1, round(steps * 300 / min(passes.values())))} is plenty"
        yield Finding("warning", name, f"{told}: they will be learned by heart", fewer)
    else:
        yield Finding("ok", name, told)


def check_burn_in(case: Case) -> Iterator[Finding]:
    """The teacher starts as a copy of the student at the end of the burn-in."""
    if not case.teaches:
        return
    name, burn_in, optim = "burn-in", case.config.teaching.burn_in, case.config.optim
    decays = [m for m in optim.milestones if optim.schedule == "steps" and m < burn_in]
    if optim.restart:  # what falls before it rises again
        decays = []
    rise = _RISE if optim.schedule == "onecycle" else 0.0
    if case.length.steps is not None:
        rise = max(rise, min(_RISE, optim.warmup_steps / case.length.steps))
    told = f"the first {burn_in:.0%} of the run on labels alone"
    if burn_in < rise:
        fix = f"--set teaching.burn_in={2 * rise:.2g}"
        told += f", while the learning rate climbs for {rise:.0%}: the teacher knows little"
        yield Finding("warning", name, told, fix)
    elif burn_in > MAX_BURN_IN or decays:
        told += ": little is left to learn from unlabeled images"
        if decays:
            told += f", the learning rate falls at {min(decays):.0%} already"
        yield Finding("warning", name, told, "--set teaching.burn_in=0.2")
    else:
        yield Finding("ok", name, told)


def check_window(case: Case) -> Iterator[Finding]:
    """Thresholds that look back further than the run goes, or on a teacher of long ago."""
    teaching, unlabeled = case.config.teaching, case.unlabeled
    adaptive = teaching.thresholds in ("paper", "literal", "code")
    if not case.teaches or unlabeled is None or not adaptive:
        return
    name, window, steps = "thresholds", teaching.window, case.length.steps
    told = f"they look back on {window:,} images"
    shown = None if steps is None else steps * (1 - teaching.burn_in) * case.config.optim.batch
    if window > MAX_PASSES * len(unlabeled):
        told += f", {window / len(unlabeled):.0f} passes over the {len(unlabeled):,} unlabeled ones"
        fix = f"--set teaching.window={max(1, len(unlabeled))}"
        yield Finding("warning", name, f"{told}: on a teacher of long ago", fix)
    elif shown is not None and window > shown / 2:
        told += f", and the run shows {shown:,.0f}: they hardly follow the teacher"
        yield Finding("warning", name, told, f"--set teaching.window={max(1, int(shown / 8))}")
    else:
        yield Finding("ok", name, f"{told} of {len(unlabeled):,}")


def check_averaging(case: Case) -> Iterator[Finding]:
    """The averaged weights are the ones evaluated and saved: over 1 / (1 - keep_rate) steps."""
    name, steps, teaching = "averaging", case.length.steps, case.config.teaching
    key, keep_rate, share = "optim", case.config.optim.keep_rate, 1.0
    if case.teaches and teaching.keep_rate is not None:  # it begins when the burn-in is over
        key, keep_rate, share = "teaching", teaching.keep_rate, 1 - teaching.burn_in
    steps = None if steps is None else round(share * steps)
    span = 1 / (1 - keep_rate)
    told = f"weights are averaged over about {span:,.0f} steps"
    if steps is not None and span > steps / 2:
        fix = f"train longer, or --set {key}.keep_rate={max(0.0, 1 - 10 / steps):.3g}"
        yield Finding("warning", name, f"{told} of {steps:,}: its beginning weighs in", fix)
    else:
        yield Finding("ok", name, told)
