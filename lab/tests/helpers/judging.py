"""Judge a single claim."""

from whitenorm_lab.claims.rules import WELCH
from whitenorm_lab.claims.verdicts import judge


def judge_one(evidence, rule=WELCH):
    return judge([evidence], rule)[0]


def get_verdict(evidence, rule=WELCH):
    return judge_one(evidence, rule).verdict
