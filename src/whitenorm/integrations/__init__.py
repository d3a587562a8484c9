"""Integrations with other libraries: ``timm``, ``lightning``, ``transformers`` and ``mmengine``.

Import each module by its name, such as ``whitenorm.integrations.timm``; it needs the library that it is named after.
"""
