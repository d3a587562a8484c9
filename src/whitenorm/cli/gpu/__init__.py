"""What the layers cost on a GPU: counted without one, predicted, and measured where there is one."""
