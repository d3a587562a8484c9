"""A module that symbolic tracing records as one call, and that says why TorchScript cannot compile it."""

from __future__ import annotations

from typing import Any, NoReturn

from torch import fx, nn


class LeafModule(nn.Module):
    """A module that any :mod:`torch.fx` tracer records as one ``call_module`` node, as it does torch's own layers.

    Example::

        >>> graph = torch.fx.symbolic_trace(nn.Sequential(whitenorm.IterNorm(8), nn.ReLU())).graph
        >>> [node.op for node in graph.nodes]
        ['placeholder', 'call_module', 'call_module', 'output']
    """

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        first = args[0] if args else kwargs.get("input")
        if isinstance(first, fx.Proxy):
            return _record_call(first.tracer, self, args, kwargs)
        return super().__call__(*args, **kwargs)

    def __prepare_scriptable__(self) -> NoReturn:
        raise ValueError(
            f"expected torch.jit.trace, torch.compile or torch.export for {type(self).__name__} (got torch.jit.script, "
            "which cannot compile its autograd functions); in eval mode whitenorm.fold_(model) leaves plain "
            "convolutions in place of batch whitening, which torch.jit.script takes"
        )


def _record_call(tracer: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def record(*args: Any, **kwargs: Any) -> Any:
        return tracer.create_proxy("call_module", tracer.path_of_module(module), args, kwargs)

    # By the tracer's own method, which notes in which module it is.
    return tracer.call_module(module, record, args, kwargs)
