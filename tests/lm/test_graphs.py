"""Recordings give the loss of the batch and the weights of the moment. Without a GPU something else records."""

import pytest
import torch
from torch import Tensor

from tests.lm.test_packing import LENGTHS
from tests.support.pairwise import rotated
from tests.support.tiny_models import DECODERS, MASKED, examples_of, opt
from zo.lm.collate import Collator
from zo.lm.config import ModelError
from zo.lm.graphs import STEP, Graphs
from zo.lm.scoring import CandidateScorer


class Rerun:
    """Records by running the same computation again, on the tensors that it was recorded with."""

    def __init__(self) -> None:
        self.recorded = 0

    def __call__(self, compute):
        self.recorded += 1
        result: Tensor = compute().clone().fill_(torch.nan)  # a recording computes nothing yet
        return result, lambda: result.copy_(compute())


def model_of(kind):
    return (MASKED[kind](), "masked") if kind in MASKED else (DECODERS[kind](), "decoder")


def batches_of(model, kind="decoder", objective="classification"):
    """Three batches, the first two of one shape."""
    make = Collator(model, 1, kind, STEP)
    lengths = (LENGTHS, [n + 1 for n in LENGTHS[:2]] + [n - 1 for n in LENGTHS[2:]], LENGTHS[:2])
    candidates = [3] if objective == "lm" else [1, 1]
    return [make(examples_of(candidates, of, kind == "masked", start=(2, 4))) for of in lengths]


@pytest.mark.parametrize(
    ("kind", "objective"),
    [*rotated(DECODERS, ["lm", "classification"]), *((kind, "classification") for kind in MASKED)],
)
def test_a_recording_gives_the_loss_of_each_batch_at_the_weights_of_the_moment(kind, objective):
    model, name = model_of(kind)
    scorer = CandidateScorer(model, 1, kind=name, objective=objective)
    record = Rerun()
    graphs = Graphs(scorer._loss, record)
    batches = batches_of(model, name, objective)
    assert batches[0].input_ids.shape == batches[1].input_ids.shape != batches[2].input_ids.shape
    before = {n: t.clone() for n, t in batches[0].tensors().items()}
    seen = set()
    with torch.inference_mode():
        for _ in range(2):
            for batch in (*batches, batches[0]):
                loss = graphs(batch).item()
                assert loss == scorer.loss(batch)
                seen.add(loss)
            for parameter in model.parameters():
                parameter.mul_(1.1)
    assert len(seen) == 6
    assert record.recorded == 2
    assert all(torch.equal(before[n], t) for n, t in batches[0].tensors().items()), "a copy is read"


def test_the_recording_that_was_used_longest_ago_goes_first():
    model = opt()
    record = Rerun()
    graphs = Graphs(CandidateScorer(model, 1)._loss, record, most=2)
    make = Collator(model, 1, "decoder", STEP)
    one, two, three = (make(examples_of([1, 1], [4] * n, start=(2, 4))) for n in (1, 2, 3))
    counts = []
    with torch.inference_mode():
        for batch in (one, two, one, three, one, two):
            graphs(batch)
            counts.append(record.recorded)
    assert counts == [1, 2, 2, 3, 3, 4]


def test_recordings_need_a_gpu():
    with pytest.raises(ModelError, match=r"precision\.graphs: needs a GPU"):
        CandidateScorer(opt(), 1, graphs=True)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [*DECODERS, *MASKED])
def test_a_gpu_records_the_loss_that_it_computes_and_is_waited_for_by_nothing_else(kind):
    model, name = model_of(kind)
    model.cuda()
    plain, recorded = (
        CandidateScorer(model, 1, kind=name, graphs=graphs) for graphs in (False, True)
    )
    batches = batches_of(model, name)
    for _ in range(2):
        for batch in (*batches, batches[0]):
            assert recorded.loss(batch) == pytest.approx(plain.loss(batch), abs=1e-6)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.1)
    examples = examples_of([1, 4, 2], LENGTHS, name == "masked", start=(2, 4))
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            loss = plain._loss(plain.collate(examples))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert loss.isfinite()
