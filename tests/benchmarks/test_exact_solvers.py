"""The comparison of the exact solvers."""

from benchmarks import exact_solvers


def test_measures_errors_and_times():
    results = {"machine": {"processor": "p", "threads": 1, "torch": "t", "commit": "c"}}
    results["sizes"] = [{"size": 8, "batch": 2, "solvers": exact_solvers.measure(8, 2, rounds=3, budget=1)}]
    errors = results["sizes"][0]["solvers"]["Minimax(steps=7)"]["errors"]
    assert errors["1e+02"] < 1e-4 < errors["1e+06"]
    assert all(f"`{solver}`" in exact_solvers.format_table(results) for solver in exact_solvers.SOLVERS)
    assert exact_solvers.count_launches(exact_solvers.Minimax())["forward"] < 60
    assert "| 1e+05 | " in exact_solvers.format_promises()
