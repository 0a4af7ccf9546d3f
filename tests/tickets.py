"""Rows as a new user has them: what customers write, of three kinds."""

import csv
import random

TOPICS = ("billing", "delivery", "praise, and thanks")
WORDS = {
    "billing": "invoice refund charged card twice money payment",
    "delivery": "parcel late courier door tracking lost box",
    "praise, and thanks": "great love thanks friendly quick helpful nice",
}


def tickets(count=60, seed=0):
    draw = random.Random(seed)
    for number in range(count):
        topic = TOPICS[number % 3]
        yield " ".join(draw.choices(WORDS[topic].split(), k=draw.randint(3, 9))) + f" {number}", topic


def table(path, header, rows):
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path
