"""Running the papers' experiments: what an experiment is, its results, its verdicts, and the commands."""
