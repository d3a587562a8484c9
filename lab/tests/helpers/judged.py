"""A single claim, judged."""

from whitenorm_lab.claims.rules import FIRST
from whitenorm_lab.claims.verdicts import judge


def judged(evidence, rule=FIRST):
    return judge([evidence], rule)[0]


def verdict(evidence, rule=FIRST):
    return judged(evidence, rule).verdict
