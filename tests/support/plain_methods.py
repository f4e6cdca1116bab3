"""Plain renderings of the methods, from their papers' algorithm boxes: a line there, a line here.

They share nothing with the suite but the noise and the settings: no parameter space, no posterior class. θ and all
directions are single vectors. Each function is a generator: it makes a step and yields the record that the suite's step
should have.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zo.noise import PERTURBATION, SUBSPACE, NoiseKey, engine

NOISE = engine("torch")
Steps = Iterator[tuple[float, ...]]
Part = tuple[float, Tensor]
"""A coefficient and a direction."""

TINY = 1e-10  # coefficients at or below this neither displace nor update
JITTER = 1e-10  # added to the diagonal of the covariance after each observation


def vector(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([t.flatten() for t in tensors])


class Twin:
    """θ of the rendering, and the suite's optimizer, for noise, step and settings alone; the problem has L and ∇L."""

    def __init__(self, opt: Any, problem: Any):
        self.opt, self.problem = opt, problem
        self.shapes = [p.shape for p in problem.params.local]
        self.theta, self.first = problem.weights(), problem.weights()
        self.lr, self.s = opt.rates[0].lr, asdict(opt.config)
        self.eps, self.n = self.s.get("eps", 0.0), self.s.get("n", 1)

    @property
    def now(self) -> int:
        return int(self.opt.step_index)

    def parts(self, x: Tensor) -> list[Tensor]:
        """Views of a vector in the shapes of the tensors."""
        parts = x.split([shape.numel() for shape in self.shapes])
        return [part.view(shape) for part, shape in zip(parts, self.shapes, strict=True)]

    def matrices(self, x: Tensor) -> list[tuple[int, Tensor]]:
        return [(j, part) for j, part in enumerate(self.parts(x)) if part.dim() > 1]

    def normal(
        self, stream: int, step: int, i: int, j: int, shape: Any, signs: bool = False
    ) -> Tensor:
        return NOISE.draw_(torch.empty(shape), NoiseKey(self.opt.seed, stream, step, i), j, signs)

    def z(self, i: int) -> Tensor:
        """Direction i of the step."""
        of, signs = (PERTURBATION, self.now, i), self.s["directions"] == "rademacher"
        return vector(self.normal(*of, j, shape, signs) for j, shape in enumerate(self.shapes))

    def at(self, scale: float, *parts: Part) -> Tensor:
        """θ + scale Σ c z, part by part."""
        found = self.theta.clone()
        for c, z in parts:
            found.add_(z, alpha=scale * c)
        return found

    def loss(self, scale: float = 0.0, *parts: Part) -> float:
        """L(θ + scale Σ c z)."""
        return self.problem.at(self.parts(self.at(scale, *parts)))

    def move(self, scale: float, *parts: Part) -> None:
        """θ ← θ + scale Σ c z."""
        self.theta = self.at(scale, *parts)

    def decay(self) -> None:
        """θ ← θ − η λ θ where decay applies."""
        for p, does in zip(self.parts(self.theta), self.opt.params.decays, strict=True):
            p.sub_(self.lr * self.s["weight_decay"] * does * p)

    def slope(self, here: float, *parts: Part) -> float:
        """The difference quotient, two-sided or one-sided from the loss at θ."""
        ahead = self.loss(self.eps, *parts)
        if self.s.get("two_sided", True):
            return (ahead - self.loss(-self.eps, *parts)) / (2 * self.eps)
        return (ahead - here) / self.eps

    def slopes(self, directions: list[Tensor]) -> list[float]:
        here = self.loss()
        return [self.slope(here, (1.0, z)) for z in directions]

    def directions(self) -> list[Tensor]:
        return [self.z(i) for i in range(self.n)]

    def mean(self, slopes: list[float], directions: list[Tensor]) -> Tensor:
        """1/n Σ c_i z_i."""
        return sum(c * z for c, z in zip(slopes, directions, strict=True)) / len(slopes)  # type: ignore[return-value]

    def gradient(self) -> tuple[list[float], Tensor]:
        """Slopes along n directions, and the estimate that they make; of a first-order method, none and ∇L."""
        if not self.opt.config.replays:
            return [], vector(self.problem.gradient(self.parts(self.theta)))
        z = self.directions()
        c = self.slopes(z)
        return c, self.mean(c, z)


def mezo(t: Twin) -> Steps:
    """n-SPSA if n > 1; with `step_norm=rms` MEAZO; an anchor shrinks θ − θ₀ by its share, or soft-thresholds it."""
    v, beta = 0.0, t.s["norm_beta"]
    while True:
        z = t.directions()
        c, scale = t.slopes(z), 1.0
        if t.s["step_norm"] == "rms":
            v = beta * v + (1 - beta) * (sum(c) / len(c)) ** 2
            scale = 1 / (math.sqrt(v / (1 - beta ** (t.now + 1))) + 1e-8)
        t.decay()
        for c_i, z_i in zip(c, z, strict=True):
            t.move(-t.lr * scale * c_i / t.n, (1.0, z_i))
        if t.s["anchor"] == "start":
            away, rate = t.theta - t.first, t.lr * t.s["anchor_decay"]
            l1 = t.s["anchor_norm"] == "l1"
            t.theta = t.first + (
                torch.nn.functional.softshrink(away, rate) if l1 else (1 - rate) * away
            )
        yield tuple(c)


def torchs(t: Twin) -> Steps:
    """torch's own SGD or AdamW, of the gradient or of MeZO's estimate of it."""
    parts = t.parts(t.theta)
    decays = [does * t.s["weight_decay"] for does in t.opt.params.decays]
    groups = [{"params": [p], "weight_decay": d} for p, d in zip(parts, decays, strict=True)]
    if "momentum" in t.s:
        optimizer: Any = torch.optim.SGD(groups, t.lr, t.s["momentum"])
    else:
        betas = t.s["beta1"], t.s["beta2"]
        optimizer = torch.optim.AdamW(groups, t.lr, betas, t.s["adam_eps"])
    while True:
        c, gradient = t.gradient()
        for p, g in zip(parts, t.parts(gradient), strict=True):
            p.grad = g
        optimizer.step()
        yield tuple(c)


def hizoo(t: Twin) -> Steps:
    """Algorithm 1 of Zhao et al. 2025, in the order of its code; H begins as ones."""
    h = torch.ones_like(t.theta)
    while True:
        smooth, z = t.s["hessian_smooth"], t.z(0)
        if t.s["smooth_schedule"] == "cosine":
            smooth *= 0.5 * (1 + math.cos(math.pi * min(1, t.now / t.s["smooth_steps"])))
        along = (1.0, z / h.sqrt())
        plus, minus = t.loss(t.eps, along), t.loss(-t.eps, along)
        bend = abs(plus + minus - 2 * t.loss())
        h = (1 - smooth) * h + bend * smooth * h * z**2 / (2 * t.eps**2)
        c = (plus - minus) / (2 * t.eps)
        t.decay()
        t.move(-t.lr * c, (1.0, z / h.sqrt()))
        yield c, bend


def top_eigenvector(cov: np.ndarray) -> np.ndarray:
    """The unit vector v of largest vᵀΣv; of equals, the last that eigh returns."""
    return np.linalg.eigh(cov)[1][:, -1]


def bszo(t: Twin) -> Steps:
    """Algorithms 1 (BSZO, `reuse_probes`) and 2 (BSZO-B) of the paper.

    `noise_update` says when σ_e² adapts: after `every` observation and before its Kalman update, or only in the τ > k
    branch, in that branch's printed order (`extra`).
    """
    s, k = t.s, t.s["k"]
    m = k + 1 if s["m"] is None else s["m"]
    auto = math.sqrt(t.theta.numel() / 1e6)
    prior_std, first_std = (auto if s[x] is None else s[x] for x in ("prior_std", "noise_std"))
    running_var = first_std**2

    def adapt(residual: float) -> None:
        nonlocal running_var
        if s["adaptive_noise"]:
            running_var = (1 - s["noise_ema"]) * running_var + s["noise_ema"] * residual**2

    while True:
        mu, cov = np.zeros(k), prior_std**2 * np.eye(k)
        f0 = t.loss()
        cache: dict[int, float] = {}
        d, y = np.zeros(k), math.nan
        for tau in range(m):
            extra = tau >= k
            if extra and s["noise_update"] == "extra":
                # Algorithm 1 to the letter: d and y are still those of the observation before.
                adapt((y - d @ mu) / np.linalg.norm(d))
            fresh, d = True, np.eye(k)[tau % k]
            if extra and s["adaptive_sampling"]:
                d = top_eigenvector(cov)
                if s["reuse_probes"]:
                    j = int(np.argmax(np.abs(d)))
                    d, y, fresh = np.eye(k)[j], cache[j], False
            if fresh:
                z = [(float(d_i), t.z(i)) for i, d_i in enumerate(d) if abs(d_i) > TINY]
                y = t.slope(f0, *z)
                if tau < k:
                    cache[tau] = y
            if s["noise_update"] == "every":
                adapt((y - d @ mu) / np.linalg.norm(d))
            noise_std = max(s["noise_floor"] * first_std, math.sqrt(running_var))
            gain = cov @ d / (d @ cov @ d + noise_std**2 * (d @ d))
            mu = mu + gain * (y - d @ mu)
            cov = cov - np.outer(gain, d @ cov)
            cov = (cov + cov.T) / 2 + JITTER * np.eye(k)
        for i in np.flatnonzero(abs(mu) > TINY):
            t.move(-t.lr * float(mu[i]), (1.0, t.z(int(i))))
        yield (*mu, running_var)


def zo_sign(t: Twin) -> Steps:
    while True:
        c, gradient = t.gradient()
        t.move(-t.lr, (1.0, gradient.sign()))
        yield tuple(c)


def zo_conservative(t: Twin) -> Steps:
    while True:
        c, g = t.gradient()
        here, ahead, behind = t.loss(), t.loss(-t.lr, (1.0, g)), t.loss(t.lr, (1.0, g))
        side = 0.0 if here <= min(ahead, behind) else 1.0 if ahead <= behind else -1.0
        t.move(-t.lr * side, (1.0, g))
        yield tuple(side * c_i for c_i in c)


def sparse_mezo(t: Twin) -> Steps:
    limits = []
    for p in t.parts(t.theta):
        values = p.abs().flatten().sort().values
        masked = t.s["scope"] == "all" or p.dim() == 2
        h = values[max(1, int(t.s["share"] * len(values))) - 1] if masked else math.inf
        limits.append(torch.full(p.shape, float(h)))
    while True:
        mask = (t.theta.abs() <= vector(limits)).float()
        z = [mask * z_i for z_i in t.directions()]
        c = t.slopes(z)
        t.move(-t.lr, (1.0, t.mean(c, z)))
        yield tuple(c)


def conmezo(t: Twin) -> Steps:
    """Weight cos ϑ on the momentum, sin ϑ on the noise."""
    s, m = t.s, vector(t.normal(SUBSPACE, 0, 0, j, shape) for j, shape in enumerate(t.shapes))
    while True:
        along = math.sqrt(len(m)) * math.cos(s["angle"]) / float(m.double().norm())
        z = along * m + math.sin(s["angle"]) * t.z(0)
        (c,) = t.slopes([z])
        t.move(-t.lr * c, (1.0, z))
        past = max(0, t.now - s["hold"]) / s["ramp"]
        beta = s["beta"] - (s["beta"] - s["beta_start"]) / (1 + 8 * past**1.8) ** 3
        beta = s["beta"] if past > 1 else beta
        m = beta * m + (1 - beta) * c * z
        yield (c,)


def adamezo(t: Twin) -> Steps:
    past: list[Part] = []
    while True:
        z = t.z(0)
        (c,) = t.slopes([z])
        past.insert(0, (c, z))
        recent = list(enumerate(past[: t.s["window"]]))
        m: Any = sum(t.s["beta1"] ** k * c_k * z_k for k, (c_k, z_k) in recent)
        v: Any = sum(t.s["beta2"] ** k * (c_k * z_k) ** 2 for k, (c_k, z_k) in recent)
        begins = len(past) <= t.s["window"] + 1  # as the released code counts
        t.move(-t.lr, (1.0, c * z if begins else t.s["scale"] * m / (v.sqrt() + t.s["adam_eps"])))
        yield (c,)


def fzoo(t: Twin) -> Steps:
    while True:
        u = t.directions()
        losses = [t.loss(t.eps, (1.0, u_i)) for u_i in u]
        c = [(loss - t.loss()) / statistics.stdev(losses) for loss in losses]
        t.move(-t.lr, (1.0, t.mean(c, u)))
        yield tuple(c)


def columns(t: Twin, i: int, j: int, step: int, *, kept: bool, length: int) -> Tensor:
    """(length, rank) normals of a kept factor or of a new one."""
    stream = SUBSPACE if kept else PERTURBATION
    return t.normal(stream, step, i, j, (t.s["rank"], length)).T


def es(t: Twin) -> Steps:
    """Rewards are shaped as the releases shape them: numpy's std, jax's var, ranks with ties by scipy's rule."""
    sides, root = [1.0, -1.0] if t.s["mirrored"] else [1.0], math.sqrt(t.s["rank"])
    while True:
        noise = [t.z(i) for i in range(t.n // len(sides))]
        for i, e in enumerate(noise):
            for j, part in t.matrices(e) if t.s["directions"] == "low_rank" else ():
                a = columns(t, i, j, t.now, kept=False, length=part.shape[0])
                b = columns(t, i, j, t.now, kept=True, length=part.shape[1])
                part.copy_(a @ b.T / root)
        members = [(s, e) for e in noise for s in sides]
        rewards = np.array([-t.loss(t.eps, member) for member in members])
        apart = rewards - rewards.mean()
        if t.s["shaping"] == "ranks":
            below = (rewards[:, None] > rewards).sum(1)
            equal = (rewards[:, None] == rewards).sum(1)
            w = (below + (equal - 1) / 2) / (t.n - 1) - 0.5
        elif t.s["shaping"] == "none":
            w = apart / t.eps
        elif t.s["baseline"] == "prompt":
            w = apart / np.sqrt(rewards.var() + 1e-5)  # of one prompt
        else:
            w = apart / (rewards.std() + 1e-8)
        t.decay()
        for w_n, member in zip(w, members, strict=True):
            t.move(t.lr / t.n * float(w_n), member)
        yield tuple(-np.reshape(w * [s for s, _ in members], (-1, len(sides))).mean(1))


def lozo(t: Twin) -> Steps:
    """Algorithm 1 of Chen et al. 2025, and with momentum its LOZO-M."""
    n: dict[int, Any] = {}
    u, v, old = dict(n), dict(n), dict(n)
    move, share = torch.zeros_like(t.theta), 1 / t.s["rank"] if t.s["divide_by_rank"] else 1.0
    while True:
        first, beta, interval = t.now == 0, t.s.get("momentum", 0.0), t.s["interval"]
        beta, z = 0.0 if first else beta, t.z(0)
        for j, part in t.matrices(z):
            u[j] = columns(t, 0, j, t.now, kept=False, length=part.shape[0])
            v[j] = columns(t, 0, j, t.now // interval, kept=True, length=part.shape[1])
            part.copy_(u[j] @ v[j].T)
        (c,) = t.slopes([z])
        move = beta * move + (1 - beta) * c * z
        for j, part in t.matrices(move):
            if t.now % interval == 0 and not first:
                n[j] = n[j] @ (old[j].T @ v[j]) / part.shape[1]
            n[j] = beta * n.get(j, 0.0) + (1 - beta) * c * u[j]
            part.copy_(share * n[j] @ v[j].T)
        t.decay()
        t.move(-t.lr, (1.0, move))
        old.update(v)
        yield (c,)


def haar(t: Twin, side: int, j: int, length: int) -> Tensor:
    """(length, min(rank, length)) orthonormal columns of this interval: G R⁻¹ of normals G, where GᵀG = RᵀR."""
    g = columns(t, side, j, t.now // t.s["interval"], kept=True, length=length)
    g = g.double()[:, :length]
    root = torch.linalg.cholesky(g.T @ g, upper=True)
    return torch.linalg.solve_triangular(root, g, upper=True, left=False).float()


def subzero(t: Twin) -> Steps:
    while True:
        d = t.z(0)
        for j, part in t.matrices(d):
            a, b = (haar(t, side, j, length) for side, length in enumerate(part.shape))
            z = columns(t, 0, j, t.now, kept=False, length=t.s["rank"]).T
            z = z[: a.shape[1], : b.shape[1]]
            part.copy_(math.sqrt(part.numel() / z.numel()) * a @ z @ b.T)
        (c,) = t.slopes([d])
        t.move(-t.lr * c, (1.0, d))
        yield (c,)


def tezo(t: Twin) -> Steps:
    rank, s, shapes = t.s["rank"], t.s, list(enumerate(t.shapes))
    u = [columns(t, 0, j, 0, kept=True, length=shape[0]) for j, shape in shapes]
    v = [columns(t, 1, j, 0, kept=True, length=shape[-1]) for j, shape in shapes]
    a, b = [0.0 for _ in shapes], [0.0 for _ in shapes]
    beta1, beta2 = s["beta1"], s["beta2"]

    def spread(j: int, x: Any, power: int = 1) -> Any:
        """U diag(x) Vᵀ / √r, or the same of the squares."""
        if len(t.shapes[j]) < 2:
            return x
        return (u[j] ** power * x) @ (v[j] ** power).T / math.sqrt(rank) ** power

    while True:
        drawn = [(rank,) if len(shape) > 1 else shape for shape in t.shapes]
        tau = [t.normal(PERTURBATION, t.now, 0, j, shape) for j, shape in enumerate(drawn)]
        (c,) = t.slopes([vector(spread(j, x) for j, x in enumerate(tau))])
        move = []
        for j, x in enumerate(tau):
            a[j] = beta1 * a[j] + (1 - beta1) * c * x
            b[j] = beta2 * b[j] + (1 - beta2) * (c * x) ** 2
            mean, square = a[j] / (1 - beta1 ** (t.now + 1)), b[j] / (1 - beta2 ** (t.now + 1))
            moved = spread(j, {"sgd": c * x, "momentum": a[j], "adam": mean}[s["variant"]])
            root = spread(j, square, 2).sqrt() + s["adam_eps"] if s["variant"] == "adam" else 1.0
            move.append(moved / root)
        t.move(-t.lr, (1.0, vector(move)))
        yield (c,)


def zo_muon(t: Twin) -> Steps:
    """With `msign=svd`."""
    while True:
        shapes = t.matrices(t.theta)
        basis = {j: haar(t, 0, j, part.shape[0]) for j, part in shapes}
        psi, z = [t.parts(of) for of in t.directions()], []
        for i, of in enumerate(psi):
            for j, part in shapes:
                normals = columns(t, i, j, t.now, kept=False, length=part.shape[1])
                of[j] = normals[:, : basis[j].shape[1]].T
            z.append(vector(basis[j] @ x if j in basis else x for j, x in enumerate(of)))
        c = [(t.loss(t.eps, (1.0, z_i)) - t.loss()) / t.eps for z_i in z]
        move = []
        for j, of in enumerate(zip(*psi, strict=True)):
            g = t.mean(c, list(of))
            if j in basis:
                left, _, right = torch.linalg.svd(g.double(), full_matrices=False)
            move.append(basis[j] @ (left @ right).float() if j in basis else t.s["vector_lr"] * g)
        t.move(-t.lr, (1.0, vector(move)))
        yield tuple(c)
