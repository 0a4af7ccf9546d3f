"""Write the demo's data: what people say to their homes, and each device's share of it.

Phrases are written from templates. Some templates of each intent are held out: no device trains on them, so that a
model is measured on wordings that it has not seen. Each device has a household's habits: a few intents make
up most of what it hears, and it has its own rooms, names and manners. So the devices' slices are alike in nothing but
the task.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TypedDict


class Phrase(TypedDict):
    text: str
    label: str


@dataclass(frozen=True)
class Intent:
    """Templates of one intent."""

    heard: tuple[str, ...]
    held_out: tuple[str, ...]


INTENTS: dict[str, Intent] = {
    "lights on": Intent(
        ("turn on the {room} light", "lights on in the {room}", "switch the {room} lamp on", "light up the {room}",
         "it is too dark in the {room}", "I can't see a thing in the {room}", "give me some light in the {room}",
         "the {room} needs more light", "turn all {room} lamps on"),
        ("switch on the lamp in the {room}", "why is it so dark in the {room}", "get the {room} light on"),
    ),
    "lights off": Intent(
        ("turn off the {room} light", "lights off in the {room}", "switch the {room} lamp off", "make the {room} dark",
         "it is too bright in the {room}", "nobody needs light in the {room}", "kill the lights in the {room}",
         "lights out in the {room}", "turn all {room} lamps off"),
        ("switch off the lamp in the {room}", "why is it so bright in the {room}", "put the {room} lights out"),
    ),
    "warmer": Intent(
        ("turn up the heating in the {room}", "make the {room} warmer", "it is freezing in the {room}",
         "set the {room} two degrees higher", "I am cold in the {room}", "heat the {room} to {number} degrees",
         "raise the temperature in the {room}"),
        ("warm up the {room}", "it is chilly in the {room}", "more heat in the {room}"),
    ),
    "cooler": Intent(
        ("turn down the heating in the {room}", "make the {room} cooler", "it is boiling in the {room}",
         "set the {room} two degrees lower", "I am sweating in the {room}", "start the air conditioning in the {room}",
         "lower the temperature in the {room}"),
        ("cool down the {room}", "it is too hot in the {room}", "less heat in the {room}"),
    ),
    "play music": Intent(
        ("play some {music}", "put on {music}", "I want to hear {music}", "start my {music} playlist",
         "play {music} in the {room}", "let us listen to {music}", "shuffle {music} songs"),
        ("some {music} would be nice", "how about a little {music}", "I feel like listening to {music}"),
    ),
    "stop music": Intent(
        ("stop the music", "pause the song", "no more {music}", "be quiet", "silence in the {room}",
         "turn the {music} off", "stop playing {music}", "pause the {music}", "mute the speaker",
         "enough of this song"),
        ("stop that {music}", "that is enough {music}", "mute the {room} speaker"),
    ),
    "set timer": Intent(
        ("set a timer for {number} minutes", "wake me at {number}", "alarm for {number} o'clock",
         "count down {number} minutes", "tell me when {number} minutes are over", "timer for the {food}",
         "start a timer of {number} minutes", "set the alarm to {number}"),
        ("let me know in {number} minutes", "ring the alarm at {number} in the morning", "{number} minutes from now"),
    ),
    "weather": Intent(
        ("what is the weather {day}", "will it rain {day}", "do I need an umbrella {day}", "how cold is it {day}",
         "is it sunny {day}", "weather forecast for {day}", "how windy is it {day}", "will there be a storm {day}"),
        ("can we have a picnic outside {day}", "should {person} take a raincoat {day}", "does it snow {day}"),
    ),
    "shopping": Intent(
        ("add {food} to the shopping list", "put {food} on the list", "we need {food}", "buy {food} {day}",
         "we are out of {food}", "remind me to get {food}", "order more {food}"),
        ("the {food} is almost gone", "note down {food} for the market", "there is no {food} left"),
    ),
    "call": Intent(
        ("call {person}", "ring {person} on the phone", "phone {person}", "get me {person} on the line",
         "I want to talk to {person}", "start a video call with {person}", "dial {person}"),
        ("connect me with {person}", "can you reach {person}", "let me speak with {person}"),
    ),
}  # fmt: skip
LABELS = tuple(INTENTS)

WORDS: dict[str, tuple[str, ...]] = {
    "room": ("kitchen", "bedroom", "bathroom", "hall", "garage", "office", "nursery", "living room", "cellar", "attic"),
    "number": ("three", "five", "six", "seven", "ten", "twelve", "fifteen", "twenty", "twenty-one", "forty"),
    "music": ("jazz", "rock", "piano", "hip hop", "classical", "dance", "blues", "folk", "disco", "opera"),
    "food": ("milk", "eggs", "bread", "pasta", "apples", "cheese", "rice", "coffee", "butter", "potatoes"),
    "person": ("mum", "dad", "Anna", "Ben", "grandma", "the doctor", "Carla", "the office", "Deniz", "uncle Joe"),
    "day": ("today", "tomorrow", "tonight", "this weekend", "on Monday", "on Friday", "this afternoon", "next week"),
}  # fmt: skip
MANNERS = ("{}", "{} please", "hey, {}", "could you {}", "{} now", "okay, {}", "{}, thanks", "I said {}")
FAVOURITES = 0.85
"""The share of a device's phrases that are its household's favourites."""
WORDS_OF_A_HOUSEHOLD = 4


@dataclass(frozen=True)
class Household:
    """A device's household, and its favourite intents."""

    name: str
    favourites: tuple[str, ...]


HOUSEHOLDS = (
    Household("kitchen-pi", ("set timer", "shopping", "play music")),
    Household("bedroom-pi", ("lights off", "warmer", "set timer")),
    Household("living-room-pi", ("play music", "stop music", "lights on")),
    Household("hall-pi", ("weather", "lights on", "call")),
    Household("office-pi", ("call", "cooler", "stop music")),
    Household("cellar-pi", ("lights on", "lights off", "shopping")),
    Household("workshop-jetson", ("warmer", "cooler", "weather")),
    Household("garage-jetson", ("cooler", "call", "lights off")),
)


def household(number: int) -> Household:
    """Choose a device's household; past the eighth, other families with the same habits."""
    family, place = divmod(number, len(HOUSEHOLDS))
    known = HOUSEHOLDS[place]
    return known if family == 0 else Household(f"{known.name}-{family + 1}", known.favourites)


def slice_of(number: int, count: int) -> list[Phrase]:
    """Draw the training phrases of device `number`."""
    rng = random.Random(f"heard {number}")  # noqa: S311 -- data for a demo
    return [_said(rng, _asked(rng, number), _habits(number), held_out=False) for _ in range(count)]


def own_test(number: int, count: int) -> list[Phrase]:
    """Draw the test phrases of device `number`: its household's habits, in wordings that it has not seen."""
    rng = random.Random(f"will hear {number}")  # noqa: S311
    return [_said(rng, _asked(rng, number), _habits(number), held_out=True) for _ in range(count)]


def common_test(count: int) -> list[Phrase]:
    """Draw the common test phrases: every intent as often, in wordings that no device has seen."""
    rng = random.Random("everybody")  # noqa: S311
    return [_said(rng, LABELS[i % len(LABELS)], WORDS, held_out=True) for i in range(count)]


def _asked(rng: random.Random, number: int) -> str:
    favourites = household(number).favourites
    return rng.choice(favourites if rng.random() < FAVOURITES else LABELS)


def _habits(number: int) -> dict[str, tuple[str, ...]]:
    """Draw the words of one household, always the same ones."""
    rng = random.Random(f"household {number}")  # noqa: S311
    return {slot: tuple(rng.sample(words, WORDS_OF_A_HOUSEHOLD)) for slot, words in WORDS.items()}


def _said(rng: random.Random, intent: str, words: dict[str, tuple[str, ...]], *, held_out: bool) -> Phrase:
    known = INTENTS[intent]
    phrase = rng.choice(known.held_out if held_out else known.heard)
    phrase = phrase.format(**{slot: rng.choice(choice) for slot, choice in words.items()})
    return {"text": rng.choice(MANNERS).format(phrase), "label": intent}
