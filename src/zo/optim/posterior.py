"""The Kalman filter of BSZO: a Gaussian belief over the k slopes of a subspace, in float64.

The slopes g̃ = Bᵀ∇L along k random directions are the hidden state. A finite difference along d (a combination of
the k directions) observes y = dᵀg̃ + ν, ν ~ N(0, σ_e² ‖d‖²).

Source: BSZO paper, sections 3.2 to 3.4 and Algorithm 1.
"""

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]

JITTER = 1e-10
"""Added to Σ's diagonal after each observation, as the paper's code does; far below any prior in use."""


class Posterior:
    """N(μ, Σ) over the k slopes; starts at the prior N(0, σ_p² I).

    Args:
        k: Subspace dimension, ≥ 1.
        prior_std: σ_p > 0, a standard deviation in units of a slope.

    Attributes:
        mean: μ, shape (k,), float64.
        cov: Σ, shape (k, k), float64, symmetric.
    """

    def __init__(self, k: int, prior_std: float):
        self.prior_std = prior_std
        self.mean: Vector = np.zeros(k)
        self.cov: Vector = prior_std**2 * np.eye(k)

    def residual(self, d: Vector, y: float) -> float:
        """Returns r = (y − dᵀμ) / ‖d‖: what the belief did not expect, per unit length of d."""
        return float((y - d @ self.mean) / np.linalg.norm(d))

    def observe(self, d: Vector, y: float, noise_std: float) -> None:
        """Updates μ and Σ with the slope y measured along d.

        Args:
            d: Direction within the subspace, shape (k,), not zero.
            y: Measured slope.
            noise_std: σ_e ≥ 0 of this observation, per unit length of d.
        """
        cov_d = self.cov @ d  # (k,)
        gain = cov_d / (d @ cov_d + noise_std**2 * (d @ d))  # K, (k,)
        self.mean = self.mean + gain * (y - d @ self.mean)
        cov = self.cov - np.outer(gain, cov_d)
        self.cov = (cov + cov.T) / 2 + JITTER * np.eye(len(d))

    @property
    def shrinkage(self) -> float:
        """γ̄ = 1 − tr Σ / (k σ_p²): 0 at the prior, towards 1 the more the observations are believed."""
        return 1.0 - float(np.trace(self.cov)) / (len(self.mean) * self.prior_std**2)

    def widest_direction(self) -> Vector:
        """Returns the top eigenvector of Σ, unit norm, shape (k,): where the belief is least certain."""
        return np.asarray(np.linalg.eigh(self.cov).eigenvectors[:, -1])

    def widest_axis(self) -> int:
        """Returns the axis of the largest entry, in absolute value, of the top eigenvector.

        Equal to argmax of Σ's diagonal when Σ is diagonal without ties; on a tie the last eigenvector decides, as in
        the paper's code.
        """
        return int(np.argmax(np.abs(self.widest_direction())))
