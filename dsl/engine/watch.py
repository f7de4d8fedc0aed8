"""Never worse than labels alone: compares the teacher with the burn-in model on the validation set.

It sees AP figures only. "Clearly" below means more than two points and more than a tenth:
validation sets of few labels are small, and their figures jump.
"""

from collections.abc import Callable
from dataclasses import dataclass

POINTS, SHARE = 0.02, 0.1
FEW_IMAGES = 20  # on fewer, one object moves the AP by points


@dataclass(frozen=True)
class Verdict:
    """Whether it went up once unlabeled images were learned from. The burn-in had fewer steps too,
    so this alone does not say that the images were the reason."""

    burn_in: float  # AP of the model that had seen labels alone
    best: float
    final: float

    def words(self, *, taught: bool, num_images: int) -> str:
        """`taught` False: no unlabeled image had a pseudo-label; `num_images` of the val set."""
        chance = f"; a val set of {num_images} images makes this mostly chance"
        return self._words(taught=taught) + (chance if num_images < FEW_IMAGES else "")

    def _words(self, *, taught: bool) -> str:
        before, best, final = (f"{100 * ap:.1f}" for ap in (self.burn_in, self.best, self.final))
        start = f"val AP {before} after the burn-in on labels alone"
        if not taught:
            return (
                f"the unlabeled images taught nothing: {start}, {best} at best, {final} at the "
                "end, from labels alone too"
            )
        if self.best > self.burn_in and best == before:
            return (
                f"no difference with the unlabeled images: {start}, {best} at best, {final} at "
                "the end; try more steps"
            )
        if self.best > self.burn_in:
            gain = 100 * (self.best - self.burn_in)
            return (
                f"better with the unlabeled images: {start}, {best} at best (+{gain:.1f}), {final} "
                "at the end; the same steps on labels alone: --method supervised"
            )
        return (
            f"the unlabeled images did not help: {start}, {final} at the end; best.pt is not from "
            "after the burn-in"
        )


class Watch:
    """Lowers the weight of the unlabeled images while the teacher is clearly below the burn-in."""

    def __init__(self, ease: Callable[[], str | None], *, burn_in: float | None = None) -> None:
        """`burn_in`: its AP, where that phase is over already."""
        self._ease, self.burn_in = ease, burn_in

    def look(self, ap: float) -> str | None:
        """Told the AP of every evaluation; what it did about it, in words."""
        if self.burn_in is None or ap >= self.burn_in - max(POINTS, SHARE * self.burn_in):
            return None
        done = self._ease() or "the weight of the unlabeled images cannot get lower"
        return (
            f"val AP {100 * ap:.1f} is clearly below the {100 * self.burn_in:.1f} "
            f"of the burn-in: {done}"
        )

    def verdict(self, *, best: float, final: float) -> Verdict | None:
        return None if self.burn_in is None else Verdict(self.burn_in, best, final)
