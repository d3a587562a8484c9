import os

# The profiler, which measures memory, otherwise writes to the terminal when it starts and stops, and warns of memory
# from before it started.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
