"""Tokens are chosen as transformers chooses them: its logits processors are the oracle, on random logits."""

import numpy as np
import pytest

from edge_client.errors import SpryError
from edge_client.generation.sampler import Sampler, Sampling, SplitMix, probabilities, processed

VOCABULARY = 50


def logits(seed: int) -> np.ndarray:
    return (3 * np.random.default_rng(seed).standard_normal(VOCABULARY)).astype(np.float32)


def of_transformers(scores: np.ndarray, seen: list[int], sampling: Sampling) -> np.ndarray:
    import torch
    from transformers import generation

    chain = [generation.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty)]
    if sampling.temperature:
        chain.append(generation.TemperatureLogitsWarper(sampling.temperature))
        chain += [generation.TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
        chain += [generation.TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    found, ids = torch.from_numpy(scores.copy())[None], torch.tensor([seen])
    for one in chain:
        found = one(ids, found)
    return found[0].numpy()


@pytest.mark.parametrize("seed", range(20))
def test_processed_logits_are_those_of_transformers(seed):
    random = np.random.default_rng(100 + seed)
    seen = random.integers(0, VOCABULARY, 12).tolist()
    sampling = Sampling(
        temperature=float(random.uniform(0.2, 2)),
        top_k=int(random.integers(0, VOCABULARY + 10)),
        top_p=float(random.uniform(0.05, 1)),
        repetition_penalty=float(random.uniform(0.7, 2)),
    )
    found, expected = processed(logits(seed), seen, sampling), of_transformers(logits(seed), seen, sampling)
    assert (np.isinf(found) == np.isinf(expected)).all(), sampling
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_without_a_temperature_the_likeliest_is_taken_behind_the_penalty():
    scores, seen = logits(3), [int(logits(3).argmax())]
    sampler = Sampler(Sampling(repetition_penalty=5.0))
    assert sampler.choose(scores, []) == seen[0]
    assert sampler.choose(scores, seen) == int(of_transformers(scores, seen, sampler.sampling).argmax()) != seen[0]
    assert scores.tolist() == logits(3).tolist()  # what a runtime gave is not written to


def test_tokens_come_as_often_as_their_probabilities_say():
    sampling = Sampling(temperature=0.9, top_k=8, top_p=0.95, seed=11)
    sampler, draws = Sampler(sampling), 20_000
    counts = np.bincount([sampler.choose(logits(5), []) for _ in range(draws)], minlength=VOCABULARY)
    shares = probabilities(processed(logits(5), [], sampling))
    assert (counts[shares == 0] == 0).all()
    spread = 5 * np.sqrt(shares * (1 - shares) / draws)
    assert (np.abs(counts / draws - shares) <= spread).all()


def test_a_seed_draws_the_same_again():
    def drawn(seed):
        sampler = Sampler(Sampling(temperature=1.5, seed=seed))
        return [sampler.choose(logits(number), []) for number in range(30)]

    assert drawn(4) == drawn(4)
    assert drawn(4) != drawn(5)
    assert drawn(None) != drawn(None)


REFUSED = [
    ({"temperature": -0.1}, "temperature must be 0 (the likeliest token) or more, got -0.1"),
    ({"temperature": float("nan")}, "got nan"),
    ({"top_k": -1}, "top_k must be 0 (all tokens) or more, got -1"),
    ({"top_p": 0}, "top_p must be above 0 and at most 1 (all tokens), got 0"),
    ({"top_p": 1.5}, "got 1.5"),
    ({"repetition_penalty": 0}, "repetition_penalty must be above 0 (1: none), got 0"),
]


@pytest.mark.parametrize(("options", "message"), REFUSED)
def test_what_has_no_meaning_is_refused(options, message):
    with pytest.raises(SpryError) as refused:
        Sampler(Sampling(**options))
    assert message in str(refused.value)


def test_splitmix_gives_the_published_numbers():
    """Of Vigna's own splitmix64.c, from the seed 1234567."""
    words = SplitMix(1234567).words()
    assert [next(words) for _ in range(5)] == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip
