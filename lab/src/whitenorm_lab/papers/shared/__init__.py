"""What entries of several papers share."""
