"""The language the pairs speak: short English sentences from a probabilistic grammar of our own.

A text opens with its place ("we are at the harbor.") and goes on in sentences

    [connective] the [adjective] agent verb the [adjective] thing [preposition the place] [adverb] .

Every choice is a softmax over the words allowed there, whose scores add up from three words of the past: the text's
place and earlier words, some of them a whole sentence back. So the next token has real entropy, a causal model of the
text can be sure of the likeliest one, and a drafter that looks several tokens ahead sees a mixture: wrong at rank 0,
right just below.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


AGENTS = _words("miller baker sailor child shepherd smith singer captain gardener weaver fox raven")
THINGS = _words("lantern letter key map bell stone rope ladder basket coin mirror book")
PLACES = _words("harbor mill bridge garden tower market forest meadow orchard island")
ADJECTIVES = _words("old young tired quiet small clever proud golden")
VERBS = _words("carries finds hides paints sells repairs follows watches keeps borrows drops brings")
PREPOSITIONS = _words("near behind under beside beyond")
ADVERBS = _words("slowly again today softly gladly")
CONNECTIVES = _words("then later meanwhile")
FUNCTION_WORDS = _words("the we are at who")
WORDS = (*FUNCTION_WORDS, *AGENTS, *THINGS, *PLACES, *ADJECTIVES, *VERBS, *PREPOSITIONS, *ADVERBS, *CONNECTIVES)

SHARPNESS = 1.7
"""Standard deviation of each of the three scores: the likeliest word gets 60 to 70 % on average."""

NO_REPEAT = -12.0
"""Added where a choice would repeat a word it depends on, so that greedy texts do not say one sentence for ever."""


@dataclass
class _Scores:
    """One choice: which words are allowed and how three words of the past score them."""

    words: tuple[str, ...]
    rng: np.random.Generator
    temperature: float
    bias: dict[str, float] = field(default_factory=dict)
    rows: dict[tuple[int, str], NDArray[np.float64]] = field(default_factory=dict)
    laws: dict[tuple[str, ...], NDArray[np.float64]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for slot in range(3):
            for word in ("", *WORDS):
                row = self.rng.normal(0.0, SHARPNESS if word else 0.0, len(self.words))
                self.rows[slot, word] = row + [NO_REPEAT if word == allowed else 0.0 for allowed in self.words]

    def draw(self, past: tuple[str, str, str], u: float) -> str:
        """The word at quantile ``u`` of the choice's law given ``past``."""
        cumulative = self.laws.get(past)
        if cumulative is None:
            scores = sum((self.rows[slot, word] for slot, word in enumerate(past)), np.zeros(len(self.words)))
            scores = scores + np.array([self.bias.get(word, 0.0) for word in self.words])
            odds = np.exp((scores - scores.max()) / self.temperature)
            cumulative = self.laws.setdefault(past, np.cumsum(odds / odds.sum()))
        return self.words[min(int(np.searchsorted(cumulative, u)), len(self.words) - 1)]


class Grammar:
    """The language; one fixed seed makes its tables. A ``temperature`` below 1 makes likely words likelier."""

    def __init__(self, temperature: float = 1.0, seed: int = 7) -> None:
        rng = np.random.default_rng(seed)

        def choice(*words: str, **bias: float) -> _Scores:
            return _Scores(words, rng, temperature, bias)

        self._open = choice("the", *CONNECTIVES, the=3.0)
        self._subject = choice(*ADJECTIVES, *AGENTS)
        self._agent = choice(*AGENTS)
        self._verb = choice(*VERBS)
        self._object = choice(*ADJECTIVES, *THINGS)
        self._thing = choice(*THINGS)
        self._after_thing = choice(".", *PREPOSITIONS, *ADVERBS)
        self._place = choice(*PLACES)
        self._after_place = choice(".", *ADVERBS)
        self.answers = tuple(self._answer(thing, rng) for thing in THINGS)

    def _answer(self, thing: str, rng: np.random.Generator) -> tuple[str, ...]:
        adjective, agent, preposition, place = (str(rng.choice(c)) for c in (ADJECTIVES, AGENTS, PREPOSITIONS, PLACES))
        return ("the", adjective, agent, "keeps", "the", thing, preposition, "the", place, ".")

    def opening(self, place: str) -> list[str]:
        return ["we", "are", "at", "the", place, "."]

    def sentences(self, place: str, rng: np.random.Generator) -> Iterator[str]:
        """Words without end; ``place`` is the text's place."""
        agent = verb = thing = ""
        while True:
            u = rng.random(10)
            word = self._open.draw((place, agent, verb), u[0])
            if word != "the":
                yield word
            yield "the"
            word = self._subject.draw((place, agent, thing), u[1])
            if word in ADJECTIVES:
                yield word
                word = self._agent.draw((place, word, agent), u[2])
            agent = word
            yield agent
            verb = self._verb.draw((place, agent, verb), u[3])
            yield from (verb, "the")
            word = self._object.draw((thing, verb, agent), u[4])
            if word in ADJECTIVES:
                yield word
                word = self._thing.draw((thing, word, verb), u[5])
            thing = word
            yield thing
            word = self._after_thing.draw((place, thing, agent), u[6])
            if word in PREPOSITIONS:
                where = self._place.draw((place, word, thing), u[7])
                yield from (word, "the", where)
                word = self._after_place.draw((place, where, verb), u[8])
            if word != ".":
                yield word
            yield "."

    def text(self, rng: np.random.Generator) -> Iterator[str]:
        """One text, without end, from its opening on."""
        place = str(rng.choice(PLACES))
        yield from self.opening(place)
        yield from self.sentences(place, rng)


def spell(words: list[str]) -> str:
    """The words as a reader sees them: spaces between, none before a full stop or a question mark."""
    return " ".join(words).replace(" .", ".").replace(" ?", "?")
