from __future__ import annotations

import pytest
import torch

from clients.policies.heads import CategoricalHead, GaussianHead

CATEGORICAL, GAUSSIAN = CategoricalHead(), GaussianHead(2, log_scale=0.5)


def test_categorical_as_torch_has_it() -> None:
    logits = torch.tensor([[0.0, 1.0, -1.0], [2.0, 0.0, 0.0]], requires_grad=True)
    action = torch.tensor([2, 0])
    known = torch.distributions.Categorical(logits=logits)
    assert CATEGORICAL.log_probability(logits, action).tolist() == pytest.approx(known.log_prob(action).tolist())
    assert CATEGORICAL.entropy(logits).tolist() == pytest.approx(known.entropy().tolist())
    assert CATEGORICAL.likeliest(logits).tolist() == [1, 0]
    drawn = CATEGORICAL.drawn(logits[:1].expand(20_000, 3), torch.Generator().manual_seed(0))
    frequency = torch.bincount(drawn) / 20_000
    assert frequency.tolist() == pytest.approx(known.probs[0].tolist(), abs=0.02)


def test_gaussian_as_torch_has_it() -> None:
    mean, action = torch.tensor([[0.0, 1.0], [3.0, 4.0]]), torch.tensor([[0.5, 1.0], [0.0, 0.0]])
    known = torch.distributions.Independent(torch.distributions.Normal(mean, torch.full((2,), 0.5).exp()), 1)
    assert GAUSSIAN.log_probability(mean, action).tolist() == pytest.approx(known.log_prob(action).tolist())
    assert GAUSSIAN.entropy(mean).tolist() == pytest.approx(known.entropy().tolist())
    assert GAUSSIAN.likeliest(mean) is mean
    drawn = GAUSSIAN.drawn(mean[:1].expand(20_000, 2), torch.Generator().manual_seed(0)).detach()
    assert drawn.mean(0).tolist() == pytest.approx([0.0, 1.0], abs=0.05)
    assert drawn.std(0).tolist() == pytest.approx([torch.tensor(0.5).exp().item()] * 2, rel=0.03)


def test_draws_repeat_with_their_generator() -> None:
    for head, parameters in ((CATEGORICAL, torch.zeros(50, 4)), (GAUSSIAN, torch.zeros(50, 2))):
        one, other = (head.drawn(parameters, torch.Generator().manual_seed(3)) for _ in range(2))
        assert one.equal(other)
