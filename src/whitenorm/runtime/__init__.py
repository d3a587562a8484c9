"""What PyTorch is doing at the moment (tracing, recording, autocasting), and memory to use again: the lowest room."""
