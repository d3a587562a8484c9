"""The six steps in order, the layouts of tensors in memory, masks and ranks: tensors in, tensors out, no state."""
