"""The gate of int8 and bf16: decides whether a rounded network is good enough to be released."""

from __future__ import annotations

from dataclasses import dataclass

from swiftlet_models.metrics import Score
from swiftlet_serve.offline.evaluate import Evaluation, agreement, difference
from swiftlet_serve.offline.fidelity import LEAST, Fidelity


@dataclass(frozen=True)
class Verdict:
    """Why a precision is refused, or what the data cannot tell. Each is a clause that follows its name, or empty."""

    refusal: str = ""
    warning: str = ""


def loss_of(fp32: Evaluation, int8: Evaluation) -> Score:
    """Returns the loss of the main score in points, with an interval for paired examples.

    If the main score is not the mean of the examples' marks, they give the width of the interval only.
    """
    paired, lost = difference(fp32, int8), fp32.main.value - int8.main.value
    return Score(lost, lost + paired.low - paired.value, lost + paired.high - paired.value, paired.n)


def judge(fp32: Evaluation | None, int8: Evaluation | None, kept: Fidelity, max_loss: float) -> Verdict:
    """Decides by the examples of a data file if they can tell, and else by the built-in texts.

    The examples refuse a loss above `max_loss` points that is not due to chance, and vectors whose mean cosine with
    the vectors of fp32 is too low. They accept int8 if the whole interval of its loss is at most `max_loss`.

    Args:
        fp32: the results of fp32. None: there is no data file.
        int8: the results of int8.
        kept: the fidelity of the answers to built-in texts.
        max_loss: points of the main score.
    """
    warning = ""
    if fp32 is not None and int8 is not None:
        loss, same = loss_of(fp32, int8), agreement(fp32, int8).value
        interval = f"95 % interval {loss.low:.2f} to {loss.high:.2f}, n = {loss.n:,}"
        told = f"loses {loss.value:.2f} points of {next(iter(fp32.scores))} ({interval})"
        if not same >= int8.min_agreement:
            return Verdict(f"agrees with fp32 to {same:.2f} %, and at least {int8.min_agreement} % are required")
        if loss.low > 0 and loss.value > max_loss:
            return Verdict(f"{told}, and at most {max_loss:g} are allowed")
        if loss.high <= max_loss:
            return Verdict()
        warning = (
            f"{told}: so few examples cannot tell whether it loses more than {max_loss:g}, so the built-in texts decide"
        )
    if not kept.sufficient:
        return Verdict(
            f"keeps {100 * kept.mean:.1f} % of the answers to built-in texts ({kept.measure}), and at least "
            f"{100 * LEAST[kept.measure]:g} % are required"
        )
    return Verdict(warning=warning)
