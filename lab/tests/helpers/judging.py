"""Judge a single claim."""

from whitenorm_lab.claims.verdicts import judge


def judge_one(evidence, min_seeds=3):
    return judge([evidence], min_seeds)[0]


def get_verdict(evidence, min_seeds=3):
    return judge_one(evidence, min_seeds).verdict
