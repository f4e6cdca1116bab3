"""Plain renderings of the methods, from their papers' algorithm boxes: a line there, a line here.

They share nothing with the suite but the noise and the settings: no parameter space, no posterior class. `Twin.z(i)` is
direction i of the optimizer's current step, `Twin.normal` any other draw. Each function is a generator: it makes a step
and yields the record that the suite's step should have.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from zo.noise import PERTURBATION, SUBSPACE, NoiseKey, engine

NOISE = engine("torch")
Steps = Iterator[tuple[float, ...]]
Part = tuple[float, list[Tensor]]
"""A coefficient and a direction."""

TINY = 1e-10  # coefficients at or below this neither displace nor update
JITTER = 1e-10  # added to the diagonal of the covariance after each observation


class Twin:
    """θ of the rendering with its loss, and the suite's optimizer, for noise, step and settings alone.

    Args:
        opt: The suite's optimizer.
        theta: θ, moved in place.
        problem: Has L(θ) and ∇L(θ), tensor by tensor.
    """

    def __init__(self, opt: Any, theta: list[Tensor], problem: Any):
        self.opt, self.theta, self.problem = opt, theta, problem
        self.lr, self.s = opt.rates[0].lr, asdict(opt.config)
        self.eps, self.n = self.s.get("eps", 0.0), self.s.get("n", 1)
        self.first = [p.clone() for p in theta]

    def normal(self, stream: int, step: int, i: int, j: int, shape: Any) -> Tensor:
        return NOISE.draw_(torch.empty(shape), NoiseKey(self.opt.seed, stream, step, i), j)

    def z(self, i: int) -> list[Tensor]:
        signs = self.s["directions"] == "rademacher"
        key = NoiseKey(self.opt.seed, PERTURBATION, self.opt.step_index, i)
        return [NOISE.draw_(torch.empty(p.shape), key, j, signs) for j, p in enumerate(self.theta)]

    def at(self, scale: float, *parts: Part) -> list[Tensor]:
        """θ + scale Σ c z, part by part, in tensors of their own."""
        found = [p.clone() for p in self.theta]
        for c, z in parts:
            torch._foreach_add_(found, z, alpha=scale * c)
        return found

    def loss(self, scale: float = 0.0, *parts: Part) -> float:
        """L(θ + scale Σ c z)."""
        return self.problem.at(self.at(scale, *parts))

    def move(self, scale: float, *parts: Part) -> None:
        """θ ← θ + scale Σ c z."""
        torch._foreach_copy_(self.theta, self.at(scale, *parts))

    def decay(self) -> None:
        """θ ← θ − η λ θ where decay applies."""
        for p, does in zip(self.theta, self.opt.params.decays, strict=True):
            p.sub_(self.lr * self.s["weight_decay"] * does * p)

    def pull(self) -> None:
        """Anchored weight decay: θ − θ₀ shrinks by its share, or is soft-thresholded."""
        rate = self.lr * self.s["anchor_decay"]
        for p, first in zip(self.theta, self.first, strict=True):
            if self.s["anchor_norm"] == "l2":
                p.copy_(first + (1 - rate) * (p - first))
            else:
                p.copy_(first + torch.nn.functional.softshrink(p - first, rate))

    def slope(self, here: float, *parts: Part) -> float:
        """The difference quotient, two-sided or one-sided from the loss at θ."""
        ahead = self.loss(self.eps, *parts)
        if self.s.get("two_sided", True):
            return (ahead - self.loss(-self.eps, *parts)) / (2 * self.eps)
        return (ahead - here) / self.eps

    def slopes(self, directions: list[list[Tensor]]) -> list[float]:
        here = self.loss()
        return [self.slope(here, (1.0, z)) for z in directions]

    def directions(self) -> list[list[Tensor]]:
        return [self.z(i) for i in range(self.n)]

    def mean(self, slopes: list[float], directions: list[list[Tensor]]) -> list[Tensor]:
        """1/n Σ c_i z_i."""
        pairs = list(zip(slopes, directions, strict=True))
        return [sum(c * z[j] for c, z in pairs) / len(pairs) for j in range(len(self.theta))]

    def gradient(self) -> tuple[list[float], list[Tensor]]:
        """Slopes along n directions, and the estimate that they make; of a first-order method, none and ∇L."""
        if not self.opt.config.replays:
            return [], self.problem.gradient(self.theta)
        z = self.directions()
        c = self.slopes(z)
        return c, self.mean(c, z)


def mezo(t: Twin) -> Steps:
    """n-SPSA if n > 1; with `step_norm=rms` MEAZO."""
    v = 0.0
    while True:
        z = t.directions()
        c, scale = t.slopes(z), 1.0
        if t.s["step_norm"] == "rms":
            v = t.s["norm_beta"] * v + (1 - t.s["norm_beta"]) * (sum(c) / len(c)) ** 2
            v_hat = v / (1 - t.s["norm_beta"] ** (t.opt.step_index + 1))
            scale = 1 / (math.sqrt(v_hat) + 1e-8)
        t.decay()
        for c_i, z_i in zip(c, z, strict=True):
            t.move(-t.lr * scale * c_i / t.n, (1.0, z_i))
        if t.s["anchor"] == "start":
            t.pull()
        yield tuple(c)


def torchs(t: Twin) -> Steps:
    """torch's own SGD or AdamW, of the gradient or of MeZO's estimate of it."""
    decays = [does * t.s["weight_decay"] for does in t.opt.params.decays]
    groups = [{"params": [p], "weight_decay": d} for p, d in zip(t.theta, decays, strict=True)]
    if "momentum" in t.s:
        optimizer: Any = torch.optim.SGD(groups, t.lr, t.s["momentum"])
    else:
        betas = t.s["beta1"], t.s["beta2"]
        optimizer = torch.optim.AdamW(groups, t.lr, betas, t.s["adam_eps"])
    while True:
        c, gradient = t.gradient()
        for p, g in zip(t.theta, gradient, strict=True):
            p.grad = g
        optimizer.step()
        yield tuple(c)


def hizoo(t: Twin) -> Steps:
    """Algorithm 1 of Zhao et al. 2025, in the order of its code; H begins as ones."""
    h = [torch.ones(p.shape) for p in t.theta]
    while True:
        smooth, z = t.s["hessian_smooth"], t.z(0)
        if t.s["smooth_schedule"] == "cosine":
            done = min(1, t.opt.step_index / t.s["smooth_steps"])
            smooth *= 0.5 * (1 + math.cos(math.pi * done))
        along = (1.0, [x / r.sqrt() for x, r in zip(z, h, strict=True)])
        plus, minus = t.loss(t.eps, along), t.loss(-t.eps, along)
        bend = abs(plus + minus - 2 * t.loss())
        for x, h_x in zip(z, h, strict=True):
            h_x.copy_((1 - smooth) * h_x + bend * smooth * h_x * x**2 / (2 * t.eps**2))
        c = (plus - minus) / (2 * t.eps)
        t.decay()
        t.move(-t.lr * c, (1.0, [x / r.sqrt() for x, r in zip(z, h, strict=True)]))
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
    auto = math.sqrt(sum(p.numel() for p in t.theta) / 1e6)
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
        t.move(-t.lr, (1.0, [g.sign() for g in gradient]))
        yield tuple(c)


def zo_conservative(t: Twin) -> Steps:
    while True:
        c, g = t.gradient()
        here, ahead, behind = t.loss(), t.loss(-t.lr, (1.0, g)), t.loss(t.lr, (1.0, g))
        side = 0.0 if here <= min(ahead, behind) else 1.0 if ahead <= behind else -1.0
        t.move(-t.lr * side, (1.0, g))
        yield tuple(side * c_i for c_i in c)


def sparse_mezo(t: Twin) -> Steps:
    share, everything = t.s["share"], t.s["scope"] == "all"
    h = [
        p.abs().flatten().sort().values[max(1, int(share * p.numel())) - 1]
        if everything or p.dim() == 2
        else math.inf
        for p in t.theta
    ]
    while True:
        mask = [(p.abs() <= h_p).float() for p, h_p in zip(t.theta, h, strict=True)]
        z = [[m * z_j for m, z_j in zip(mask, z, strict=True)] for z in t.directions()]
        c = t.slopes(z)
        t.move(-t.lr, (1.0, t.mean(c, z)))
        yield tuple(c)


def conmezo(t: Twin) -> Steps:
    """Weight cos ϑ on the momentum, sin ϑ on the noise."""
    m = [t.normal(SUBSPACE, 0, 0, j, p.shape) for j, p in enumerate(t.theta)]
    s, d = t.s, sum(p.numel() for p in t.theta)
    while True:
        length = math.sqrt(sum(float((x.double() ** 2).sum()) for x in m))
        along, across = math.sqrt(d) * math.cos(s["angle"]), math.sin(s["angle"])
        z = [along * x / length + across * u for x, u in zip(m, t.z(0), strict=True)]
        (c,) = t.slopes([z])
        t.move(-t.lr * c, (1.0, z))
        past = max(0, t.opt.step_index - s["hold"]) / s["ramp"]
        beta = s["beta"] - (s["beta"] - s["beta_start"]) / (1 + 8 * past**1.8) ** 3
        beta = s["beta"] if past > 1 else beta
        for x, z_x in zip(m, z, strict=True):
            x.copy_(beta * x + (1 - beta) * c * z_x)
        yield (c,)


def adamezo(t: Twin) -> Steps:
    past: list[tuple[float, list[Tensor]]] = []
    while True:
        z = t.z(0)
        (c,) = t.slopes([z])
        past.insert(0, (c, z))
        begins = len(past) <= t.s["window"] + 1  # as the released code counts
        recent = list(enumerate(past[: t.s["window"]]))
        for j, p in enumerate(t.theta):
            m = sum(t.s["beta1"] ** k * c_k * z_k[j] for k, (c_k, z_k) in recent)
            v = sum(t.s["beta2"] ** k * (c_k * z_k[j]) ** 2 for k, (c_k, z_k) in recent)
            adam = t.s["scale"] * m / (v.sqrt() + t.s["adam_eps"])
            p.sub_(t.lr * (c * z[j] if begins else adam))
        yield (c,)


def fzoo(t: Twin) -> Steps:
    while True:
        u = t.directions()
        losses = [t.loss(t.eps, (1.0, u_i)) for u_i in u]
        c = [(loss - t.loss()) / statistics.stdev(losses) for loss in losses]
        t.move(-t.lr, (1.0, t.mean(c, u)))
        yield tuple(c)


def population(t: Twin) -> tuple[list[float], list[list[Tensor]]]:
    """Sign and noise of each member."""
    sides = [1.0, -1.0] if t.s["mirrored"] else [1.0]
    signs, noise = [], []
    for i in range(t.n // len(sides)):
        e = t.z(i)
        if t.s["directions"] == "low_rank":
            for j, p in enumerate(t.theta):
                if p.dim() > 1:
                    step, (m, n) = t.opt.step_index, p.shape
                    a = columns(t, i, j, step, kept=False, length=m)
                    e[j] = (
                        a @ columns(t, i, j, step, kept=True, length=n).T / math.sqrt(t.s["rank"])
                    )
        signs += sides
        noise += [e] * len(sides)
    return signs, noise


def es(t: Twin) -> Steps:
    """Rewards are shaped as the releases shape them: numpy's std, jax's var, ranks with ties by scipy's rule."""
    while True:
        signs, noise = population(t)
        rewards = np.array(
            [-t.loss(s * t.eps, (1.0, e)) for s, e in zip(signs, noise, strict=True)]
        )
        if t.s["shaping"] == "ranks":
            below = (rewards[:, None] > rewards).sum(1)
            equal = (rewards[:, None] == rewards).sum(1)
            w = (below + (equal - 1) / 2) / (t.n - 1) - 0.5
        elif t.s["shaping"] == "none":
            w = (rewards - rewards.mean()) / t.eps
        elif t.s["baseline"] == "prompt":
            w = (rewards - rewards.mean()) / np.sqrt(rewards.var() + 1e-5)  # of one prompt
        else:
            w = (rewards - rewards.mean()) / (rewards.std() + 1e-8)
        t.decay()
        for w_n, s, e in zip(w, signs, noise, strict=True):
            t.move(t.lr / t.n * float(w_n) * s, (1.0, e))
        count = t.n // 2 if t.s["mirrored"] else t.n
        yield tuple(-np.reshape(w * signs, (count, -1)).mean(1))


def columns(t: Twin, i: int, j: int, step: int, *, kept: bool, length: int) -> Tensor:
    """(length, rank) normals of a kept factor or of a new one."""
    stream = SUBSPACE if kept else PERTURBATION
    return t.normal(stream, step, i, j, (t.s["rank"], length)).T


def factors(t: Twin) -> tuple[list[Tensor], list[Any]]:
    """U, new at each step, and V, new at each interval; of a vector plain noise and None."""
    u, v = t.z(0), [None for _ in t.theta]
    for j, p in enumerate(t.theta):
        if p.dim() > 1:
            step, interval = t.opt.step_index, t.opt.step_index // t.s["interval"]
            u[j] = columns(t, 0, j, step, kept=False, length=p.shape[0])
            v[j] = columns(t, 0, j, interval, kept=True, length=p.shape[1])
    return u, v


def lozo(t: Twin) -> Steps:
    """Algorithm 1 of Chen et al. 2025, and with momentum its LOZO-M."""
    interval, beta = t.s["interval"], t.s.get("momentum", 0.0)
    n, old = ([None for _ in t.theta] for _ in range(2))

    def product(u: list[Any], v: list[Any], scale: float = 1.0) -> list[Tensor]:
        return [x if y is None else scale * x @ y.T for x, y in zip(u, v, strict=True)]

    while True:
        u, v = factors(t)
        (c,) = t.slopes([product(u, v)])
        for j, p in enumerate(t.theta):
            if n[j] is None:
                n[j] = c * u[j]
            elif p.dim() > 1 and t.opt.step_index % interval == 0:
                n[j] = beta * n[j] @ (old[j].T @ v[j]) / p.shape[1] + (1 - beta) * c * u[j]
            else:
                n[j] = beta * n[j] + (1 - beta) * c * u[j]
        t.decay()
        t.move(-t.lr, (1.0, product(n, v, 1 / t.s["rank"] if t.s["divide_by_rank"] else 1.0)))
        old[:] = v
        yield (c,)


def haar(t: Twin, side: int, j: int, length: int) -> Tensor:
    """(length, min(rank, length)) orthonormal columns of this interval: G R⁻¹ of normals G, where GᵀG = RᵀR."""
    step = t.opt.step_index // t.s["interval"]
    g = columns(t, side, j, step, kept=True, length=length).double()[:, :length]
    root = torch.linalg.cholesky(g.T @ g, upper=True)
    return torch.linalg.solve_triangular(root, g, upper=True, left=False).float()


def subzero(t: Twin) -> Steps:
    while True:
        d = t.z(0)
        for j, p in enumerate(t.theta):
            if p.dim() > 1:
                m, n = p.shape
                a, b = haar(t, 0, j, m), haar(t, 1, j, n)
                z = columns(t, 0, j, t.opt.step_index, kept=False, length=t.s["rank"]).T
                z = z[: a.shape[1], : b.shape[1]]
                d[j] = math.sqrt(m * n / (a.shape[1] * b.shape[1])) * a @ z @ b.T
        (c,) = t.slopes([d])
        t.move(-t.lr * c, (1.0, d))
        yield (c,)


def tezo(t: Twin) -> Steps:
    rank, s, theta = t.s["rank"], t.s, t.theta
    u = [columns(t, 0, j, 0, kept=True, length=p.shape[0]) for j, p in enumerate(theta)]
    v = [columns(t, 1, j, 0, kept=True, length=p.shape[-1]) for j, p in enumerate(theta)]
    a, b = [0.0 for _ in theta], [0.0 for _ in theta]

    def spread(j: int, x: Any) -> Any:
        """U diag(x) Vᵀ / √r."""
        return x if theta[j].dim() < 2 else (u[j] * x) @ v[j].T / math.sqrt(rank)

    while True:
        shapes = [(rank,) if p.dim() > 1 else p.shape for p in theta]
        now, steps = t.opt.step_index, t.opt.step_index + 1
        tau = [t.normal(PERTURBATION, now, 0, j, shape) for j, shape in enumerate(shapes)]
        (c,) = t.slopes([[spread(j, x) for j, x in enumerate(tau)]])
        for j, p in enumerate(theta):
            a[j] = s["beta1"] * a[j] + (1 - s["beta1"]) * c * tau[j]
            b[j] = s["beta2"] * b[j] + (1 - s["beta2"]) * (c * tau[j]) ** 2
            move = {"sgd": c * tau[j], "momentum": a[j], "adam": a[j] / (1 - s["beta1"] ** steps)}
            moved = spread(j, move[s["variant"]])
            if s["variant"] == "adam":
                square = b[j] / (1 - s["beta2"] ** steps)
                if p.dim() > 1:
                    square = (u[j] ** 2 * square) @ (v[j] ** 2).T / rank
                moved = moved / (square.sqrt() + s["adam_eps"])
            p.sub_(t.lr * moved)
        yield (c,)


def zo_muon(t: Twin) -> Steps:
    """With `msign=svd`."""
    while True:
        basis = [haar(t, 0, j, p.shape[0]) if p.dim() > 1 else None for j, p in enumerate(t.theta)]
        psi = t.directions()
        for i, of in enumerate(psi):
            for j, (p, b) in enumerate(zip(t.theta, basis, strict=True)):
                if b is not None:
                    normals = columns(t, i, j, t.opt.step_index, kept=False, length=p.shape[1])
                    of[j] = normals[:, : b.shape[1]].T
        z = [[x if b is None else b @ x for x, b in zip(of, basis, strict=True)] for of in psi]
        c = [(t.loss(t.eps, (1.0, z_i)) - t.loss()) / t.eps for z_i in z]
        for p, b, g in zip(t.theta, basis, t.mean(c, psi), strict=True):
            if b is None:
                p.sub_(t.lr * t.s["vector_lr"] * g)
                continue
            left, _, right = torch.linalg.svd(g.double(), full_matrices=False)
            p.sub_(t.lr * b @ (left @ right).float())
        yield tuple(c)
