"""SubZero: MeZO along random directions of a low-rank subspace of each layer.

    every `interval` steps, for every parameter of m × n:  P, m × r, and Q, n × r, uniform, of orthonormal columns
    Z ~ N(0, I), r × r;   D = √(mn / r²) P Z Qᵀ      (biases and norms: D ~ N(0, I))
    c = (L(θ + ε D) − L(θ − ε D)) / 2ε
    θ ← θ − η (c D + λ θ)

With `square`, as in the released code's modes lora, prefix and prompt, m × n is not the parameter's own shape: its
values count, row by row, as the matrix with m ≤ n that is nearest a square one. LoRA's 8 × 2048 is 128 × 128.

Cost: 2 forward passes per step; state: P and Q, r (m + n) values of each matrix, float32. Passes over the weights: 4
(`restore=subtract`), each a product of two thin matrices; r² normals for a matrix. Under `restore=factors` as LOZO,
but not with `square`.

Source: Yu et al. 2024, "Zeroth-Order Fine-Tuning of LLMs in Random Subspaces" (SubZero), with r = 48 and 1,000 steps
of full fine-tuning from ZO-Muon's comparison.

Deviations: P and Q are of QR with the signs of R's diagonal taken out, which makes them uniform; r is at most m and n.
Entries have variance 1, so that ε and η mean what they mean in MeZO. `n` > 1 is ours.
"""

from zo.optim.config_low_rank import SubZeroConfig
from zo.optim.lozo import LOZO
from zo.weights.directions import LowRank
from zo.weights.subspaces import Projected, bases


class SubZero(LOZO):
    """θ ← θ − η c √(mn / r²) P Z Qᵀ."""

    config: SubZeroConfig

    def renew_subspace(self) -> None:
        """Draws P and Q of the current interval."""
        engine, tensors = self.params.engine, self.params.like
        rank, square = self.config.rank, bool(self.config.square)
        for side, name in enumerate(("p", "q")):
            key = self.kept_key(self.step_index, side)
            self.state[name] = bases(engine, key, rank, tensors, name == "q", square)

    def direction_at(self, step: int, i: int = 0) -> LowRank:
        """Returns direction `i` of a step of the current interval."""
        p, q = self.state["p"], self.state["q"]
        return self.drawn(Projected, step, i, self.kept_key(step, 1), p=p, q=q)
