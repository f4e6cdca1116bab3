"""What a user writes with the library; type checkers read it. A line that ends in `# wrong` must be refused."""

import torch
from torch import nn

import zo

model = nn.Linear(4, 1)
x = torch.randn(8, 4)

with zo.BSZO(
    model, lr=1e-6, k=2, m=None, prior_std=1.0, restore="streamed", record="run.zo"
) as bszo:
    loss: float = bszo.step(lambda: model(x).square().mean())
    info: zo.StepInfo | None = bszo.info
zo.MeZO(model.named_parameters(), 1e-6, eps=1e-3, n=2, two_sided=False, noise="philox")
zo.LOZO([{"params": model.parameters(), "lr": 1e-5}], lr=1e-6, rank=2, model=model)
by_name: zo.ZerothOrder = zo.optimizer("fzoo", model, lr=1e-3, n=4)
again: torch.optim.Optimizer = zo.replay(model, "run.zo", steps=2)
scheduler = torch.optim.lr_scheduler.LambdaLR(by_name, lambda step: 1 / (1 + step))
version: str = zo.__version__
failures: tuple[type[Exception], ...] = (
    zo.NonFiniteError,
    zo.ProcessesError,
    zo.ProcessLostError,
    zo.TrajectoryError,
)

zo.BSZO(model, lr=1e-6, kk=2)  # wrong
zo.BSZO(model, lr=1e-6, k="two")  # wrong
zo.MeZO(model, lr=1e-6, k=2)  # wrong
zo.MeZO(model)  # wrong
zo.MeZO(model, lr=1e-6, restore="mergd")  # wrong
zo.SGD(model, lr=1e-6)  # wrong
