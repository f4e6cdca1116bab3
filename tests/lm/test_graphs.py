"""Recordings give the loss of the batch and the weights of the moment. Without a GPU something else records."""

from weakref import WeakSet

import pytest
import torch

from tests.lm.test_packing import LENGTHS
from tests.support.pairwise import rotated
from tests.support.quadratic import same
from tests.support.tiny_models import DECODERS, MASKED, MODELS, examples_of, kind_of
from zo.lm.scoring.candidates import CandidateScorer
from zo.lm.scoring.collate import Collator
from zo.lm.scoring.graphs import STEP, Graphs


class Rerun:
    """Records by running the same computation again, on the tensors that it was recorded with."""

    def __init__(self):
        self.calls, self._kept = 0, WeakSet()

    def __call__(self, compute):
        """Refuses, as CUDA's memory does, to record where all earlier recordings have been dropped."""
        assert self._kept or not self.calls
        self.calls += 1
        result = compute().clone().fill_(torch.nan)  # a recording computes nothing yet
        again = lambda: result.copy_(compute())  # noqa: E731
        self._kept.add(again)
        return result, again


@pytest.mark.parametrize("most", [1, 2])
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    ("name", "objective"),
    [*rotated(DECODERS, ["lm", "classification"]), *((name, "classification") for name in MASKED)],
)
def test_a_recording_gives_the_loss_of_each_batch_at_the_weights_of_the_moment(
    name, objective, device, most
):
    """Also where there is room for one recording alone."""
    model, record = MODELS[name]().to(device), Rerun()
    scorer = CandidateScorer(model, 1, kind=kind_of(model), objective=objective)
    graphs = Graphs(scorer.differentiable_loss, record if device == "cpu" else None, most)
    collate, candidates = (
        Collator(model, 1, kind_of(model), STEP),
        [3] if objective == "lm" else [1, 1],
    )
    lengths = (LENGTHS, [n + 1 for n in LENGTHS[:2]] + [n - 1 for n in LENGTHS[2:]], LENGTHS[:2])
    batches = [collate(examples_of(candidates, of, name in MASKED, (2, 4))) for of in lengths]
    assert batches[0].input_ids.shape == batches[1].input_ids.shape != batches[2].input_ids.shape
    before = {n: t.clone() for n, t in batches[0].tensors().items()}
    seen = set()
    with torch.inference_mode():
        for _ in range(2):
            for batch in (*batches, batches[0]):
                loss = graphs(batch).item()
                assert loss == pytest.approx(scorer.loss(batch), abs=1e-6)
                seen.add(loss)
            for parameter in model.parameters():
                parameter.mul_(1.1)
    assert len(seen) == 6
    assert record.calls == (device == "cpu") * {1: 5, 2: 2}[most]
    assert same(before, batches[0].tensors()), "a copy is read"
