import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge_client.errors import DataError
from server.simulation.data.dataset import open_dataset
from server.simulation.data.population import Population, sampled, taken


@pytest.fixture
def dataset(write, numbered):
    return open_dataset(write(numbered(600), numbered(20, prefix="test"), ["a", "b", "c"]), "seq-cls", by="author")


def texts(examples):
    return [example.text for example in examples]


def test_clients_have_rows_of_their_own(dataset):
    population = Population(dataset, 40, 0.5, seed=1)
    found = [population.client(number) for number in range(population.clients)]
    assert {(len(client.train), len(client.test)) for client in found} == {(12, 3)}
    everything = [text for client in found for text in texts(client.train) + texts(client.test)]
    assert len(everything) == len(set(everything)) == 600
    assert texts(population.test) == [f"test {i}" for i in range(20)]
    assert population.labels == ("a", "b", "c")


def test_counts_are_those_of_the_clients_classes(dataset):
    population = Population(dataset, 40, 0.1, seed=2)
    for number in range(population.clients):
        client = population.client(number)
        labels = [example.label for example in [*client.train, *client.test]]
        assert population.counts(number).tolist() == np.bincount(labels, minlength=3).tolist()


def test_how_unlike_the_clients_are(write, numbered):
    dataset = open_dataset(write(numbered(600), numbered(3)), "seq-cls")
    found = [Population(dataset, 20, alpha, seed=3).largest_class() for alpha in (1e-6, 0.1, 1.0, 1e6)]
    assert found[0] > 0.95
    assert found[-1] == pytest.approx(1 / 3, abs=0.03)
    assert found == sorted(found, reverse=True)


def test_a_clients_own_test_has_its_mix(dataset):
    population = Population(dataset, 10, 1.0, seed=4, own_test=0.5)
    for number in range(10):
        train, test = (np.bincount([e.label for e in part], minlength=3) for part in population.client(number))
        assert np.abs(train - test).max() <= 2


def test_a_natural_split(dataset):
    population = Population(dataset, 4, None)
    assert [len(client.train) + len(client.test) for client in map(population.client, range(4))] == [150] * 4
    numbers = [int(text.split()[1]) for client in [population.client(1)] for text in texts(client.train + client.test)]
    assert {number % 4 for number in numbers} == {1}
    assert population.counts(1).tolist() == [50, 50, 50]  # classes, not authors
    assert Population(dataset, 3, None).clients == 3
    with pytest.raises(DataError, match="the column has 4 different values, for 1 to 4 clients, not 5"):
        Population(dataset, 5, None)


def test_a_natural_split_needs_a_column(write, numbered):
    dataset = open_dataset(write(numbered(10), numbered(2)), "seq-cls")
    with pytest.raises(DataError, match="a natural split needs the column that says to which client a row belongs"):
        Population(dataset, 2, None)


@pytest.mark.parametrize("share", [0.0, 1.0, float("nan")])
def test_a_share_out_of_range(dataset, share):
    with pytest.raises(DataError, match="must be between 0 and 1"):
        Population(dataset, 2, 1.0, own_test=share)


def test_fingerprints_tell_splits_and_rows_apart(write, numbered):
    def of(rows=60, clients=10, alpha=0.5, seed=0, by="", **options):
        data = open_dataset(write(numbered(rows), numbered(5)), "seq-cls", by=by)
        return Population(data, clients, alpha, seed, **options).fingerprint

    same = of()
    assert same == of()
    others = [of(rows=66), of(clients=9), of(alpha=0.6), of(seed=1), of(by="author"), of(own_test=0.3)]
    assert len({same, *others}) == 7


def test_only_the_rows_of_who_is_asked_are_read(write, numbered):
    """A row that changes after it was checked is noticed by the client that has it, and by no other."""
    folder = write(numbered(100), numbered(5))
    population = Population(open_dataset(folder, "seq-cls"), 10, 1.0)
    path = Path(folder, "train.jsonl")
    lines = path.read_text().splitlines()
    lines[42] = lines[42].replace("text 42", "text 24")
    path.write_text("\n".join(lines) + "\n")
    owner = next(number for number in range(10) if any(42 in part for part in population.rows(number)))
    with pytest.raises(DataError, match="changed while it was in use"):
        population.client(owner)
    others = [population.client(number) for number in range(10) if number != owner]
    assert sum(len(client.train) + len(client.test) for client in others) == 90


def test_questions_are_split_over_their_titles(write):
    def question(i):
        answers = {"text": ["ice", "the ice"], "answer_start": [0, 4]} if i % 2 else {"text": [], "answer_start": []}
        return {"question": f"What {i}?", "context": "ice the ice", "answers": answers, "title": f"title {i % 5}"}

    rows = [question(i) for i in range(200)]
    dataset = open_dataset(write(rows, rows[:6]), "qa")
    assert dataset.groups.names == tuple(f"title {i}" for i in range(5))
    population = Population(dataset, 20, 1e-6)
    assert sum((population.counts(number) > 0).sum() == 1 for number in range(20)) >= 16
    examples = [*population.client(3).train, *population.client(4).train]
    assert {example.answers for example in examples} <= {(), ("ice", "the ice")}
    assert all((example.answer == "ice") == bool(example.answers) for example in examples)


def test_texts_without_classes_are_split_at_random(write, numbered):
    dataset = open_dataset(write(numbered(50), numbered(2)), "causal-lm")
    population = Population(dataset, 5, 1.0)
    assert population.labels == ()
    assert population.counts(0).tolist() == [10]
    assert len(population.client(0).train) == 8


# --- who takes part ---


@given(st.integers(0, 2**64 - 1), st.integers(1, 2000), st.integers(1, 300), st.data())
def test_a_round_has_different_clients(seed, round_, clients, data):
    per_round = data.draw(st.integers(1, clients))
    found = sampled(seed, round_, clients, per_round)
    assert found == sampled(seed, round_, clients, per_round)
    assert len(set(found)) == len(found)
    assert len(found) == per_round
    assert set(found) <= set(range(clients))


def test_each_client_is_as_likely_as_another():
    rounds = 4000
    counts, first = np.zeros(20), np.zeros(20)
    for round_ in range(1, rounds + 1):
        found = sampled(5, round_, 20, 6)
        counts[found] += 1
        first[found[0]] += 1
    expected, spread = rounds * 0.3, np.sqrt(rounds * 0.3 * 0.7)
    assert np.abs(counts - expected).max() < 4.5 * spread
    assert counts.std() > 0.4 * spread  # and not by turns
    assert np.abs(first - rounds / 20).max() < 4.5 * np.sqrt(rounds / 20)  # nor has a client a place of its own
    assert json.dumps(sampled(5, 1, 20, 6)) == "[13, 7, 10, 18, 19, 2]"


@pytest.mark.parametrize("per_round", [0, 21])
def test_a_round_of_nobody_or_of_more_than_there_are(per_round):
    with pytest.raises(DataError, match=rf"a round can have 1 to 20 of the 20 clients, got {per_round}"):
        sampled(0, 1, 20, per_round)


def test_clients_that_come_by_chance_come_apart_from_each_other():
    """As often as it says, in numbers that vary as a binomial's do, and two together as often as chance has it."""
    came = np.zeros((600, 50), bool)
    for round_ in range(len(came)):
        found = taken(9, round_, 50, 10)
        assert found == taken(9, round_, 50, 10)
        assert len(set(found)) == len(found)
        came[round_, found] = True
    counts = came.sum(1)
    assert abs(counts.mean() - 10) < 5 * (8 / len(came)) ** 0.5
    assert counts.var() == pytest.approx(8, rel=0.3)
    together = np.corrcoef(came.T)[np.triu_indices(50, 1)]
    assert abs(together.mean()) < 5 / (len(came) * 1225) ** 0.5
    assert sorted(taken(9, 1, 6, 6)) == list(range(6))
