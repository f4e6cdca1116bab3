"""The methods as classes. Written by `make format` from settings and files in `zo.optim`; do not edit."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import torch.distributed as dist
from torch import nn

from zo.arguments import Parameters, given
from zo.library import ZerothOrder


class MeZO(ZerothOrder):
    """MeZO: zeroth-order SGD with the two-sided SPSA estimate; with n > 1 directions per step, n-SPSA.

        for i = 1 … n:
            z_i ~ N(0, I)
            ℓ₊ = L(θ + ε z_i),  ℓ₋ = L(θ − ε z_i)
            c_i = (ℓ₊ − ℓ₋) / 2ε
        θ ← θ − η (1/n Σ_i c_i z_i + λ θ)        λ: `weight_decay`, not on biases and norms

    Cost: 2n forward passes per step, one-sided 1 + n; no state. Passes over the weights: 2n + 2
    (`restore=subtract`) or 2n + 1 (`merged`), one-sided n + 2 or n + 1.

    Source: Malladi et al. 2023, "Fine-Tuning Language Models with Just Forward Passes", Algorithms 1 and 2; ZO-SGD
    of the BSZO paper.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "mezo"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-4,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class MeZOAdam(ZerothOrder):
    """MeZO-Adam: Adam on MeZO's estimate of the gradient.

        c = (L(θ + ε z) − L(θ − ε z)) / 2ε,  g = c z          (n > 1: the mean of n of them)
        m ← β₁ m + (1 − β₁) g;   v ← β₂ v + (1 − β₂) g²;   t ← t + 1
        m̂ = m / (1 − β₁ᵗ);   v̂ = v / (1 − β₂ᵗ)
        θ ← θ − η (m̂ / (√v̂ + δ) + λ θ)        δ: `adam_eps`; λ: `weight_decay`, not on biases and norms

    Cost: 2n forward passes per step (one-sided 1 + n); state: m and v, twice the memory of θ in its dtype, or 8
    bytes per parameter in float32. Passes over the weights: 2n + 2 (`restore=subtract`) or 2n + 1 (`merged`), the
    last of them over the moments, too; under Philox noise each reads and writes once what it moves.

    Source: Malladi et al. 2023, "Fine-Tuning Language Models with Just Forward Passes", Appendix B; Kingma and Ba
    2015, Algorithm 1; the BSZO paper's MeZO-Adam.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        adam_eps: δ > 0, added to √v̂.
        state_dtype: Of m, v and the arithmetic on them: `param`, as the released code, or `float32`.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "mezo_adam"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-4,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        beta1: float = 0.9,
        beta2: float = 0.999,
        adam_eps: float = 1e-8,
        state_dtype: Literal["param", "float32"] = "param",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class HiZOO(ZerothOrder):
    """HiZOO: MeZO with a running estimate H of the Hessian's diagonal, which scales probe and step.

        H = 1 at the start
        z ~ N(0, I);  ℓ₀ = L(θ);  ℓ₊ = L(θ + ε z/√H);  ℓ₋ = L(θ − ε z/√H)
        H ← (1 − s) H + s |ℓ₊ + ℓ₋ − 2 ℓ₀| / (2ε²) · H z²
        θ ← θ − η ((ℓ₊ − ℓ₋) / 2ε · z/√H + λ θ)      with the new H;  λ: `weight_decay`, not on biases and norms

    Cost: 3 forward passes per step; state: H, once the memory of θ in its dtype, or 4 bytes per parameter in
    float32. Passes over the weights: 4 (`restore=subtract`), 3 (`merged`), the last of them over H, too; under
    Philox noise each reads and writes once what it moves.

    Source: Zhao et al. 2025, "Second-Order Fine-Tuning without Pain for LLMs: A Hessian Informed Zeroth-Order
    Optimizer", Algorithm 1, in the order of its released code and that of the BSZO paper's.

    At the default s = 1e-8 (the paper's) H hardly moves from 1, and HiZOO's losses are MeZO's to the printed
    digits.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the HiZOO release: 1e-3).
        hessian_smooth: s in [0, 1), the weight of the newest curvature in H; 0 is MeZO with one more forward pass.
        smooth_schedule: s is `constant`, or falls to 0 as half a `cosine`.
        smooth_steps: Steps, ≥ 1, over which it falls; `constant` does not read it.
        state_dtype: Of H and the arithmetic on it: `param`, as the released code, or `float32`.
        directions: `gaussian` alone.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "hizoo"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-4,
        hessian_smooth: float = 1e-8,
        smooth_schedule: Literal["constant", "cosine"] = "constant",
        smooth_steps: int = 20000,
        state_dtype: Literal["param", "float32"] = "param",
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class LOZO(ZerothOrder):
    """LOZO: MeZO along directions of low rank, whose row space is kept for a while.

        every `interval` steps:  V ~ N(0, I), columns × r, for every parameter of rows × columns
        U ~ N(0, I), rows × r;   Z = U Vᵀ   (biases and norms, which have no columns: Z ~ N(0, I))
        c = (L(θ + ε Z) − L(θ − ε Z)) / 2ε
        θ ← θ − η (c Z + λ θ)               with `divide_by_rank`: c Z / r where Z = U Vᵀ

    Cost: 2 forward passes per step; no state, since V is drawn again from its key. Passes over the weights: 4
    (`restore=subtract`); r (rows + columns) normals for a matrix instead of rows · columns. Under `restore=factors`
    both losses are one pass of a batch of twice the rows, the updates add up in a factor A of rows × r, float32,
    which is the state then, and there is one pass over the weights per `interval` steps: θ = W + A Vᵀ, see
    `zo.weights.restore.factors`.

    Source: Chen et al. 2025, "Enhancing Zeroth-Order Fine-Tuning for Language Models with Low-Rank Structures"; its
    Algorithm 1 has the factor 1/r, its released code and that of the BSZO paper have not.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: `gaussian` alone.
        rank: r ≥ 1.
        interval: Steps, ≥ 1, for which V is kept.
        divide_by_rank: The paper's factor 1/r of the update of matrices.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "lozo"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-4,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        rank: int = 2,
        interval: int = 50,
        divide_by_rank: bool = False,
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class BSZO(ZerothOrder):
    """BSZO: the slopes along k random directions, filtered into a posterior whose mean is the step.

        z_1 … z_k ~ N(0, I);  μ = 0, Σ = σ_p² I;  f₀ = L(θ)
        for τ = 1 … m:
            τ ≤ k: d = e_τ,  y = (L(θ + ε z_τ) − f₀) / ε
            τ > k: d = the widest axis of Σ,  y = the value cached for it             (BSZO)
                   d = the top eigenvector of Σ,  y = (L(θ + ε Σ d_i z_i) − f₀) / ε   (BSZO-B)
            r = (y − dᵀμ)/‖d‖;  σ_e² ← (1 − α) σ_e² + α r²
            K = Σd / (dᵀΣd + σ_e²‖d‖²);  μ ← μ + K (y − dᵀμ);  Σ ← Σ − K dᵀΣ
        θ ← θ − η (Σ_i μ_i z_i + λ θ)        λ: `weight_decay`, not on biases and norms; 0 in the paper

    Cost: 1 + k forward passes per step (BSZO), 1 + m (BSZO-B); state: one float. Passes over the weights: 2k + 1 in
    BSZO (`restore=subtract`; the k directions of the update are one pass), k + 1 with `merged`; with m for k in
    BSZO-B.

    Source: Feng and Huang, "Robust and Efficient Zeroth-Order LLM Fine-Tuning via Adaptive Bayesian Subspace
    Optimizer", Algorithm 1 (BSZO) and Algorithm 2 (BSZO-B); reference/deviations.md tells paper, released code and
    this file apart.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale.
        k: Subspace dimension, ≥ 1.
        m: Measurements per step, ≥ k; None means k + 1.
        reuse_probes: True: a measurement beyond the k-th takes the cached slope of the widest axis (BSZO). False:
            it is a forward pass along the top eigenvector of Σ (BSZO-B).
        two_sided: Two-sided differences, two forward passes per measurement.
        prior_std: σ_p > 0; None means sqrt(n / 1e6) for n trainable values.
        noise_std: σ_e at the start, > 0; None means sqrt(n / 1e6).
        adaptive_noise: False keeps σ_e at its start value.
        noise_ema: α in (0, 1], the weight of the newest squared residual in σ_e².
        noise_update: σ_e adapts at `every` observation, or only before each `extra` one beyond the k-th, from the
            pair observed last, which is Algorithm 1 to the letter.
        noise_floor: σ_e never falls below this multiple of its start value, in [0, 1].
        adaptive_sampling: False: measurements beyond the k-th go round the axes in turn, each measured afresh.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "bszo"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-4,
        k: int = 2,
        m: int | None = None,
        reuse_probes: bool = True,
        two_sided: bool = False,
        prior_std: float | None = None,
        noise_std: float | None = None,
        adaptive_noise: bool = True,
        noise_ema: float = 0.1,
        noise_update: Literal["every", "extra"] = "every",
        noise_floor: float = 0.1,
        adaptive_sampling: bool = True,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class BSZOB(ZerothOrder):
    """BSZO-B, the paper's baseline: extra measurements are made, not looked up.

        z_1 … z_k ~ N(0, I);  μ = 0, Σ = σ_p² I;  f₀ = L(θ)
        for τ = 1 … m:
            τ ≤ k: d = e_τ,  y = (L(θ + ε z_τ) − f₀) / ε
            τ > k: d = the widest axis of Σ,  y = the value cached for it             (BSZO)
                   d = the top eigenvector of Σ,  y = (L(θ + ε Σ d_i z_i) − f₀) / ε   (BSZO-B)
            r = (y − dᵀμ)/‖d‖;  σ_e² ← (1 − α) σ_e² + α r²
            K = Σd / (dᵀΣd + σ_e²‖d‖²);  μ ← μ + K (y − dᵀμ);  Σ ← Σ − K dᵀΣ
        θ ← θ − η (Σ_i μ_i z_i + λ θ)        λ: `weight_decay`, not on biases and norms; 0 in the paper

    Cost: 1 + k forward passes per step (BSZO), 1 + m (BSZO-B); state: one float. Passes over the weights: 2k + 1 in
    BSZO (`restore=subtract`; the k directions of the update are one pass), k + 1 with `merged`; with m for k in
    BSZO-B.

    Source: Feng and Huang, "Robust and Efficient Zeroth-Order LLM Fine-Tuning via Adaptive Bayesian Subspace
    Optimizer", Algorithm 1 (BSZO) and Algorithm 2 (BSZO-B); reference/deviations.md tells paper, released code and
    this file apart.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale.
        k: Subspace dimension, ≥ 1.
        m: Measurements per step, ≥ k; None means k + 1.
        reuse_probes: True: a measurement beyond the k-th takes the cached slope of the widest axis (BSZO). False:
            it is a forward pass along the top eigenvector of Σ (BSZO-B).
        two_sided: Two-sided differences, two forward passes per measurement.
        prior_std: σ_p > 0; None means sqrt(n / 1e6) for n trainable values.
        noise_std: σ_e at the start, > 0; None means sqrt(n / 1e6).
        adaptive_noise: False keeps σ_e at its start value.
        noise_ema: α in (0, 1], the weight of the newest squared residual in σ_e².
        noise_update: σ_e adapts at `every` observation, or only before each `extra` one beyond the k-th, from the
            pair observed last, which is Algorithm 1 to the letter.
        noise_floor: σ_e never falls below this multiple of its start value, in [0, 1].
        adaptive_sampling: False: measurements beyond the k-th go round the axes in turn, each measured afresh.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "bszo_b"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-4,
        k: int = 2,
        m: int | None = None,
        reuse_probes: bool = False,
        two_sided: bool = False,
        prior_std: float | None = None,
        noise_std: float | None = None,
        adaptive_noise: bool = True,
        noise_ema: float = 0.1,
        noise_update: Literal["every", "extra"] = "every",
        noise_floor: float = 0.1,
        adaptive_sampling: bool = True,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class ZOSign(ZerothOrder):
    """ZO-Sign: MeZO's step, of which only each entry's sign counts.

        z_i ~ N(0, I);  c_i = (L(θ + ε z_i) − L(θ − ε z_i)) / 2ε
        θ ← θ − η (sign(Σ_i c_i z_i) + λ θ)        λ: `weight_decay`, not on biases and norms

    Cost: 2n forward passes per step; no state. Passes over the weights: those of MeZO. η is the length of the step
    in every entry, whatever the slope.

    Source: Liu et al. 2019, "signSGD via Zeroth-Order Oracle", Algorithm 1; ZO-SignSGD of Zhang et al. 2024,
    "Revisiting Zeroth-Order Optimization for Memory-Efficient LLM Fine-Tuning: A Benchmark" (ZO-Bench).

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "zo_sign"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class ZOMomentum(ZerothOrder):
    """ZO-Momentum: MeZO's estimate of the gradient in SGD with momentum.

        z_i ~ N(0, I);  c_i = (L(θ + ε z_i) − L(θ − ε z_i)) / 2ε
        m ← β m + 1/n Σ_i c_i z_i                  m = 0 at the start
        θ ← θ − η (m + λ θ)                        λ: `weight_decay`, not on biases and norms

    Cost: 2n forward passes per step; state: m, once the memory of θ in its dtype, or 4 bytes per parameter in
    float32. Passes over the weights: those of MeZO, and one over m that draws the noise.

    Source: ZO-SGD-MMT of Zhang et al. 2024, "Revisiting Zeroth-Order Optimization for Memory-Efficient LLM
    Fine-Tuning: A Benchmark" (ZO-Bench), whose code feeds c z to torch's SGD with `momentum`.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        momentum: β in [0, 1); 0 is MeZO.
        state_dtype: Of m: `param`, the parameters' own, or `float32`.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "zo_momentum"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        momentum: float = 0.9,
        state_dtype: Literal["param", "float32"] = "param",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class ZOConservative(ZerothOrder):
    """ZO-Conservative: of θ and the two points a MeZO step ahead and behind, the one with the least loss.

        z_i ~ N(0, I);  c_i = (L(θ + ε z_i) − L(θ − ε z_i)) / 2ε;  g = 1/n Σ_i c_i z_i
        s = argmin L(θ − s η g) over s = 0, 1, −1        the first of equals
        θ ← θ − η (s g + λ θ)                            λ: `weight_decay`, not on biases and norms

    Cost: 2n + 3 forward passes per step; no state. Passes over the weights: those of MeZO and one per candidate.

    Source: ZO-SGD-Cons of Zhang et al. 2024, "Revisiting Zeroth-Order Optimization for Memory-Efficient LLM
    Fine-Tuning: A Benchmark" (ZO-Bench).

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "zo_conservative"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class SparseMeZO(ZerothOrder):
    """Sparse-MeZO: MeZO on the weights that are small, whose mask follows θ and is never stored.

        h_p = the `share` quantile of |θ_p| at the start, one number per matrix p;  ∞ where p is not masked
        mask = |θ| ≤ h;  z_i ~ N(0, I)
        c_i = (L(θ + ε mask z_i) − L(θ − ε mask z_i)) / 2ε
        θ ← θ − η (1/n Σ_i c_i mask z_i + λ θ)        λ: `weight_decay`, not on biases and norms, of all weights

    Masked are 2-D weights of neither embeddings nor norms; all else moves as in MeZO. `scope=all` masks every
    tensor.

    Cost: 2n forward passes per step; state: h, one number per tensor. Passes over the weights: those of MeZO; under
    Philox noise each makes the mask on the way.

    Source: Liu et al. 2024, "Sparse MeZO: Less Parameters for Better Performance in Zeroth-Order LLM Fine-Tuning".

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        share: Of each masked tensor, in (0, 1]: the smallest weights, by absolute value, at the start.
        scope: What is masked: `matrices`, 2-D weights of neither embeddings nor norms, or `all` tensors.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "sparse_mezo"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        share: float = 0.25,
        scope: Literal["matrices", "all"] = "matrices",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class ConMeZO(ZerothOrder):
    """ConMeZO: probes in a cone around a momentum.

        u ~ N(0, I);  z = √d cos ϑ m/‖m‖ + sin ϑ u            d: number of trainable values; m ~ N(0, I) at the start
        c = (L(θ + ε z) − L(θ − ε z)) / 2ε
        θ ← θ − η (c z + λ θ)                                 λ: `weight_decay`, not on biases and norms
        m ← β m + (1 − β) c z
        β = β₀ for t ≤ t₀;  β* − (β* − β₀) / (1 + 8p)³ with p = ((t − t₀) / t₁)^1.8 for t ≤ t₀ + t₁;  then β*

    Cost: 2 forward passes per step; state: m, 4 bytes per parameter, or once θ in its dtype. Passes over the
    weights: those of MeZO, each reading m too; the last writes m.

    Source: "ConMeZO", arXiv 2511.02757, in the order and with the settings of its released code for OPT.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        angle: ϑ in [0, π/2], radians, between z and m: π/2 is MeZO.
        beta: β* in [0, 1), from step `hold + ramp` on.
        beta_start: β₀ in [0, 1), for the first `hold` steps.
        hold: t₀ ≥ 0.
        ramp: t₁ ≥ 1.
        state_dtype: Of m: `param`, the parameters' own, or `float32`.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "conmezo"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        angle: float = 1.35,
        beta: float = 0.99,
        beta_start: float = 0.1,
        hold: int = 200,
        ramp: int = 1800,
        state_dtype: Literal["param", "float32"] = "float32",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class AdaMeZO(ZerothOrder):
    """AdaMeZO: Adam on MeZO's estimates, whose moments are made again at each step from the last h seeds and slopes.

        z_t ~ N(0, I);  c_t = (L(θ + ε z_t) − L(θ − ε z_t)) / 2ε
        m = Σ_{j < h} β₁ʲ c_{t−j} z_{t−j};   v = Σ_{j < h} β₂ʲ c²_{t−j} z²_{t−j}
        θ ← θ − η (s m / (√v + δ) + λ θ)        s: `scale`;  λ: `weight_decay`, not on biases and norms
        the first h + 1 steps are MeZO's: θ ← θ − η (c z + λ θ)

    Cost: 2 forward passes per step; state: h numbers. Passes over the weights: those of MeZO; the update is one
    pass, which draws h directions.

    Source: Cai et al. 2026, "AdaMeZO: Adam-style Zeroth-Order Optimizer for LLM Fine-tuning Without Maintaining the
    Moments"; weights, s = 100, δ = 1e-5 and MeZO's first steps are those of its released code.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        window: h ≥ 1, steps.
        beta1: β₁ in [0, 1).
        beta2: β₂ in [0, 1).
        adam_eps: δ > 0.
        scale: s > 0, beside the learning rate.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "adamezo"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        window: int = 10,
        beta1: float = 0.7,
        beta2: float = 0.9,
        adam_eps: float = 1e-5,
        scale: float = 100.0,
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class FZOO(ZerothOrder):
    """FZOO: one-sided slopes along N random signs, and a step that their losses' standard deviation scales.

        f₀ = L(θ);  for i = 1 … N:  u_i random signs;  ℓ_i = L(θ + ε u_i)
        σ = √(Σ_i (ℓ_i − mean ℓ)² / (N − 1))
        θ ← θ − η (1/N Σ_i (ℓ_i − f₀)/σ u_i + λ θ)        λ: `weight_decay`, not on biases and norms

    Cost: 1 + N forward passes per step; no state. Passes over the weights: 2N + 1 (`subtract`), N + 1 (`merged`);
    the update of all N is one. A multiple of the loss makes the same step.

    Source: Dang et al. 2026, "FZOO: Fast Zeroth-Order Optimizer for Fine-Tuning Large Language Models towards
    Adam-Scale Speed"; N, ε and η of its released code.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: N ≥ 2, directions per step.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        std_floor: ≥ 0; a step whose losses' standard deviation is at most this multiple of |f₀| is left out.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "fzoo"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-4,
        two_sided: bool = False,
        n: int = 8,
        directions: Literal["gaussian", "rademacher"] = "rademacher",
        std_floor: float = 1e-7,
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class LOZOM(ZerothOrder):
    """LOZO-M: LOZO with a momentum that lives in its subspace.

        V, U and c as LOZO
        N ← β N + (1 − β) c U                        N = c U at the first step
        where V is new:  N ← β N V_oldᵀ V / n + (1 − β) c U      n: columns, so that N keeps its meaning in the new V
        θ ← θ − η (N Vᵀ + λ θ)                       biases and norms, which have no columns: m ← β m + (1 − β) c z

    Cost: 2 forward passes per step; state: N, rows × r for a matrix, float32, and m of biases and norms. Passes
    over the weights: those of LOZO. Under `restore=factors` as LOZO: one forward pass of two branches, N is added
    to A.

    Source: Chen et al. 2025, "Enhancing Zeroth-Order Fine-Tuning for Language Models with Low-Rank Structures",
    LOZO-M, in the order of its released code for masked models.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: `gaussian` alone.
        rank: r ≥ 1.
        interval: Steps, ≥ 1, for which V is kept.
        divide_by_rank: The paper's factor 1/r of the update of matrices.
        momentum: β in [0, 1); 0 is LOZO.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "lozo_m"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        rank: int = 2,
        interval: int = 50,
        divide_by_rank: bool = False,
        momentum: float = 0.9,
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class SubZero(ZerothOrder):
    """SubZero: MeZO along random directions of a low-rank subspace of each layer.

        every `interval` steps, for every parameter of m × n:  P, m × r, and Q, n × r, uniform, of orthonormal columns
        Z ~ N(0, I), r × r;   D = √(mn / r²) P Z Qᵀ      (biases and norms: D ~ N(0, I))
        c = (L(θ + ε D) − L(θ − ε D)) / 2ε
        θ ← θ − η (c D + λ θ)

    With `square`, as in the released code's modes lora, prefix and prompt, m × n is not the parameter's own shape:
    its values count, row by row, as the matrix with m ≤ n that is nearest a square one. LoRA's 8 × 2048 is 128 ×
    128.

    Cost: 2 forward passes per step; state: P and Q, r (m + n) values of each matrix, float32. Passes over the
    weights: 4 (`restore=subtract`), each a product of two thin matrices; r² normals for a matrix. Under
    `restore=factors` as LOZO, but not with `square`.

    Source: Yu et al. 2024, "Zeroth-Order Fine-Tuning of LLMs in Random Subspaces" (SubZero), with r = 48 and 1,000
    steps of full fine-tuning from ZO-Muon's comparison.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: `gaussian` alone.
        rank: r ≥ 1, of both bases.
        interval: Steps, ≥ 1, for which both bases are kept.
        divide_by_rank: False alone.
        square: Whether a tensor's values count as a matrix that is as nearly square as its number allows; None is
            True in a run whose adapter is LoRA, prefix or prompt, and False elsewhere.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "subzero"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        rank: int = 48,
        interval: int = 1000,
        divide_by_rank: bool = False,
        square: bool | None = None,
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class TeZO(ZerothOrder):
    """TeZO: low-rank directions whose factors stay, so that a step draws, and moments keep, r numbers per matrix.

        once, for every parameter of m × n:  U ~ N(0, I), m × r;  V ~ N(0, I), n × r
        τ ~ N(0, I_r);  D = U diag(τ) Vᵀ / √r        (biases and norms: D = τ ~ N(0, I))
        c = (L(θ + ε D) − L(θ − ε D)) / 2ε
        `variant`  sgd:       θ ← θ − η c D
                   momentum:  a ← β₁ a + (1 − β₁) c τ;   θ ← θ − η U diag(a) Vᵀ / √r
                   adam:      a as there;  b ← β₂ b + (1 − β₂) c² τ²;  â, b̂ corrected for their start at 0 as in Adam
                              θ ← θ − η (U diag(â) Vᵀ) / (√((U∘U) diag(b̂) (V∘V)ᵀ) + δ), both products with their 1/√r
        each with − η λ θ        λ: `weight_decay`, not on biases and norms

    Cost: 2 forward passes per step; state: none (sgd), r numbers per matrix and a copy of biases and norms
    (momentum), or twice that (adam), float32. Passes over the weights: 4 (`restore=subtract`), each a product of
    two thin matrices; U and V are drawn again from their keys, r (m + n) normals. Under `restore=factors` as LOZO,
    but not with Adam.

    Source: Sun et al. 2025, "TeZO: Empowering the Low-Rankness on the Temporal Dimension in the Zeroth-Order
    Optimization for Fine-tuning LLMs"; by a secondary rendering of its formulas.

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: `gaussian` alone.
        rank: r ≥ 1.
        interval: Steps, ≥ 1, for which both factors are kept; the paper keeps them for good.
        divide_by_rank: False alone.
        variant: What moves along the factors: τ itself (`sgd`), its momentum, or Adam's step.
        beta1: β₁ in [0, 1), of `momentum` and `adam`.
        beta2: β₂ in [0, 1), of `adam`.
        adam_eps: δ > 0, of `adam`.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "tezo"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = True,
        n: int = 1,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        rank: int = 24,
        interval: int = 2147483647,
        divide_by_rank: bool = False,
        variant: Literal["sgd", "momentum", "adam"] = "sgd",
        beta1: float = 0.9,
        beta2: float = 0.99,
        adam_eps: float = 1e-8,
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class ZOMuon(ZerothOrder):
    """ZO-Muon: slopes in a random row subspace of each matrix, and a step along their orthogonalised estimate.

        every `interval` steps, for every matrix of m × n:  P, m × r, orthonormal columns, uniformly random
        f₀ = L(θ);  for i = 1 … N:  Ψ_i ~ N(0, I), r × n;  c_i = (L(θ + ε P Ψ_i) − f₀) / ε     (all matrices at once)
        G = 1/N Σ_i c_i Ψ_i;  W ← W − η (P msign(G) + λ W)         msign(X): X with all singular values 1
        biases and norms: z_i ~ N(0, I) in the same probes;  w ← w − η ρ/N Σ_i c_i z_i        ρ: `vector_lr`

    Cost: 1 + N forward passes per step; state: P, m r values of each matrix, float32. Passes over the weights: N +
    2 (`restore=subtract`), each a product of two thin matrices; r n normals for a matrix. `msign` is five steps of
    Newton-Schulz, whose singular values end between about 0.7 and 1.2, or `svd`, exact. η is the spectral norm of a
    step.

    Source: "Powering Up Zeroth-Order Training via Subspace Gradient Orthogonalization" (ZO-Muon), arXiv 2602.17155,
    by its released code's settings; Newton-Schulz coefficients of Jordan et al. 2024, "Muon".

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale (paper: 1e-4; the MeZO release: 1e-3).
        two_sided: Two-sided differences; False measures (L(θ + ε z) − L(θ)) / ε.
        n: Directions per step, ≥ 1, whose estimates are averaged.
        directions: What a direction's entries are: `gaussian`, standard normals, or `rademacher`, random signs.
        rank: r ≥ 1.
        interval: Steps, ≥ 1, for which P is kept.
        vector_lr: Learning rate of biases and norms over that of matrices, ≥ 0.
        msign: How the estimate is orthogonalised: by `newton_schulz` in five steps, or by `svd`.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "zo_muon"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        two_sided: bool = False,
        n: int = 4,
        directions: Literal["gaussian", "rademacher"] = "gaussian",
        rank: int = 64,
        interval: int = 100,
        vector_lr: float = 1e-5,
        msign: Literal["newton_schulz", "svd"] = "newton_schulz",
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class ES(ZerothOrder):
    """ES: an evolution strategy, whose step weighs the directions of a population by the members' shaped rewards.

        for i = 1 … N:  member θ + s_i ε z_i, s_i = ±1;  R_i = −L(θ + s_i ε z_i)
            `mirrored`: members 2j − 1 and 2j share a direction, s = +1 and −1; else each has its own, s = +1
        w_i = (R_i − mean R) / s    `shaping=zscore`  s = std R + 10⁻⁸,  or with `baseline=prompt` √(var R_ip + 10⁻⁵)
              rank(R_i)/(N − 1) − ½ `shaping=ranks`   equal rewards share the mean of their ranks
              (R_i − mean R) / ε    `shaping=none`
        θ ← θ + η (1/N Σ_i w_i s_i z_i − λ θ)        λ: `weight_decay`, not on biases and norms

    `directions=low_rank`: z = A Bᵀ / √r for every matrix, A and B ~ N(0, I), m × r and n × r, new for each
    direction; z ~ N(0, I) for biases and norms. R_ip is the reward of member i's text p, and var is over all of
    both.

    Cost: N forward passes per step; no state. Passes over the weights: N + 2 (`restore=subtract`), N + 1
    (`merged`), 1 with `factors`, which measures directions of low rank together. Equal rewards make no step. With
    `shaping=none` and pairs it is MeZO with `n` = N/2. With z-scores and ranks a step has the same length whatever
    the rewards are, so that it does not shrink near an optimum.

    Source: Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (pairs,
    ranks); Qiu et al. 2025, "Evolution Strategies at Scale: LLM Fine-Tuning Beyond Reinforcement Learning"
    (z-scores); Sarkar et al. 2025, "Evolution Strategies at the Hyperscale" (EGGROLL: low rank).

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale, which papers on ES call σ.
        n: N ≥ 2, members of the population: forward passes per step.
        mirrored: Whether members come in pairs θ + ε z and θ − ε z. False gives each member a direction of its own.
        shaping: What the step weighs directions by: `zscore`, rewards over their standard deviation; `ranks`, their
            centred ranks, from −½ to ½, where equal rewards share a rank; or `none`, rewards over ε, a slope.
        baseline: Of the z-scores, the standard deviation of the members' mean rewards (`population`), or of the
            rewards of all members' texts (`prompt`).
        directions: What a direction's entries are: `gaussian`, standard normals; `rademacher`, random signs; or
            `low_rank`, those of A Bᵀ / √r in matrices, with A and B new for each direction, and standard normals in
            biases and norms.
        rank: r ≥ 1 of `low_rank`.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "es"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        n: int = 30,
        mirrored: bool = True,
        shaping: Literal["zscore", "ranks", "none"] = "zscore",
        baseline: Literal["population", "prompt"] = "population",
        directions: Literal["gaussian", "rademacher", "low_rank"] = "gaussian",
        rank: int = 1,
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class ESAtScale(ZerothOrder):
    """ES as es-at-scale makes it: normals on all weights, each member a direction of its own, z-scores.

        for i = 1 … N:  member θ + s_i ε z_i, s_i = ±1;  R_i = −L(θ + s_i ε z_i)
            `mirrored`: members 2j − 1 and 2j share a direction, s = +1 and −1; else each has its own, s = +1
        w_i = (R_i − mean R) / s    `shaping=zscore`  s = std R + 10⁻⁸,  or with `baseline=prompt` √(var R_ip + 10⁻⁵)
              rank(R_i)/(N − 1) − ½ `shaping=ranks`   equal rewards share the mean of their ranks
              (R_i − mean R) / ε    `shaping=none`
        θ ← θ + η (1/N Σ_i w_i s_i z_i − λ θ)        λ: `weight_decay`, not on biases and norms

    `directions=low_rank`: z = A Bᵀ / √r for every matrix, A and B ~ N(0, I), m × r and n × r, new for each
    direction; z ~ N(0, I) for biases and norms. R_ip is the reward of member i's text p, and var is over all of
    both.

    Cost: N forward passes per step; no state. Passes over the weights: N + 2 (`restore=subtract`), N + 1
    (`merged`), 1 with `factors`, which measures directions of low rank together. Equal rewards make no step. With
    `shaping=none` and pairs it is MeZO with `n` = N/2. With z-scores and ranks a step has the same length whatever
    the rewards are, so that it does not shrink near an optimum.

    Source: Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (pairs,
    ranks); Qiu et al. 2025, "Evolution Strategies at Scale: LLM Fine-Tuning Beyond Reinforcement Learning"
    (z-scores); Sarkar et al. 2025, "Evolution Strategies at the Hyperscale" (EGGROLL: low rank).

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale, which papers on ES call σ.
        n: N ≥ 2, members of the population: forward passes per step.
        mirrored: Whether members come in pairs θ + ε z and θ − ε z. False gives each member a direction of its own.
        shaping: What the step weighs directions by: `zscore`, rewards over their standard deviation; `ranks`, their
            centred ranks, from −½ to ½, where equal rewards share a rank; or `none`, rewards over ε, a slope.
        baseline: Of the z-scores, the standard deviation of the members' mean rewards (`population`), or of the
            rewards of all members' texts (`prompt`).
        directions: What a direction's entries are: `gaussian`, standard normals; `rademacher`, random signs; or
            `low_rank`, those of A Bᵀ / √r in matrices, with A and B new for each direction, and standard normals in
            biases and norms.
        rank: r ≥ 1 of `low_rank`.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "es_at_scale"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        n: int = 30,
        mirrored: bool = False,
        shaping: Literal["zscore", "ranks", "none"] = "zscore",
        baseline: Literal["population", "prompt"] = "population",
        directions: Literal["gaussian", "rademacher", "low_rank"] = "gaussian",
        rank: int = 1,
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


class EGGROLL(ZerothOrder):
    """ES as EGGROLL makes it: directions of rank 1, on both of their sides, z-scores over all texts' rewards.

        for i = 1 … N:  member θ + s_i ε z_i, s_i = ±1;  R_i = −L(θ + s_i ε z_i)
            `mirrored`: members 2j − 1 and 2j share a direction, s = +1 and −1; else each has its own, s = +1
        w_i = (R_i − mean R) / s    `shaping=zscore`  s = std R + 10⁻⁸,  or with `baseline=prompt` √(var R_ip + 10⁻⁵)
              rank(R_i)/(N − 1) − ½ `shaping=ranks`   equal rewards share the mean of their ranks
              (R_i − mean R) / ε    `shaping=none`
        θ ← θ + η (1/N Σ_i w_i s_i z_i − λ θ)        λ: `weight_decay`, not on biases and norms

    `directions=low_rank`: z = A Bᵀ / √r for every matrix, A and B ~ N(0, I), m × r and n × r, new for each
    direction; z ~ N(0, I) for biases and norms. R_ip is the reward of member i's text p, and var is over all of
    both.

    Cost: N forward passes per step; no state. Passes over the weights: N + 2 (`restore=subtract`), N + 1
    (`merged`), 1 with `factors`, which measures directions of low rank together. Equal rewards make no step. With
    `shaping=none` and pairs it is MeZO with `n` = N/2. With z-scores and ranks a step has the same length whatever
    the rewards are, so that it does not shrink near an optimum.

    Source: Salimans et al. 2017, "Evolution Strategies as a Scalable Alternative to Reinforcement Learning" (pairs,
    ranks); Qiu et al. 2025, "Evolution Strategies at Scale: LLM Fine-Tuning Beyond Reinforcement Learning"
    (z-scores); Sarkar et al. 2025, "Evolution Strategies at the Hyperscale" (EGGROLL: low rank).

    Args:
        params: A model, its tensors, (name, tensor) pairs, or torch's parameter groups; those that require
            gradients are trained.
        lr: Learning rate η ≥ 0.
        eps: ε > 0, the perturbation scale, which papers on ES call σ.
        n: N ≥ 2, members of the population: forward passes per step.
        mirrored: Whether members come in pairs θ + ε z and θ − ε z. False gives each member a direction of its own.
        shaping: What the step weighs directions by: `zscore`, rewards over their standard deviation; `ranks`, their
            centred ranks, from −½ to ½, where equal rewards share a rank; or `none`, rewards over ε, a slope.
        baseline: Of the z-scores, the standard deviation of the members' mean rewards (`population`), or of the
            rewards of all members' texts (`prompt`).
        directions: What a direction's entries are: `gaussian`, standard normals; `rademacher`, random signs; or
            `low_rank`, those of A Bᵀ / √r in matrices, with A and B new for each direction, and standard normals in
            biases and norms.
        rank: r ≥ 1 of `low_rank`.
        step_norm: `rms` divides every step by the root of a running mean of squared slopes, as MEAZO; or `none`.
        norm_beta: β in [0, 1) of that mean.
        anchor: `start` moves the weights towards those of the first step, θ₀, after every step; or `none`.
        anchor_decay: λ₀ > 0 of `start`.
        anchor_norm: `l2` makes θ − θ₀ smaller by the factor 1 − ηλ₀, `l1` each of its entries by at most ηλ₀.
        weight_decay: λ ≥ 0.
        seed, restore, noise, rounding, model, check_closure, record, group, check_every: As of `ZerothOrder`.

    Raises:
        TypeError: If a setting has another type.
        ValueError: If one is out of its range.
    """

    name = "eggroll"

    def __init__(
        self,
        params: Parameters,
        lr: float,
        *,
        eps: float = 1e-3,
        n: int = 1024,
        mirrored: bool = True,
        shaping: Literal["zscore", "ranks", "none"] = "zscore",
        baseline: Literal["population", "prompt"] = "prompt",
        directions: Literal["gaussian", "rademacher", "low_rank"] = "low_rank",
        rank: int = 1,
        step_norm: Literal["none", "rms"] = "none",
        norm_beta: float = 0.99,
        anchor: Literal["none", "start"] = "none",
        anchor_decay: float = 0.0,
        anchor_norm: Literal["l2", "l1"] = "l2",
        weight_decay: float = 0.0,
        seed: int = 0,
        restore: Literal["merged", "subtract", "snapshot", "streamed", "factors"] | None = None,
        noise: Literal["torch", "philox"] | None = None,
        rounding: Literal["nearest", "stochastic", "compensated"] = "nearest",
        model: nn.Module | None = None,
        check_closure: bool = True,
        record: str | Path | None = None,
        group: dist.ProcessGroup | None = None,
        check_every: int | None = 100,
    ) -> None:
        super().__init__(**given(locals()))


METHODS: dict[str, type[ZerothOrder]] = {
    "mezo": MeZO,
    "mezo_adam": MeZOAdam,
    "hizoo": HiZOO,
    "lozo": LOZO,
    "bszo": BSZO,
    "bszo_b": BSZOB,
    "zo_sign": ZOSign,
    "zo_momentum": ZOMomentum,
    "zo_conservative": ZOConservative,
    "sparse_mezo": SparseMeZO,
    "conmezo": ConMeZO,
    "adamezo": AdaMeZO,
    "fzoo": FZOO,
    "lozo_m": LOZOM,
    "subzero": SubZero,
    "tezo": TeZO,
    "zo_muon": ZOMuon,
    "es": ES,
    "es_at_scale": ESAtScale,
    "eggroll": EGGROLL,
}
