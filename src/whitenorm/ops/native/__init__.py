"""The six steps for CPUs in C++, compiled when the package is built; :mod:`whitenorm.ops.native.library` loads them."""
