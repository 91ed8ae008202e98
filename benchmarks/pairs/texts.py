"""The prompts, of our own writing: what the target writes training text about, and what evaluation asks.

Four sets: code, maths, chat, extraction. Training and evaluation have their own templates and their own topics, and
`shared` finds every run of words that an evaluation prompt has in common with training; `prompts` refuses to hand out a
pair of lists that has one.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

SETS = ("code", "maths", "chat", "extraction")
RUN = 6
"""Words in a row that an evaluation prompt may not share with training: shorter runs are English, not text."""
FILLS = {"code": 1, "maths": 4, "chat": 1, "extraction": 5}
"""How often a template meets a topic, each time with other numbers or names."""
DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Prompt:
    """One user turn of a set."""

    kind: str
    text: str


def _lines(text: str) -> tuple[str, ...]:
    return tuple(line.strip() for line in text.strip().splitlines())


def _items(text: str) -> tuple[str, ...]:
    return tuple(" ".join(item.split()) for item in text.split(";"))


TRAIN_TEMPLATES = {
    "code": _lines("""
        Write a Python function that {}. Include a docstring.
        Show me how to {} in Python, with a short example.
        I need a small script that can {}. Please comment every step.
        {} using only the standard library. Return the finished code.
        Give two different ways to {} and compare them.
        Write a class with a method to {}, then a usage example.
        Explain the algorithm to {} and then implement it.
        Write a unit test for a function meant to {}.
    """),
    "maths": _lines("""
        A shop sells {1} boxes with {2} {0} each. How many {0} is that altogether? Show your steps.
        Tom has {1} {0} and gives away {2}. Then he buys {3} more. How many {0} does he have now?
        If {2} {0} cost {1} dollars, what do {3} {0} cost? Explain.
        Split {1} {0} among {2} children. How many does each get and how many are left over?
        A train carries {1} {0} on Monday and {2} more on Tuesday. What is the total over both days?
        What is {1} plus {2} minus {3}? Work it out step by step.
        The price of {0} was {1} and rose by {2} percent. What is the new price?
    """),
    "chat": _lines("""
        What is {}? Explain it to a beginner.
        Tell me about {} in three paragraphs.
        Why does {} matter? Give a few reasons.
        I would like to learn more about {}. Where should I start?
        Write a short story that involves {}.
        List five facts about {}.
        Compare {} with something similar and describe the differences.
        Write a friendly email to a colleague about {}.
        Give me advice on {} for daily life.
        Summarise the history of {}.
    """),
    "extraction": _lines("""
        Extract the name, the place and the date from this text as JSON: "{1} visited {2} on {3} to talk about {0}."
        Text: "{1} from {2} ordered {0} on {3}." List every person, city and product mentioned.
        Turn the following note into bullet points: {1} will travel to {2} on {3} and report on {0}.
        Read: "On {3}, {1} presented {0} in {2}." Who presented, what, where and when?
        Make a table with columns person, city, day, subject out of: {1}, {2}, {3}, {0}.
        Rewrite as one formal sentence: {1} - {2} - {3} - {0}.
    """),
}
EVAL_TEMPLATES = {
    "code": _lines("""
        Could you code up something in Python to {}?
        My program has to {}; which code would do that?
        Please implement this requirement: {}.
        As an experienced developer, how would you {}?
    """),
    "maths": _lines("""
        Anna counts {1} {0} in the morning and twice as many after lunch. What number does she reach by evening?
        There are {1} rows holding {2} {0} apiece, but {3} are broken. Find how many work.
        Each of {2} friends pays the same share of a bill of {1} for {0}. What does one friend pay?
        Calculate {1} times {2}, then subtract {3} from the result.
    """),
    "chat": _lines("""
        My niece asked me about {}. How can I answer her well?
        Could you describe {} and how people use it today?
        I have an interview where {} may come up; what must I know?
        Please share your thoughts on {}.
    """),
    "extraction": _lines("""
        Here is a memo. "{1}, based in {2}, confirmed {0} for {3}." Which person, location and deadline does it name?
        Pull out all proper nouns: {1} moved from {2} after {3} because of {0}.
        Fill in the fields who, where, when, topic given this line -> {3}: {1} ({2}) spoke of {0}.
        Shorten this to a headline: yesterday in {2} it became known that {1} plans {0} by {3}.
    """),
}
TRAIN_TOPICS = {
    "code": _items("""
        reverse a linked list; count the words in a file; sort a list of dictionaries by a key; compute the factorial of
        a number; check whether a string is a palindrome; merge two sorted lists; find the largest value in a list; read
        a CSV file; parse command line arguments; convert Celsius to Fahrenheit; generate the Fibonacci sequence; remove
        duplicates from a list; flatten a nested list; find prime numbers up to a limit; search a sorted array; compute
        the average of numbers; write text to a file; count vowels in a sentence; rotate a matrix; draw a triangle of
        stars; download a web page; measure the time a function takes; group items by their first letter; validate an
        email address; roll two dice many times; build a simple calculator; implement a stack; implement a queue;
        transpose a table; find the second smallest number; swap two variables; capitalise every word; make a frequency
        table of characters; check if a year is a leap year; compute the greatest common divisor; print a multiplication
        table; split a list into chunks; rename files in a folder; pick a random password; convert binary to decimal;
        cache results of a function; walk a directory tree; compute a running total; format a date; detect anagrams"""),
    "maths": _items("""apples; pencils; marbles; books; tickets; oranges; coins; stamps; cookies; bottles; chairs; eggs; balloons;
        stickers; cups; shirts; candles; bricks; flowers; buttons; lamps; plates; toys; keys; ropes"""),
    "chat": _items("""
        gravity; photosynthesis; the water cycle; volcanoes; the solar system; democracy; the French Revolution; jazz
        music; healthy eating; meditation; electric cars; recycling; coral reefs; the human heart; antibiotics; black
        holes; chess; gardening; time management; public speaking; climate change; the Roman Empire; computer networks;
        machine learning; bread baking; hiking; photography; the Amazon rainforest; friendship; sleep; inflation; the
        printing press; bees; vaccines; the moon landing; poetry; robots; money saving; yoga; languages; the internet;
        dinosaurs; earthquakes; painting; teamwork; solar energy; the ocean; dreams; whales; tea; trains; the Silk Road;
        optimism; magnets; museums; deserts; rivers"""),
    "extraction": _items("""
        a new bridge; three laptops; the annual budget; a garden party; winter coats; the safety rules; a museum tour;
        ten bicycles; a school project; the harvest; office chairs; a concert; medical supplies; a film festival; the
        new website; solar panels; a cooking course; old maps"""),
}
EVAL_TOPICS = {
    "code": _items("""
        find the median of three numbers; replace tabs with spaces; draw a histogram in the terminal; compare two
        version strings; interleave two lists; encode text with run lengths; simulate traffic lights; convert roman
        numerals; mask credit card digits; compute a checksum"""),
    "maths": _items("seeds; windows; postcards; barrels; tents; spoons; tiles; umbrellas; notebooks; pebbles"),
    "chat": _items("""lighthouses; the invention of paper; glaciers; origami; probability; the violin; saving water; penguins; city
        parks; the telescope"""),
    "extraction": _items("""
        a harbour inspection; wool blankets; the lecture series; a cycling race; spare batteries; a rooftop garden; the
        tenants' meeting; glass jars; a ferry timetable; the archive move"""),
}
TRAIN_NAMES = (_items("Maria Lopez; John Carter; Aisha Khan; Peter Novak; Li Wei; Emma Brown; Carlos Diaz; Sofia Rossi"),
               _items("Paris; Boston; Nairobi; Prague; Beijing; Sydney; Lima; Rome"),
               _items("3 March 2021; Monday; 12 May; next Friday; July 4; the first of June; 2 October 2019"))  # fmt: skip
EVAL_NAMES = (_items("Ingrid Dahl; Kofi Mensah; Yuki Tanaka; Omar Haddad; Nadia Petrov"),
              _items("Oslo; Accra; Osaka; Tunis; Riga"),
              _items("21 August 2023; Wednesday noon; 9 November; the end of spring; 30 January"))  # fmt: skip


def _fill(kind: str, templates: dict[str, tuple[str, ...]], topics: dict[str, tuple[str, ...]],
          names: tuple[tuple[str, ...], ...], rng: random.Random) -> Iterator[Prompt]:  # fmt: skip
    for template, topic, _ in product(templates[kind], topics[kind], range(FILLS[kind])):
        words = (
            [str(rng.randint(12, 480)), str(rng.randint(2, 11)), str(rng.randint(3, 60))]
            if kind == "maths"
            else [rng.choice(choice) for choice in names]
        )
        text = template.format(topic, *words)
        yield Prompt(kind, text[0].upper() + text[1:])


def _all(templates: dict[str, tuple[str, ...]], topics: dict[str, tuple[str, ...]],
         names: tuple[tuple[str, ...], ...], seed: int) -> list[Prompt]:  # fmt: skip
    rng = random.Random(seed)
    return [prompt for kind in SETS for prompt in _fill(kind, templates, topics, names, rng)]


def training_prompts(seed: int = 1) -> list[Prompt]:
    """Every training template with every training topic: about 2,200."""
    return _all(TRAIN_TEMPLATES, TRAIN_TOPICS, TRAIN_NAMES, seed)


def evaluation_prompts(per_set: int = 40, seed: int = 2) -> list[Prompt]:
    """`per_set` prompts of each set, no two alike, in a fixed order that mixes templates."""
    held, rng = _all(EVAL_TEMPLATES, EVAL_TOPICS, EVAL_NAMES, seed), random.Random(seed)
    chosen = []
    for kind in SETS:
        of_kind = list(dict.fromkeys(prompt for prompt in held if prompt.kind == kind))
        rng.shuffle(of_kind)
        chosen += of_kind[:per_set]
    return chosen


def runs(text: str, length: int = RUN) -> set[tuple[str, ...]]:
    """Every run of `length` words; case and punctuation do not count, and any number is one word."""
    words = re.findall(r"[a-z']+|#", DIGITS.sub("#", text.lower()))
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)}


def shared(held: Iterable[str], trained: Iterable[str], length: int = RUN) -> list[str]:
    """The runs of words of `held` that `trained` has too, as text; empty where evaluation shares nothing with training."""
    wanted: set[tuple[str, ...]] = set()
    for text in held:
        wanted |= runs(text, length)
    found: set[tuple[str, ...]] = set()
    for text in trained:
        found |= wanted & runs(text, length)
    return sorted(" ".join(run) for run in found)


def refuse_shared(held: Sequence[str], trained: Iterable[str], length: int = RUN) -> None:
    """Raises SystemExit naming what evaluation shares with training."""
    if both := shared(held, trained, length):
        raise SystemExit(
            f"evaluation shares text with training: {len(both)} runs of {length} words, such as {both[:3]}"
        )
