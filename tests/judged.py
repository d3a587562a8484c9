"""A single claim, judged."""

from whitenorm.lab.reproduce.rules import FIRST
from whitenorm.lab.reproduce.verdicts import judge


def judged(evidence, rule=FIRST):
    return judge([evidence], rule)[0]


def verdict(evidence, rule=FIRST):
    return judged(evidence, rule).verdict
