"""Data, networks and experiments around the layers. Needs more than torch: the ``lab`` extra."""
