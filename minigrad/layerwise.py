"""LARS and LAMB: each parameter moves by a fraction of its own norm.

The *trust ratio* is the norm of a parameter over that of what would move it; a parameter stands for
the papers' layer. Read `LayerWise`, then the two `update`s: they are the formulas. The ratio is
taken once per update, of the finished gradient, for norms do not add up: the ratios of the parts of
a batch say nothing of the whole. It hides a wrong scale of the gradient, such as a forgotten 1/k;
weight decay, eps and the parameters without a ratio show it.

Parameters with fewer than two axes, biases and the scales of normalizations, have ratio 1 and no
weight decay, as in MoCo v3's LARS and with the usual groups of parameters for timm and BERT.
(MLPerf's LARS decays the bias of a Linear; the papers are silent.) The ratio is 1, too, where one
of its two norms is 0, as in timm, though LARS's formula with decay has another value for g = 0;
Apex's LARC leaves out the decay there. A norm is 0 where all squares are too small for the dtype.

Taught in lesson 12.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from minigrad.arrays import constant, refuse_fractions, squared_norm
from minigrad.optimizers import Optimizer, Parameters, Rate


class LayerWise(Optimizer):
    """An optimizer that needs the norm of each parameter: `update` gets whole parameters, in their
    shapes. Its scratch is twice as large as the largest of them."""

    def __init__(self, parameters: Parameters, lr: Rate, weight_decay: float) -> None:
        super().__init__(parameters, lr, weight_decay)
        arrays = [p.data for p in self.parameters]
        refuse_fractions(f"{type(self).__name__}()", arrays, "use mg.SGD")

    def prepare(self) -> tuple[Any, list[Any]]:
        """The rate and the memory that an update needs: all of it that may fail."""
        largest = [max(view.size for view in flat.views) for flat in self.flats]
        return self.rate, [
            np.empty_like(flat.gradients, shape=(2, n))
            for flat, n in zip(self.flats, largest, strict=True)
        ]

    def write(self, prepared: tuple[Any, list[Any]]) -> None:
        """The update itself, parameter by parameter, of what `gradients` has found."""
        rate, scratch = prepared
        self.updates += 1
        with np.errstate(all="ignore"):
            for flat, state, spare in zip(self.flats, self.state, scratch, strict=True):
                for i, (p, g) in enumerate(zip(flat.views, flat.homes, strict=True)):
                    if flat.parameters[i].grad is not None:
                        s, t = (row[: p.size].reshape(p.shape) for row in spare)
                        states = (flat.view(state[name], i) for name in state)
                        self.update(p, g, constant(rate, g), s, t, *states)


def norm(values: Any, spare: Any) -> Any:
    """|values|, still on its device: no wait. float16 is added up in the float32 of `spare`."""
    if values.dtype != spare.dtype:
        spare[...] = values
        values = spare
    return np.sqrt(squared_norm([values]))


def unless_zero(ratio: Any, *norms: Any) -> Any:
    """The ratio of two norms, or 1 where one of them is 0."""
    return np.where(np.minimum(*norms) > 0, ratio, 1.0)


# ------------------------------------------------------------------------------------ LARS


def corrected_momentum(momentum: Any, rate: Any, before: Any) -> Any:
    """m rate / before: what keeps a velocity that holds the rate equal to one that does not, when
    the rate changes (Goyal et al. 2017, section 3, remark 2). m where the rate before was 0."""
    return momentum * rate / before if before else momentum


class LARS(LayerWise):
    """p <- p - v, with v <- momentum v + lr ratio (g + decay p) and the ratio
    trust |p| / (|g| + decay |p|) (You, Gitman & Ginsburg 2017, algorithm 1: there gamma is lr, eta
    trust_coefficient, beta weight_decay). Without decay and momentum an update has the norm
    lr trust |p|, whatever the scale of g.

    form: where lr stands; equal while lr is constant.
        "inside" v, as above: the paper and Caffe.
        "outside": p <- p - lr v, with v without lr: Apex, timm, whatever builds on PyTorch's SGD.
        "corrected": inside, with `corrected_momentum`: equal to "outside" for rates above 0. The
        rate before is that of the optimizer's update before, also for a parameter that had no
        gradient in it, and is a part of the state. A rate of 0 empties v.
    clip: LARC (Apex): the rate of a parameter is min(lr, ratio) in place of lr ratio.
    """

    states: tuple[str, ...] = ("velocity",)

    def __init__(
        self,
        parameters: Parameters,
        lr: Rate,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        form: str = "inside",
        clip: bool = False,
    ) -> None:
        self._at_least_0("momentum", momentum)
        self._at_least_0("trust_coefficient", trust_coefficient)
        if form not in ("inside", "outside", "corrected"):
            what = f"LARS() got form = {form!r}"
            raise ValueError(f"{what}, expected 'inside', 'outside' or 'corrected'")
        if not momentum:
            self.states = ()
        self.momentum, self.trust_coefficient = momentum, trust_coefficient
        self.form, self.clip = form, clip
        super().__init__(parameters, lr, weight_decay)

    def _lay_out(self) -> None:
        super()._lay_out()
        self.rate_before = np.zeros(())  # an array, for `_arrays`; on the host, where rates are

    def _arrays(self) -> dict[str, Any]:
        kept = {"rate": self.rate_before} if self.form == "corrected" else {}
        return super()._arrays() | kept

    def write(self, prepared: tuple[Any, list[Any]]) -> None:
        """The update itself, and a note of its rate for the next one."""
        super().write(prepared)
        self.rate_before[...] = prepared[0]

    def ratio(self, p: Any, g: Any, lr: float, t: Any) -> Any:
        """How much of lr is this parameter's."""
        trust, decay = constant(self.trust_coefficient, g), constant(self.weight_decay, g)
        w, g = norm(p, t), norm(g, t)
        ratio = trust * w / (g + decay * w)
        if self.clip:
            ratio = np.minimum(ratio, lr) / (lr or 1.0)
        return unless_zero(ratio, w, g)

    def update(self, p: Any, g: Any, lr: float, s: Any, t: Any, *velocity: Any) -> None:
        momentum = constant(self.momentum, g)
        if self.form == "corrected":
            momentum = corrected_momentum(momentum, lr, self.rate_before.item())
        s[...] = g
        if p.ndim > 1:
            s += np.multiply(p, constant(self.weight_decay, p), out=t)
            s *= self.ratio(p, g, lr, t)
        if self.form != "outside":
            s *= lr
        for v in velocity:
            v *= momentum
            v += s
            s[...] = v
        if self.form == "outside":
            s *= lr
        p -= s


# ------------------------------------------------------------------------------------ LAMB


class LAMB(LayerWise):
    """p <- p - lr phi(|p|) / |r + decay p| (r + decay p), with r = m' / (sqrt(v') + eps), Adam's
    step without its rate (You et al. 2020, algorithm 2: there lambda is weight_decay).

    m, v and the corrected m', v' are those of Adam (optimizers.py). What is corrected is computed
    anew in each update: written back into m and v, a mistake of some ports, it is corrected twice.

    bias_correction: whether m and v are corrected for their start at 0. The paper (arXiv
        1904.00962) did so in version 1, not in version 3 (fastai/swiftai PR 13), and again in
        version 5, whose appendix E says that it may go (mlx-optimizers PR 39). Without weight
        decay the ratio hides it, up to eps.
    norm_limits: (gl, gu) of phi(z) = min(max(z, gl), gu), which the paper leaves open. None, as in
        most implementations: phi(z) = z, and an update has the norm lr |p|.
    adapt_without_decay: False: the ratio is 1 if weight_decay is 0, which makes LAMB Adam (timm's
        always_adapt, Apex's use_nvlamb, both False by default).

    NVIDIA's implementation first clips the norm of the whole gradient to 1 (DeepLearningExamples
    #215): that is train_step's clip_norm=1.0.
    """

    states = ("m", "v")

    def __init__(
        self,
        parameters: Parameters,
        lr: Rate = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 1e-2,
        bias_correction: bool = True,
        norm_limits: tuple[float, float] | None = None,
        adapt_without_decay: bool = True,
    ) -> None:
        for beta in betas:
            self._at_least_0("a beta", beta, below=1)
        self._at_least_0("eps", eps)
        low, high = norm_limits or (0, 0)
        if not 0 <= low <= high:
            what = f"LAMB() got norm_limits = {norm_limits}"
            raise ValueError(f"{what}, expected (low, high) with 0 <= low <= high, or None")
        self.betas, self.eps, self.bias_correction = betas, eps, bias_correction
        self.norm_limits, self.adapt_without_decay = norm_limits, adapt_without_decay
        super().__init__(parameters, lr, weight_decay)

    def ratio(self, p: Any, moving: Any, t: Any) -> Any:
        """phi(|p|) over the norm of what would move p."""
        phi, r = norm(p, t), norm(moving, t)
        if self.norm_limits is not None:
            low, high = (constant(limit, moving) for limit in self.norm_limits)
            phi = np.minimum(np.maximum(phi, low), high)
        return unless_zero(phi / r, phi, r)

    def update(self, p: Any, g: Any, lr: float, s: Any, t: Any, m: Any, v: Any) -> None:
        b1, b2 = (constant(beta, g) for beta in self.betas)
        first, second = 1 - b1, 1 - b2
        if self.bias_correction:
            first, second = first / (1 - b1**self.updates), second / (1 - b2**self.updates)
        m *= b1
        m += g
        v *= b2
        v += np.multiply(g, g, out=s)
        np.multiply(v, second, out=s)
        np.sqrt(s, out=s)
        s += constant(self.eps, g)
        np.divide(m, s, out=s)
        s *= first
        if p.ndim > 1:
            s += np.multiply(p, constant(self.weight_decay, p), out=t)
            if self.weight_decay or self.adapt_without_decay:
                s *= self.ratio(p, s, t)
        s *= lr
        p -= s
