"""The six steps, three forward and three back, in torch and in Triton, and the choice between them."""
