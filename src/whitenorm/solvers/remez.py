r"""Best approximations of 1 by compositions of odd polynomials of degree five, by Remez's exchange algorithm.

The best polynomial on [l, 1], followed by the best on the range of that, and so on, is the best of all compositions
(Polar Express, https://arxiv.org/abs/2505.16932, theorem 3.1).
"""

from __future__ import annotations

import math

Coefficients = tuple[float, float, float]

# The best polynomial on a narrow interval around 1 agrees with its limit, whose derivatives vanish at 1.
_NARROW = 1e-2
_LIMIT = (15 / 8, -10 / 8, 3 / 8)
_ROUNDING = 2.0**-53
_SIGNS = (-1, 1, -1, 1)


def approximate_one(lower: float, upper: float) -> tuple[Coefficients, float]:
    r"""Return the polynomial :math:`a x + b x^3 + c x^5` closest to 1 on an interval, and its largest error.

    The error of the best polynomial alternates between -E and E at four points, which include both ends. Each exchange
    solves :math:`x_i\, t(x_i^2) = 1 \pm E` with :math:`t(v) = a + b v + c v^2`, and moves the two inner points to the
    extrema of the result. E follows because the third divided difference of the quadratic t is zero.

    Example::

        >>> (a, b, c), error = approximate_one(0.5, 1.0)
        >>> x = torch.linspace(0.5, 1.0, 1001, dtype=torch.float64)
        >>> deviation = a * x + b * x**3 + c * x**5 - 1
        >>> abs(deviation.max().item() - error) < 1e-6, abs(deviation.min().item() + error) < 1e-6
        (True, True)
    """
    if upper - lower < _NARROW:
        return _LIMIT, max(abs(evaluate(_LIMIT, x) - 1) for x in (lower, upper))
    inner = (3 * lower + upper) / 4, (lower + 3 * upper) / 4
    error = 0.0
    # Exchanges converge quadratically; more than ten were never needed.
    for _ in range(20):
        points = (lower, *inner, upper)
        v = [x * x for x in points]
        weights = [1 / math.prod(v[i] - v[j] for j in range(4) if j != i) for i in range(4)]
        terms = [weight / x for weight, x in zip(weights, points, strict=True)]
        previous, error = error, -sum(terms) / sum(sign * term for sign, term in zip(_SIGNS, terms, strict=True))
        t = [(1 + sign * error) / x for sign, x in zip(_SIGNS, points, strict=True)]
        slope = (t[1] - t[0]) / (v[1] - v[0])
        c = ((t[2] - t[1]) / (v[2] - v[1]) - slope) / (v[2] - v[0])
        b = slope - c * (v[0] + v[1])
        a = t[0] - b * v[0] - c * v[0] ** 2
        # The roots of the derivative a + 3bv + 5cv².
        root = math.sqrt(9 * b * b - 20 * a * c)
        inner = math.sqrt((-3 * b - root) / (10 * c)), math.sqrt((-3 * b + root) / (10 * c))
        if abs(error - previous) < 8 * _ROUNDING:
            break
    return (a, b, c), error


def compose(lower: float, steps: int) -> tuple[tuple[Coefficients, ...], float]:
    """Return the best composition of ``steps`` polynomials on [lower, 1], and its largest error."""
    polynomials, error, upper = [], 0.0, 1.0
    for _ in range(steps):
        polynomial, error = approximate_one(lower, upper)
        polynomials.append(polynomial)
        lower, upper = 1 - error, 1 + error
    return tuple(polynomials), error


def widest_composition(steps: int) -> tuple[tuple[Coefficients, ...], float]:
    """Return the best composition on the widest interval [l, 1] on which its error is float64's rounding, and l."""
    # Bisection of log l. No slope at 0 is above 9, and eigenvalues below 2^-54 are lost in rounding errors.
    low, high = max(-steps * math.log(9), -27 * math.log(2)), 0.0
    for _ in range(50):
        middle = (low + high) / 2
        if compose(math.exp(middle), steps)[1] > _ROUNDING:
            low = middle
        else:
            high = middle
    lower = math.exp(high)
    return compose(lower, steps)[0], lower


def evaluate(polynomial: Coefficients, x: float) -> float:
    a, b, c = polynomial
    return x * (a + x * x * (b + x * x * c))
