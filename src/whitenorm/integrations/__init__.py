"""Whitening in other libraries: each module is imported by itself, and needs the library whose name it has.

``whitenorm.integrations.timm``, ``.lightning``, ``.transformers`` and ``.mmengine``.
"""
