import os

# The profiler, which measures memory, otherwise writes to the terminal when it starts and stops.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
